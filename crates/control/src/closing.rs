//! Waits for a server that is closing a volume. The server has lost its mount and makes its last
//! commit, and umount(2) does not wait for the commit.
//!
//! # Invariants
//!
//! - **W1** Every verb opens devices through this module, even a verb that ignores locks. So a
//!   server that is about to release its lock makes no verb fail. And no verb reads the volume
//!   before the server's last commit. A verb that ignores locks finds the server by the volume's
//!   local file: it does not wait for a volume in a store.
//! - **W2** A wait ends after [`CLOSING_MAX`]. After [`SILENCE`], the verb prints the reason for
//!   the wait.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use buttress_block::{Error, OpenOptions};
use buttress_remote::{Error as RemoteError, Inside, OpenRequest, Opened, host_file, is_remote};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::exit::{Failure, Result};
use crate::sockets::{ask, folder};
use crate::{interrupted, ui};

/// The types of our mounts in the kernel's list: over an image, and over a block device.
pub const TYPES: [&str; 2] = ["fuse.buttress", "fuseblk.buttress"];
/// The longest wait of a verb for the last commit of a server.
const CLOSING_MAX: Duration = Duration::from_secs(30);
/// The time after which a wait is reported.
const SILENCE: Duration = Duration::from_secs(1);
/// How often a verb tries to open a volume if it cannot find the process with the lock.
const UNSEEN_MAX: u32 = 3;
const RETRY_AFTER: Duration = Duration::from_millis(10);
/// A `#` in the kernel's list of mounts.
const HASH: &str = "\\043";

/// A wait for one server.
struct Wait<'p> {
    path: &'p Path,
    begun: Instant,
    is_reported: bool,
}

impl<'p> Wait<'p> {
    fn new(path: &'p Path) -> Self {
        Self { path, begun: Instant::now(), is_reported: false }
    }

    fn is_over(&self) -> bool {
        self.begun.elapsed() >= CLOSING_MAX
    }

    /// Waits a moment. Reports the wait once (W2).
    fn step(&mut self, pid: Option<u32>) {
        if let Some(pid) = pid.filter(|_| !self.is_reported && self.begun.elapsed() >= SILENCE) {
            let path = self.path.display();
            ui::note(format!("{path}: waiting for process {pid} to finish writing"));
            self.is_reported = true;
        }
        std::thread::sleep(RETRY_AFTER);
    }
}

/// Opens a device. If the server of its last mount is making its last commit, waits for that commit
/// (W1).
///
/// # Errors
///
/// The errors of opening the device.
pub fn open_device(path: &Path, how: OpenOptions) -> Result<Opened> {
    open_asked(path, how, &OpenRequest::default())
}

/// Opens a device as [`open_device`] does. `asked` says how a volume in a store is opened.
pub fn open_asked(path: &Path, how: OpenOptions, asked: &OpenRequest) -> Result<Opened> {
    let open = || buttress_remote::open(path, how, asked);
    when_free(path, how.lock, || match how.write {
        true => interrupted::opening(path, open),
        false => open(),
    })
}

/// Returns the full name of a volume, by which other processes know it.
pub fn full_name(path: &Path) -> std::io::Result<PathBuf> {
    match Inside::of(path) {
        Some(inside) => inside.full_name(),
        None if is_remote(path) => Ok(path.to_owned()),
        None => path.canonicalize(),
    }
}

/// Opens a volume by `open`, once a server that is closing the volume has finished.
pub fn when_free(
    path: &Path,
    locks: bool,
    open: impl Fn() -> buttress_remote::Result<Opened>,
) -> Result<Opened> {
    let mut wait = Wait::new(path);
    if !locks {
        until_closed(path);
    }
    let mut unseen = 0;
    loop {
        match open() {
            Err(RemoteError::Busy { here: true, pid, .. })
                if is_closing(pid, path) && !wait.is_over() =>
            {
                wait.step(Some(pid));
            }
            Err(RemoteError::Block(error @ (Error::Locked { .. } | Error::Busy { .. }))) => {
                let pid = locked_by(path);
                // The process with the lock may have ended before it was looked up, so a few
                // attempts follow. After these attempts, the verb waits no longer for a process
                // that it cannot see.
                unseen += u32::from(pid.is_none());
                let waits = pid.map_or(unseen < UNSEEN_MAX, |pid| is_closing(pid, path));
                if !waits || wait.is_over() {
                    return Err(Failure::of_device(error));
                }
                wait.step(pid);
            }
            opened => {
                let opened = opened.map_err(Failure::of_remote)?;
                if let Some(lost) = opened.discarded() {
                    ui::note(format!("{}: a local log is given up: {lost}", path.display()));
                }
                interrupted::watch(&opened);
                return Ok(opened);
            }
        }
    }
}

/// Returns the process that has locked a volume, or the disk with the volume. `None` if that
/// process is not visible.
#[must_use]
pub fn locked_by(path: &Path) -> Option<u32> {
    buttress_block::locked_by(&host_file(path))
}

/// Waits until no server is closing the volume on `path` (W1, W2).
pub fn until_closed(path: &Path) {
    let mut wait = Wait::new(path);
    while let Some(pid) = locked_by(path) {
        if !is_closing(pid, path) || wait.is_over() {
            return;
        }
        wait.step(Some(pid));
    }
}

/// Returns whether a process will soon release the lock, because it is a server that has lost its
/// mount. Also returns true for a process that has ended. Returns false for a process that is only
/// hidden from this user (`hidepid`).
fn is_closing(pid: u32, image: &Path) -> bool {
    let Ok(name) = std::fs::read_to_string(format!("/proc/{pid}/comm")) else {
        let raw = pid.try_into().ok().and_then(Pid::from_raw);
        return raw.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH));
    };
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mounts")).unwrap_or_default();
    let image = full_name(image).unwrap_or_else(|_| image.to_owned());
    // The source of a mount is the first device of its volume, or a part of it. The server of the
    // mount has that device open.
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let open = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let listed = |path: PathBuf| {
        let path = path.to_string_lossy().replace('\\', "\\134");
        path.replace(' ', "\\040").replace('#', HASH)
    };
    let sources: HashSet<String> = open.chain([image]).map(listed).collect();
    let is_mounted = mounts.lines().any(|line| {
        let mut words = line.split(' ');
        let is_part = |word: &str| {
            let mut disks = [HASH, "@"].iter().filter_map(|mark| word.rsplit_once(mark));
            disks.any(|(disk, _)| sources.contains(disk))
        };
        let is_source = words.next().is_some_and(|word| sources.contains(word) || is_part(word));
        is_source && words.nth(1).is_some_and(|kind| TYPES.contains(&kind))
    });
    // A verb that works on the image directly has no mount either. Such a verb is not closing, so
    // it must not count.
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let serves_mount = words.split(|byte| *byte == 0).any(|word| word == b"mount");
    // The device that is the source of a mount may have left the volume. Then the server tells.
    name.starts_with("buttress") && serves_mount && !is_mounted && !says_that_it_serves(pid)
}

/// Whether the server of this user with a process number answers that it has a mount.
fn says_that_it_serves(pid: u32) -> bool {
    let socket = folder().map(|folder| folder.join(format!("{pid}.sock")));
    let answer = socket.and_then(|socket| ask(&socket, "stats", Some(SILENCE)));
    let answer = answer.and_then(|text| Ok(serde_json::from_str::<serde_json::Value>(&text)?));
    answer.is_ok_and(|answer| answer["is_closing"] == false)
}
