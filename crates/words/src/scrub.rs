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
use crate::size::human;
use crate::ui::Ui;
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
        /// Accepted for scripts; has no effect.
        #[arg(short)]
        devices: bool,
        /// Accepted for scripts; has no effect.
        #[arg(short = 'R')]
        raw: bool,
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
    /// Accepted for scripts; has no effect.
    #[arg(short)]
    devices: bool,
    /// Print nothing.
    #[arg(short)]
    quiet: bool,
    /// Only check, and repair nothing.
    #[arg(short)]
    read_only: bool,
    /// Accepted for scripts; has no effect.
    #[arg(short = 'R')]
    raw: bool,
    /// Accepted for scripts; has no effect.
    #[arg(short)]
    force: bool,
    /// I/O scheduling class. Accepted, but has no effect.
    #[arg(short, value_name = "CLASS")]
    class: Option<u32>,
    /// I/O priority within the class. Accepted, but has no effect.
    #[arg(short = 'n', value_name = "DATA")]
    priority: Option<u32>,
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
        Verb::Status { place, .. } => {
            let (uuid, status) = scrubs::last(&place, &Devices::default(), None)?;
            ui.line(format!("UUID:             {uuid}"))?;
            match status {
                Some(status) => show(&status, ui)?,
                None => ui.line("\tno stats available")?,
            }
            return Ok(Exit::Success);
        }
        Verb::Cancel { place } => return cancel(&place, ui),
    };
    if !args.wait
        && let Some(pid) = background::begin()?
    {
        let (uuid, _) = scrubs::last(&args.place, &Devices::default(), None)?;
        let place = args.place.display();
        ui.line(format!("scrub started on {place}, fsid {uuid} (pid={pid})"))?;
        return Ok(Exit::Success);
    }
    let read_only = args.read_only;
    let order = Order::Scrub { resume, read_only, hold_groups: false, state: None };
    let done = client::run(&order, &args.place, &Devices::default(), "scrub", ui)?;
    let status: ScrubStatus = serde_json::from_value(done).context(|| "the answer")?;
    if !args.quiet {
        ui.line(format!("scrub done for {}", status.uuid))?;
        show(&status, ui)?;
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
    Ok(nothing(format!("scrub cancel failed on {}: not running", place.display())))
}

/// Says why there was nothing to do. The exit code is then 2, as with btrfs-progs.
fn nothing(why: String) -> Exit {
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "ERROR: {why}");
    Exit::Usage
}

fn show(status: &ScrubStatus, ui: &Ui) -> Result<()> {
    let scrubbed = status.data_bytes_scrubbed + status.tree_bytes_scrubbed;
    let (hours, rest) = (status.duration / 3600, status.duration % 3600);
    let counts = [
        ("read", status.read_errors),
        ("super", status.super_errors),
        ("verify", status.verify_errors),
        ("csum", status.csum_errors),
        ("parity", status.parity_errors),
    ];
    let counts = counts.iter().filter(|(_, count)| *count > 0);
    let counts: Vec<_> = counts.map(|(what, count)| format!("{what}={count}")).collect();
    let summary = if counts.is_empty() { "no errors found".to_owned() } else { counts.join(" ") };
    let rows = [
        ("Scrub started:", when::in_words(i64::try_from(status.started).unwrap_or(i64::MAX))),
        ("Status:", status.status.clone()),
        ("Duration:", format!("{hours}:{:02}:{:02}", rest / 60, rest % 60)),
        ("Total to scrub:", human(status.bytes_total)),
        ("Rate:", format!("{}/s", human(scrubbed / status.duration.max(1)))),
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
