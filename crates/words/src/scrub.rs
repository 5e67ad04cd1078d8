//! `btrfs scrub`. Without `-B`, a process in the background waits for the end of the scrub.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::background;
use crate::client;
use crate::execute::{ScrubCounts, ScrubStatus};
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::location;
use crate::order::Order;
use crate::scrubs;
use crate::ui::Ui;
use crate::units::{LongUnits, Units};
use crate::when;

/// The status of a scrub that runs.
const RUNNING: &str = "running";

/// The actions on a scrub.
#[derive(Debug, clap::Subcommand)]
pub enum Verb {
    /// Start a scrub of a volume.
    Start(Args),
    /// Resume an interrupted scrub.
    Resume(Args),
    /// Show the status of the running or last scrub.
    Status {
        /// Show each device by itself.
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
    /// Show each device by itself.
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

/// Carries out an action. The exit codes of a scrub are those of btrfs-progs. 1 means that it did
/// not reach its end, 2 that there is nothing to resume, and 3 that errors could not be corrected.
///
/// # Errors
///
/// A volume that cannot be opened or scrubbed.
pub fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    let (resume, args) = match verb {
        Verb::Start(args) => (false, args),
        Verb::Resume(args) => (true, args),
        Verb::Status { devices, counts, units, place } => {
            let (uuid, status) = scrubs::last(&place, &Devices::default(), None)?;
            ui.line(format!("UUID:             {uuid}"))?;
            let form = Form { devices, counts, units: units.into() };
            match status {
                Some(status) => {
                    let is_running = status.status == RUNNING;
                    form.show(&status, if is_running { "status" } else { "history" }, ui)?;
                }
                None => ui.line("\tno stats available")?,
            }
            return Ok(Exit::Success);
        }
        Verb::Cancel { place } => return cancel(&place, ui),
    };
    let name = args.place.display();
    let (uuid, status) = scrubs::last(&args.place, &Devices::default(), None)?;
    if status.as_ref().is_some_and(|status| status.status == RUNNING) {
        let what = format!(
            "Scrub is already running.\nTo cancel use 'btrfs scrub cancel {name}'.\n\
             To see the status use 'btrfs scrub status [-d] {name}'"
        );
        return Err(Failure::new(Exit::Failure, what));
    }
    if resume && status.is_none_or(|status| status.status == "finished") {
        ui.line(format!("scrub: nothing to resume for {name}, fsid {uuid}"))?;
        return Ok(Exit::Usage);
    }
    if !args.wait
        && let Some(pid) = background::begin(ui)?
    {
        ui.line(format!("scrub started on {name}, fsid {uuid} (pid={pid})"))?;
        return Ok(Exit::Success);
    }
    let read_only = args.read_only;
    let order = Order::Scrub { resume, read_only, hold_groups: false, state: None };
    let done = client::run(&order, &args.place, &Devices::default(), "scrub", ui)?;
    let status: ScrubStatus = serde_json::from_value(done).context(|| "the answer")?;
    if !args.quiet {
        let form = Form { devices: args.devices, counts: args.counts, units: Units::default() };
        let word = if status.canceled { "canceled" } else { "done" };
        if !form.devices {
            ui.line(format!("scrub {word} for {}", status.uuid))?;
        }
        form.show(&status, word, ui)?;
    }
    let complain = |what: &str| {
        if !args.quiet {
            ui.complain(what);
        }
    };
    if status.status != "finished" {
        return Ok(Exit::Failure);
    }
    if status.uncorrectable_errors > 0 {
        complain("ERROR: there are uncorrectable errors");
        return Ok(Exit::Corrupt);
    }
    if status.corrected_errors > 0 {
        complain("WARNING: errors detected during scrubbing, corrected");
    }
    Ok(Exit::Success)
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

/// What to show of a scrub.
#[derive(Clone, Copy)]
struct Form {
    devices: bool,
    counts: bool,
    units: Units,
}

/// The counts of a volume. The place that the scrub has reached is an address of the volume.
fn counts_of(status: &ScrubStatus) -> ScrubCounts {
    ScrubCounts {
        data_extents_scrubbed: status.data_extents_scrubbed,
        tree_extents_scrubbed: status.tree_extents_scrubbed,
        data_bytes_scrubbed: status.data_bytes_scrubbed,
        tree_bytes_scrubbed: status.tree_bytes_scrubbed,
        read_errors: status.read_errors,
        csum_errors: status.csum_errors,
        verify_errors: status.verify_errors,
        no_csum: status.no_csum,
        super_errors: status.super_errors,
        uncorrectable_errors: status.uncorrectable_errors,
        corrected_errors: status.corrected_errors,
        last_physical: status.last_logical,
    }
}

impl Form {
    /// Shows the volume, or each of its devices with a word behind its name.
    fn show(self, status: &ScrubStatus, word: &str, ui: &Ui) -> Result<()> {
        // Earlier programs wrote neither the devices nor the total of all copies.
        if !self.devices || status.devices.is_empty() {
            let scrubbed = status.data_bytes_scrubbed + status.tree_bytes_scrubbed;
            let total = status.bytes_total_copies.max(scrubbed);
            return self.part(status, &counts_of(status), total, ui);
        }
        for device in &status.devices {
            let (name, id) = (location::show(device.device.as_bytes()), device.devid);
            ui.line(format!("\nScrub device {name} (id {id}) {word}"))?;
            self.part(status, &device.counts, device.bytes_used, ui)?;
        }
        Ok(())
    }

    fn part(self, status: &ScrubStatus, counts: &ScrubCounts, total: u64, ui: &Ui) -> Result<()> {
        let (what, when) = match status.resumed {
            0 => ("Scrub started:", status.started),
            resumed => ("Scrub resumed:", resumed),
        };
        let word = if status.canceled { "aborted" } else { &status.status };
        let rows = [
            (what, when::in_words(i64::try_from(when).unwrap_or(i64::MAX))),
            ("Status:", word.to_owned()),
            ("Duration:", hours(status.duration)),
        ];
        for (what, value) in rows {
            ui.line(format!("{what:<18}{value}"))?;
        }
        if self.counts {
            return every_count(counts)
                .iter()
                .try_for_each(|(name, count)| ui.line(format!("\t{name}: {count}")));
        }
        self.summary(status, counts, total, ui)
    }

    fn summary(
        self,
        status: &ScrubStatus,
        counts: &ScrubCounts,
        total: u64,
        ui: &Ui,
    ) -> Result<()> {
        let scrubbed = counts.data_bytes_scrubbed + counts.tree_bytes_scrubbed;
        let rate = scrubbed.checked_div(status.duration).unwrap_or(0);
        let mut rows = Vec::new();
        if status.status == RUNNING {
            let left = total.saturating_sub(scrubbed).checked_div(rate).unwrap_or(0);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let end = i64::try_from(now.saturating_add(left)).unwrap_or(i64::MAX);
            let part = if total > 0 { 100.0 * scrubbed as f64 / total as f64 } else { 100.0 };
            rows.push(("Time left:", hours(left)));
            rows.push(("ETA:", when::in_words(end)));
            rows.push(("Total to scrub:", self.units.show(total)));
            let bytes = self.units.show(scrubbed);
            rows.push(("Bytes scrubbed:", format!("{bytes}  ({part:.2}%)")));
        } else {
            rows.push(("Total to scrub:", self.units.show(total)));
        }
        rows.push(("Rate:", format!("{}/s", self.units.show_rate(rate))));
        // Only a volume has this count.
        let is_of_device = self.devices && !status.devices.is_empty();
        let parity = if is_of_device { 0 } else { status.parity_errors };
        let kinds = [
            ("read", counts.read_errors),
            ("super", counts.super_errors),
            ("verify", counts.verify_errors),
            ("csum", counts.csum_errors),
            ("parity", parity),
        ];
        let has_errors = kinds.iter().any(|(_, count)| *count > 0);
        let has_errors = has_errors || counts.corrected_errors + counts.uncorrectable_errors > 0;
        let kinds = kinds.iter().filter(|(_, count)| *count > 0);
        let kinds: Vec<_> = kinds.map(|(what, count)| format!("{what}={count}")).collect();
        let errors = if has_errors { kinds.join(" ") } else { "no errors found".to_owned() };
        rows.push(("Error summary:", errors));
        for (what, value) in rows {
            ui.line(format!("{what:<18}{value}"))?;
        }
        if has_errors {
            ui.line(format!("  Corrected:      {}", counts.corrected_errors))?;
            ui.line(format!("  Uncorrectable:  {}", counts.uncorrectable_errors))?;
            ui.line(format!("  Unverified:     {}", 0))?;
        }
        Ok(())
    }
}

/// Seconds as hours, minutes and seconds.
fn hours(seconds: u64) -> String {
    let (hours, rest) = (seconds / 3600, seconds % 3600);
    format!("{hours}:{:02}:{:02}", rest / 60, rest % 60)
}

/// The counts in the order and with the names of btrfs-progs. Counts of what does not happen here
/// are zero. For a volume, `last_physical` is the address of the volume that the scrub has reached.
fn every_count(counts: &ScrubCounts) -> [(&'static str, u64); 15] {
    [
        ("data_extents_scrubbed", counts.data_extents_scrubbed),
        ("tree_extents_scrubbed", counts.tree_extents_scrubbed),
        ("data_bytes_scrubbed", counts.data_bytes_scrubbed),
        ("tree_bytes_scrubbed", counts.tree_bytes_scrubbed),
        ("read_errors", counts.read_errors),
        ("csum_errors", counts.csum_errors),
        ("verify_errors", counts.verify_errors),
        ("no_csum", counts.no_csum),
        ("csum_discards", 0),
        ("super_errors", counts.super_errors),
        ("malloc_errors", 0),
        ("uncorrectable_errors", counts.uncorrectable_errors),
        ("unverified_errors", 0),
        ("corrected_errors", counts.corrected_errors),
        ("last_physical", counts.last_physical),
    ]
}
