//! `buttress scrub`: reads everything of a volume, every copy of it, and mends what is wrong.
//!
//! How far it came is kept in a file named by the volume's identifier, so that one that was interrupted
//! goes on where it was, and `status` can tell.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use buttress_fs::{Filesystem, ScrubOptions, ScrubProgress};
use buttress_volume::{Uuid, Volume};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::live;
use crate::order::{self, Order, Step, Watch};
use crate::size::human;
use crate::ui::{Tone, Ui};

/// How often the file that tells how far it is gets written.
const NOTE_EVERY: Duration = Duration::from_secs(2);

/// What to do about a scrub.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Scrub a volume from its beginning.
    Start(Args),
    /// Go on with a scrub that was interrupted.
    Resume(Args),
    /// Tell what the last scrub of a volume found, or how far it is.
    Status(Args),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The volume, or where this user has it mounted.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    #[command(flatten)]
    devices: Devices,
    /// Only look: mend nothing.
    #[arg(long, short = 'r')]
    readonly: bool,
    /// Hold each block group read-only while it is looked at, where the others have room for its writers,
    /// and tell whether copies of what has no checksums are alike.
    #[arg(long)]
    hold_groups: bool,
    /// Where to keep how far it is; /var/lib/buttress unless given, or a folder of the user's.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

/// What is kept, and what scripts read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Status {
    uuid: String,
    /// Seconds since 1970.
    started: u64,
    /// Seconds that it ran.
    duration: u64,
    /// running, finished or interrupted.
    status: String,
    read_only: bool,
    data_extents_scrubbed: u64,
    tree_extents_scrubbed: u64,
    data_bytes_scrubbed: u64,
    tree_bytes_scrubbed: u64,
    read_errors: u64,
    csum_errors: u64,
    verify_errors: u64,
    no_csum: u64,
    #[serde(default)]
    no_csum_unlike: u64,
    #[serde(default)]
    groups_held: u64,
    super_errors: u64,
    #[serde(default)]
    parity_errors: u64,
    uncorrectable_errors: u64,
    corrected_errors: u64,
    last_logical: u64,
    bytes_done: u64,
    bytes_total: u64,
}

impl Status {
    /// The counts of one run, added to those of the runs before that it goes on from.
    fn with(&self, progress: &ScrubProgress) -> Self {
        Self {
            data_extents_scrubbed: self.data_extents_scrubbed + progress.data_extents_scrubbed,
            tree_extents_scrubbed: self.tree_extents_scrubbed + progress.tree_extents_scrubbed,
            data_bytes_scrubbed: self.data_bytes_scrubbed + progress.data_bytes_scrubbed,
            tree_bytes_scrubbed: self.tree_bytes_scrubbed + progress.tree_bytes_scrubbed,
            read_errors: self.read_errors + progress.read_errors,
            csum_errors: self.csum_errors + progress.csum_errors,
            verify_errors: self.verify_errors + progress.verify_errors,
            no_csum: self.no_csum + progress.no_csum,
            no_csum_unlike: self.no_csum_unlike + progress.no_csum_unlike,
            groups_held: self.groups_held + progress.groups_held,
            super_errors: self.super_errors + progress.super_errors,
            parity_errors: self.parity_errors + progress.parity_errors,
            uncorrectable_errors: self.uncorrectable_errors + progress.uncorrectable_errors,
            corrected_errors: self.corrected_errors + progress.corrected_errors,
            last_logical: progress.position.0,
            bytes_done: progress.done,
            bytes_total: progress.total,
            ..self.clone()
        }
    }

    fn errors(&self) -> u64 {
        let copies = self.read_errors + self.csum_errors + self.verify_errors;
        copies + self.super_errors + self.parity_errors
    }
}

pub(crate) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    match verb {
        Verb::Start(args) => start(&args, false, ui),
        Verb::Resume(args) => start(&args, true, ui),
        Verb::Status(args) => status(&args, ui),
    }
}

fn start(args: &Args, resume: bool, ui: &Ui) -> Result<Exit> {
    let state = args.state.as_deref().map(std::path::absolute).transpose();
    let state = state.context(|| "the folder of --state")?;
    let (read_only, hold_groups) = (args.readonly, args.hold_groups);
    let order = Order::Scrub { resume, read_only, hold_groups, state };
    let done = order::run(&order, &args.image, &args.devices, "scrub", ui)?;
    let status: Status = serde_json::from_value(done).context(|| "the answer")?;
    show(&status, ui)?;
    Ok(match (status.status == "finished", status.uncorrectable_errors) {
        (_, 1..) => Exit::Corrupt,
        (false, _) => Exit::Failure,
        (true, _) if args.readonly && status.errors() > 0 => Exit::Corrupt,
        (true, _) => Exit::Success,
    })
}

/// Scrubs a volume that is open: how, whether from where an earlier one stopped, and where it notes how far it is.
pub(crate) fn carry_out(
    fs: &Filesystem,
    how: ScrubOptions,
    (resume, state): (bool, Option<&Path>),
    name: &str,
    watch: Watch<'_>,
) -> Result<Value> {
    let uuid = Uuid(fs.info().context(|| name)?.superblock.fsid).to_string();
    let file = state_file(state, &uuid);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let fresh = Status { uuid, started: now, ..Status::default() };
    let before = if resume { read(&file) } else { None };
    let before = before.filter(|status| status.status != "finished");
    if resume && before.is_none() {
        let what = format!("{name}: no scrub was interrupted; `scrub start` begins one");
        return Err(Failure::new(Exit::Usage, what));
    }
    let before = before.unwrap_or(fresh);
    let begun = Instant::now();
    let read_only = how.read_only;
    let how = ScrubOptions { from: buttress_format::Logical(before.last_logical), ..how };
    let mut noted = Instant::now();
    let mut told = |progress: &ScrubProgress| {
        if noted.elapsed() >= NOTE_EVERY {
            noted = Instant::now();
            note(&file, &running(before.with(progress), &before, begun, "running", read_only));
        }
        let text = if progress.has_errors() { "errors found" } else { "" };
        watch(&Step { done: progress.done, total: progress.total, text: text.to_owned() })
    };
    let (progress, complete) = fs.scrub(how, &mut told).context(|| name)?;
    let word = if complete { "finished" } else { "interrupted" };
    let status = running(before.with(&progress), &before, begun, word, read_only);
    note(&file, &status);
    serde_json::to_value(&status).context(|| "output")
}

fn running(mut status: Status, before: &Status, begun: Instant, word: &str, ro: bool) -> Status {
    status.duration = before.duration + begun.elapsed().as_secs();
    word.clone_into(&mut status.status);
    status.read_only = ro;
    status
}

fn status(args: &Args, ui: &Ui) -> Result<Exit> {
    let name = args.image.display().to_string();
    // A mount's image says the same as the mount.
    let found = live::find(&args.image)?;
    let image = found.map_or_else(|| args.image.clone(), |(_, answer)| answer.subject.image);
    let devices = image::open_devices(&image, &args.devices, Access::Peek)?;
    let superblock = Volume::read_superblock(&*devices[0]).context(|| &name)?;
    let uuid = Uuid(superblock.fsid).to_string();
    match read(&state_file(args.state.as_deref(), &uuid)) {
        Some(status) => show(&status, ui)?,
        // As `balance status` has it.
        None if ui.json() => ui.document(&json!({ "uuid": uuid, "status": "none" }))?,
        None => ui.line(format!("{name}: no scrub is known of it"))?,
    }
    Ok(Exit::Success)
}

fn show(status: &Status, ui: &Ui) -> Result<()> {
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

/// Where the state of a volume's scrub is kept: where the system keeps such things if it can be written,
/// else where the user does.
fn state_file(state: Option<&Path>, uuid: &str) -> PathBuf {
    let name = format!("scrub.status.{uuid}");
    if let Some(dir) = state {
        return dir.join(name);
    }
    let system = PathBuf::from("/var/lib/buttress");
    if rustix::process::geteuid().is_root() {
        return system.join(name);
    }
    let home = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state")));
    home.map_or(system, |home| home.join("buttress")).join(name)
}

fn read(file: &Path) -> Option<Status> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// A scrub goes on when nobody can note how far it is.
fn note(file: &Path, status: &Status) {
    let written = || -> std::io::Result<()> {
        if let Some(dir) = file.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let beside = file.with_extension("new");
        std::fs::write(&beside, serde_json::to_vec_pretty(status)?)?;
        std::fs::rename(beside, file)
    };
    if let Err(error) = written() {
        tracing::debug!(file = %file.display(), %error, "the scrub's state was not kept");
    }
}
