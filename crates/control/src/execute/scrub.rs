//! Scrubs a volume and keeps its progress in a file, for `status` and for a later `resume`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use buttress_format::DeviceId;
use buttress_fs::{DeviceCounts, Filesystem, ScrubOptions, ScrubProgress};
use buttress_volume::Uuid;
use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::exit::{Context, Exit, Failure, Result};
use crate::names;
use crate::order::{Step, Watch};

/// How often the state file is written.
const NOTE_EVERY: Duration = Duration::from_secs(2);

/// The status of a scrub that runs.
const RUNNING: &str = "running";

/// The state of a scrub, as written to the state file and printed as JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The volume's identifier.
    pub uuid: String,
    /// Seconds since 1970.
    pub started: u64,
    /// Seconds since 1970 at which it was resumed last. Zero if it never was.
    #[serde(default)]
    pub resumed: u64,
    /// Seconds that it ran.
    pub duration: u64,
    /// running, finished or interrupted.
    pub status: String,
    /// Whether it was interrupted because a user stopped it.
    #[serde(default)]
    pub canceled: bool,
    /// The process that scrubs, and when that process began, in the unit of `/proc`.
    #[serde(default)]
    process: (i32, u64),
    /// Whether the scrub was read-only, without repairs.
    pub read_only: bool,
    /// Extents of data that were read.
    pub data_extents_scrubbed: u64,
    /// Nodes that were read.
    pub tree_extents_scrubbed: u64,
    /// Bytes of data that were read.
    pub data_bytes_scrubbed: u64,
    /// Bytes of nodes that were read.
    pub tree_bytes_scrubbed: u64,
    /// Sectors that a device could not read.
    pub read_errors: u64,
    /// Sectors of data with a wrong checksum.
    pub csum_errors: u64,
    /// Nodes with wrong contents.
    pub verify_errors: u64,
    /// Sectors of data that have no checksum.
    pub no_csum: u64,
    /// Sectors without a checksum that have differing copies.
    #[serde(default)]
    pub no_csum_unlike: u64,
    /// Block groups that the scrub held read-only.
    #[serde(default)]
    pub groups_held: u64,
    /// Superblock copies with errors.
    pub super_errors: u64,
    /// Rows with wrong parity.
    #[serde(default)]
    pub parity_errors: u64,
    /// Errors that could not be repaired, because no copy is good.
    pub uncorrectable_errors: u64,
    /// Errors that were repaired.
    pub corrected_errors: u64,
    /// Logical address that the scrub has reached.
    pub last_logical: u64,
    /// Bytes that were looked at.
    pub bytes_done: u64,
    /// Bytes to look at in all.
    pub bytes_total: u64,
    /// The same, with every copy counted.
    #[serde(default)]
    pub bytes_total_copies: u64,
    /// The devices of the volume.
    #[serde(default)]
    pub devices: Vec<OnDevice>,
}

/// What a scrub found on one device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OnDevice {
    /// The number of the device.
    pub devid: u64,
    /// Its name.
    pub device: String,
    /// Bytes of the device that block groups take.
    pub bytes_used: u64,
    /// What was found.
    #[serde(flatten, with = "Counts")]
    pub counts: DeviceCounts,
}

/// The fields of [`DeviceCounts`] in JSON.
#[derive(Serialize, Deserialize)]
#[serde(remote = "DeviceCounts")]
struct Counts {
    data_extents_scrubbed: u64,
    tree_extents_scrubbed: u64,
    data_bytes_scrubbed: u64,
    tree_bytes_scrubbed: u64,
    read_errors: u64,
    csum_errors: u64,
    verify_errors: u64,
    no_csum: u64,
    super_errors: u64,
    uncorrectable_errors: u64,
    corrected_errors: u64,
    last_physical: u64,
}

impl OnDevice {
    /// The same device with the counts of one run added.
    fn with(&self, more: &DeviceCounts) -> Self {
        let mut sum = self.clone();
        sum.counts.sum(more);
        sum
    }
}

impl Status {
    /// Adds the counts of one run to the counts of the runs that it resumes.
    fn with(&self, progress: &ScrubProgress) -> Self {
        let found = |device: &OnDevice| {
            progress.devices.get(&DeviceId(device.devid)).copied().unwrap_or_default()
        };
        let data_bytes = self.data_bytes_scrubbed + progress.data_bytes_scrubbed;
        let tree_bytes = self.tree_bytes_scrubbed + progress.tree_bytes_scrubbed;
        // A run that reaches the end counts its own bytes as the total.
        let is_over = progress.total == progress.done;
        let total_copies = if is_over { data_bytes + tree_bytes } else { progress.total_copies };
        Self {
            data_extents_scrubbed: self.data_extents_scrubbed + progress.data_extents_scrubbed,
            tree_extents_scrubbed: self.tree_extents_scrubbed + progress.tree_extents_scrubbed,
            data_bytes_scrubbed: data_bytes,
            tree_bytes_scrubbed: tree_bytes,
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
            bytes_total_copies: total_copies,
            devices: self.devices.iter().map(|device| device.with(&found(device))).collect(),
            ..self.clone()
        }
    }

    /// Whether the process that scrubs is still there. A process that was killed leaves a file that
    /// says that it runs.
    fn is_alive(&self) -> bool {
        let (pid, began) = self.process;
        let there = Pid::from_raw(pid).map(test_kill_process);
        matches!(there, Some(Ok(()) | Err(Errno::PERM)))
            && start_of(pid).is_none_or(|found| found == began)
    }

    /// Errors of every kind.
    pub fn errors(&self) -> u64 {
        let copies = self.read_errors + self.csum_errors + self.verify_errors;
        copies + self.super_errors + self.parity_errors
    }
}

/// Scrubs an open volume. `how` has the options, `resume` continues an interrupted scrub, and
/// `state` names the folder of the state file.
pub(super) fn carry_out(
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
    let mut before = before.unwrap_or(fresh);
    if resume {
        (before.resumed, before.canceled) = (now, false);
    }
    let pid = getpid().as_raw_nonzero().get();
    before.process = (pid, start_of(pid).unwrap_or(0));
    before.devices = devices(fs, &before.devices);
    let begun = Instant::now();
    let read_only = how.read_only;
    let how = ScrubOptions { from: buttress_format::Logical(before.last_logical), ..how };
    note(&file, &running(before.clone(), &before, begun, RUNNING, read_only));
    let mut noted = Instant::now();
    let mut told = |progress: &ScrubProgress| {
        if noted.elapsed() >= NOTE_EVERY {
            noted = Instant::now();
            note(&file, &running(before.with(progress), &before, begun, RUNNING, read_only));
        }
        let text = if progress.has_errors() { "errors found" } else { "" };
        watch(&Step { done: progress.done, total: progress.total, text: text.to_owned() })
    };
    let done = fs.scrub(how, &mut told).context(|| name);
    let (progress, complete) = match done {
        Ok(done) => done,
        Err(error) => {
            let last = read(&file).unwrap_or_else(|| before.clone());
            note(&file, &running(last, &before, begun, "interrupted", read_only));
            return Err(error);
        }
    };
    let word = if complete { "finished" } else { "interrupted" };
    let mut status = running(before.with(&progress), &before, begun, word, read_only);
    status.canceled = !complete;
    note(&file, &status);
    serde_json::to_value(&status).context(|| "output")
}

/// The identifier of an open volume, and the status of its last scrub. `state` is as for
/// [`carry_out`].
pub(super) fn status_of(fs: &Filesystem, state: Option<&Path>, name: &str) -> Result<Value> {
    let uuid = Uuid(fs.info().context(|| name)?.superblock.fsid).to_string();
    let status = read(&state_file(state, &uuid));
    Ok(json!({ "uuid": uuid, "status": status }))
}

/// The devices of a volume, with the counts of the runs that are resumed.
fn devices(fs: &Filesystem, before: &[OnDevice]) -> Vec<OnDevice> {
    let devices = fs.devices().into_iter().map(|device| {
        let known = before.iter().find(|known| known.devid == device.id.0);
        OnDevice {
            devid: device.id.0,
            device: device.name,
            bytes_used: device.item.bytes_used,
            ..known.cloned().unwrap_or_default()
        }
    });
    devices.collect()
}

/// When a process began, in the unit of `/proc`. `None` if this cannot be seen.
fn start_of(pid: i32) -> Option<u64> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, may have spaces.
    line.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn running(mut status: Status, before: &Status, begun: Instant, word: &str, ro: bool) -> Status {
    status.duration = before.duration + begun.elapsed().as_secs();
    word.clone_into(&mut status.status);
    status.read_only = ro;
    status
}

/// Returns the path of the state file of a volume's scrub. The file is in the folder `state`, if
/// there is one. Otherwise it is in `/var/lib/buttress` for root, and in the state folder of the
/// user for all others.
pub fn state_file(state: Option<&Path>, uuid: &str) -> PathBuf {
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

/// Reads the state file of a scrub; `None` if it is missing or cannot be parsed.
pub fn read(file: &Path) -> Option<Status> {
    let mut status: Status = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    if status.status == RUNNING && !status.is_alive() {
        "interrupted".clone_into(&mut status.status);
    }
    Some(status)
}

/// Writes the state file. The scrub continues if this fails.
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
        tracing::debug!(file = names::of_path(file), %error, "the scrub's state was not kept");
    }
}
