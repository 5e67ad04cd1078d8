//! `buttress scrub`: reads every copy of everything on a volume, and repairs bad copies.
//!
//! The progress is kept in a file named after the volume's identifier. So an interrupted scrub can
//! continue where it ended, and `status` can report the progress.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::background;
use crate::client;
use crate::commands::filesystem::resize::cancel;
use crate::execute::ScrubStatus;
use crate::exit::{Context, Exit, Result};
use crate::image::Devices;
use crate::order::Order;
use crate::scrubs;
use crate::size::human;
use crate::ui::{Tone, Ui};

/// The actions on a scrub.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Start a scrub of a volume from its beginning.
    Start(Args),
    /// Resume an interrupted scrub.
    Resume(Args),
    /// Show the progress of the running scrub, or the result of the last one.
    Status(Args),
    /// Stop a running scrub. `scrub resume` continues it.
    Cancel(Args),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image or block device of the volume, or a directory where this user has mounted it.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    #[command(flatten)]
    devices: Devices,
    /// Only check, and repair nothing.
    #[arg(long, short = 'r')]
    readonly: bool,
    /// Make each block group read-only while it is checked, if others have room for the writers.
    /// Also compare the copies of data without checksums.
    #[arg(long)]
    hold_groups: bool,
    /// Continue in the background, and return when the work has begun.
    #[arg(long)]
    background: bool,
    /// Directory for the progress file. The default is /var/lib/buttress, or a directory of the
    /// user.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

pub(crate) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    match verb {
        Verb::Start(args) => start(&args, false, ui),
        Verb::Resume(args) => start(&args, true, ui),
        Verb::Status(args) => status(&args, ui),
        Verb::Cancel(Args { image, devices, .. }) => {
            cancel(&Order::ScrubCancel, "scrub", &image, &devices, ui)
        }
    }
}

fn start(args: &Args, resume: bool, ui: &Ui) -> Result<Exit> {
    if args.background
        && let Some(pid) = background::begin(ui)?
    {
        return begun(&args.image, "scrub", pid, ui);
    }
    let state = args.state.as_deref().map(std::path::absolute).transpose();
    let state = state.context(|| "the folder of --state")?;
    let (read_only, hold_groups) = (args.readonly, args.hold_groups);
    let order = Order::Scrub { resume, read_only, hold_groups, state };
    let done = client::run(&order, &args.image, &args.devices, "scrub", ui)?;
    let status: ScrubStatus = serde_json::from_value(done).context(|| "the answer")?;
    show(&status, ui)?;
    Ok(match (status.status == "finished", status.uncorrectable_errors) {
        (_, 1..) => Exit::Corrupt,
        (false, _) => Exit::Failure,
        (true, _) if args.readonly && status.errors() > 0 => Exit::Corrupt,
        (true, _) => Exit::Success,
    })
}

/// Says that work has begun in the background.
pub(crate) fn begun(place: &Path, what: &str, pid: u32, ui: &Ui) -> Result<Exit> {
    match ui.json() {
        true => ui.document(&json!({ "pid": pid }))?,
        false => ui.line(format!("{what} started on {} (pid={pid})", place.display()))?,
    }
    Ok(Exit::Success)
}

fn status(args: &Args, ui: &Ui) -> Result<Exit> {
    let (uuid, status) = scrubs::last(&args.image, &args.devices, args.state.as_deref())?;
    match status {
        Some(status) => show(&status, ui)?,
        // The document has the same form as the document of `balance status`.
        None if ui.json() => ui.document(&json!({ "uuid": uuid, "status": "none" }))?,
        None => ui.line(format!("{}: no scrub is known of it", args.image.display()))?,
    }
    Ok(Exit::Success)
}

fn show(status: &ScrubStatus, ui: &Ui) -> Result<()> {
    if ui.json() {
        return ui.document(status);
    }
    let scrubbed = status.data_bytes_scrubbed + status.tree_bytes_scrubbed;
    let rate = scrubbed / status.duration.max(1);
    let summary = if status.errors() == 0 {
        ui.tint(Tone::Good, "no errors found")
    } else {
        let counts = [
            ("read", status.read_errors),
            ("super", status.super_errors),
            ("verify", status.verify_errors),
            ("csum", status.csum_errors),
            ("parity", status.parity_errors),
        ];
        let counts = counts.iter().filter(|(_, count)| *count > 0);
        let list: Vec<_> = counts.map(|(what, count)| format!("{what}={count}")).collect();
        ui.tint(Tone::Bad, &list.join(" "))
    };
    let rows = [
        ("UUID:", status.uuid.clone()),
        ("Status:", status.status.clone()),
        ("Duration:", format!("{} s", status.duration)),
        ("Total to scrub:", human(status.bytes_total)),
        ("Scrubbed:", format!("{} of all copies", human(scrubbed))),
        ("Rate:", format!("{}/s", human(rate))),
        ("Error summary:", summary),
    ];
    for (what, value) in rows {
        ui.line(format!("{what:<18}{value}"))?;
    }
    if status.groups_held > 0 || status.no_csum_unlike > 0 {
        ui.line(format!("  Groups held:    {}", status.groups_held))?;
        ui.line(format!("  Copies unlike:  {} sectors without checksums", status.no_csum_unlike))?;
    }
    if status.errors() > 0 {
        ui.line(format!("  Corrected:      {}", status.corrected_errors))?;
        ui.line(format!("  Uncorrectable:  {}", status.uncorrectable_errors))?;
    }
    Ok(())
}
