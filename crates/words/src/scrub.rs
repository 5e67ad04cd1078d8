//! `btrfs scrub`. Without `-B`, a process in the background waits for the end of the scrub.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::background;
use crate::client;
use crate::execute::ScrubStatus;
use crate::exit::{Context, Exit, Result};
use crate::image::Devices;
use crate::order::Order;
use crate::scrubs;
use crate::ui::Ui;
use crate::units::{LongUnits, Units};
use crate::when;

/// The actions on a scrub.
#[derive(Debug, clap::Subcommand)]
pub enum Verb {
    /// Start a scrub of a volume.
    Start(Args),
    /// Resume an interrupted scrub.
    Resume(Args),
    /// Show the status of the running or last scrub.
    Status {
        /// Accepted for scripts: the counts are those of all devices together.
        #[arg(short)]
        devices: bool,
        /// Show every count in place of sizes and a rate.
        #[arg(short = 'R')]
        counts: bool,
        #[command(flatten)]
        /// The unit of sizes.
        units: LongUnits,
        /// The volume, or a folder of its mount.
        place: PathBuf,
    },
    /// Stop a running scrub.
    Cancel {
        /// The volume, or a folder of its mount.
        place: PathBuf,
    },
}

/// The options of `start` and `resume`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Wait until the scrub is done.
    #[arg(short = 'B')]
    wait: bool,
    /// Accepted for scripts: the counts are those of all devices together.
    #[arg(short)]
    devices: bool,
    /// Print nothing.
    #[arg(short, long)]
    quiet: bool,
    /// Only check, and repair nothing.
    #[arg(short)]
    read_only: bool,
    /// Show every count in place of sizes and a rate.
    #[arg(short = 'R')]
    counts: bool,
    /// Accepted for scripts; has no effect.
    #[arg(short)]
    force: bool,
    /// I/O scheduling class. Accepted, but has no effect.
    #[arg(short, value_name = "CLASS")]
    class: Option<u32>,
    /// I/O priority within the class. Accepted, but has no effect.
    #[arg(short = 'n', value_name = "DATA")]
    priority: Option<u32>,
    /// The volume, or a folder of its mount.
    place: PathBuf,
}

/// Carries out an action.
///
/// # Errors
///
/// A volume that cannot be opened or scrubbed.
pub fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    let (resume, args) = match verb {
        Verb::Start(args) => (false, args),
        Verb::Resume(args) => (true, args),
        Verb::Status { counts, units, place, .. } => {
            let (uuid, status) = scrubs::last(&place, &Devices::default(), None)?;
            ui.line(format!("UUID:             {uuid}"))?;
            match status {
                Some(status) => show(&status, counts, units.into(), ui)?,
                None => ui.line("\tno stats available")?,
            }
            return Ok(Exit::Success);
        }
        Verb::Cancel { place } => return cancel(&place, ui),
    };
    let name = args.place.display();
    if resume {
        let (uuid, status) = scrubs::last(&args.place, &Devices::default(), None)?;
        if status.is_none_or(|status| status.status == "finished") {
            ui.line(format!("scrub: nothing to resume for {name}, fsid {uuid}"))?;
            return Ok(Exit::Usage);
        }
    }
    if !args.wait
        && let Some(pid) = background::begin()?
    {
        let (uuid, _) = scrubs::last(&args.place, &Devices::default(), None)?;
        ui.line(format!("scrub started on {name}, fsid {uuid} (pid={pid})"))?;
        return Ok(Exit::Success);
    }
    let read_only = args.read_only;
    let order = Order::Scrub { resume, read_only, hold_groups: false, state: None };
    let done = client::run(&order, &args.place, &Devices::default(), "scrub", ui)?;
    let status: ScrubStatus = serde_json::from_value(done).context(|| "the answer")?;
    if !args.quiet {
        ui.line(format!("scrub done for {}", status.uuid))?;
        show(&status, args.counts, Units::default(), ui)?;
    }
    let is_good = status.status == "finished" && status.uncorrectable_errors == 0;
    Ok(if is_good { Exit::Success } else { Exit::Failure })
}

/// If no scrub is running, the exit code is 2, as with btrfs-progs. Other errors have code 1.
fn cancel(place: &Path, ui: &Ui) -> Result<Exit> {
    let told = client::run(&Order::ScrubCancel, place, &Devices::default(), "scrub", ui)?;
    if told["canceled"] == true {
        ui.line("scrub cancelled")?;
        return Ok(Exit::Success);
    }
    // Standard error may be closed.
    let _ = writeln!(
        std::io::stderr(),
        "ERROR: scrub cancel failed on {}: not running",
        place.display()
    );
    Ok(Exit::Usage)
}

fn show(status: &ScrubStatus, counts: bool, units: Units, ui: &Ui) -> Result<()> {
    let (hours, rest) = (status.duration / 3600, status.duration % 3600);
    let rows = [
        ("Scrub started:", when::in_words(i64::try_from(status.started).unwrap_or(i64::MAX))),
        ("Status:", status.status.clone()),
        ("Duration:", format!("{hours}:{:02}:{:02}", rest / 60, rest % 60)),
    ];
    for (what, value) in rows {
        ui.line(format!("{what:<18}{value}"))?;
    }
    if counts {
        return every_count(status)
            .iter()
            .try_for_each(|(name, count)| ui.line(format!("\t{name}: {count}")));
    }
    let scrubbed = status.data_bytes_scrubbed + status.tree_bytes_scrubbed;
    let kinds = [
        ("read", status.read_errors),
        ("super", status.super_errors),
        ("verify", status.verify_errors),
        ("csum", status.csum_errors),
        ("parity", status.parity_errors),
    ];
    let kinds = kinds.iter().filter(|(_, count)| *count > 0);
    let kinds: Vec<_> = kinds.map(|(what, count)| format!("{what}={count}")).collect();
    let summary = if kinds.is_empty() { "no errors found".to_owned() } else { kinds.join(" ") };
    let rows = [
        ("Total to scrub:", units.show(status.bytes_total)),
        ("Rate:", format!("{}/s", units.show(scrubbed / status.duration.max(1)))),
        ("Error summary:", summary),
    ];
    for (what, value) in rows {
        ui.line(format!("{what:<18}{value}"))?;
    }
    if status.errors() > 0 {
        ui.line(format!("  Corrected:      {}", status.corrected_errors))?;
        ui.line(format!("  Uncorrectable:  {}", status.uncorrectable_errors))?;
        ui.line(format!("  Unverified:     {}", 0))?;
    }
    Ok(())
}

/// The counts in the order and with the names of btrfs-progs. Counts of what does not happen here
/// are zero. `last_physical` is the address of the volume that the scrub has reached.
fn every_count(status: &ScrubStatus) -> [(&'static str, u64); 15] {
    [
        ("data_extents_scrubbed", status.data_extents_scrubbed),
        ("tree_extents_scrubbed", status.tree_extents_scrubbed),
        ("data_bytes_scrubbed", status.data_bytes_scrubbed),
        ("tree_bytes_scrubbed", status.tree_bytes_scrubbed),
        ("read_errors", status.read_errors),
        ("csum_errors", status.csum_errors),
        ("verify_errors", status.verify_errors),
        ("no_csum", status.no_csum),
        ("csum_discards", 0),
        ("super_errors", status.super_errors),
        ("malloc_errors", 0),
        ("uncorrectable_errors", status.uncorrectable_errors),
        ("unverified_errors", 0),
        ("corrected_errors", status.corrected_errors),
        ("last_physical", status.last_logical),
    ]
}
