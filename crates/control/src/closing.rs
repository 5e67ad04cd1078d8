//! Waits for a server that is closing a volume: it has lost its mount and is writing its last,
//! and umount(2) does not wait for that.
//!
//! # Invariants
//!
//! - **W1** Every verb opens devices through this, those that look past a lock too: no verb is
//!   refused because of a server that is about to let go, and none sees what the volume was
//!   before the last commit.
//! - **W2** A wait ends after [`CLOSING_MAX`], and after [`SILENCE`] it says what it waits for.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use buttress_block::{Error, OpenOptions};
use buttress_remote::{Error as RemoteError, Opened, is_remote};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::exit::{Failure, Result};
use crate::ui;

/// The types of our mounts in the kernel's list: over an image, and over a block device.
pub const TYPES: [&str; 2] = ["fuse.buttress", "fuseblk.buttress"];
/// How long a verb waits for a server to write its last.
const CLOSING_MAX: Duration = Duration::from_secs(30);
/// How long a wait says nothing.
const SILENCE: Duration = Duration::from_secs(1);
/// How often a holder may be in the way that is not found.
const UNSEEN_MAX: u32 = 3;
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// A wait for one server.
struct Wait<'p> {
    path: &'p Path,
    begun: Instant,
    is_told: bool,
}

impl<'p> Wait<'p> {
    fn new(path: &'p Path) -> Self {
        Self { path, begun: Instant::now(), is_told: false }
    }

    fn is_over(&self) -> bool {
        self.begun.elapsed() >= CLOSING_MAX
    }

    /// Waits a moment; says once what for (W2).
    fn step(&mut self, pid: Option<u32>) {
        if let Some(pid) = pid.filter(|_| !self.is_told && self.begun.elapsed() >= SILENCE) {
            let path = self.path.display();
            ui::note(format!("{path}: waiting for process {pid} to finish writing"));
            self.is_told = true;
        }
        std::thread::sleep(RETRY_AFTER);
    }
}

/// Opens a device, and waits if the mount before is only writing its last (W1).
///
/// # Errors
///
/// Those of opening it.
pub fn open_device(path: &Path, how: OpenOptions) -> Result<Opened> {
    open_taking(path, how, false)
}

/// As [`open_device`]; `takeover` takes a volume in a store from a writer that seems to be alive.
pub fn open_taking(path: &Path, how: OpenOptions, takeover: bool) -> Result<Opened> {
    when_free(path, how.lock, || buttress_remote::open(path, how, takeover))
}

/// The whole name of a volume, which other processes know it by.
pub fn full_name(path: &Path) -> std::io::Result<PathBuf> {
    if is_remote(path) { Ok(path.to_owned()) } else { path.canonicalize() }
}

/// Opens a volume by `open`, as soon as a server that is closing it has done so.
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
                let pid = buttress_block::locked_by(path);
                // A holder may be gone when it is looked for. One that cannot be seen from here
                // is not waited for.
                unseen += u32::from(pid.is_none());
                let waits = pid.map_or(unseen < UNSEEN_MAX, |pid| is_closing(pid, path));
                if !waits || wait.is_over() {
                    return Err(Failure::of_device(error));
                }
                wait.step(pid);
            }
            opened => return opened.map_err(Failure::of_remote),
        }
    }
}

/// Waits until no server is closing the volume on `path` (W1, W2).
pub fn until_closed(path: &Path) {
    let mut wait = Wait::new(path);
    while let Some(pid) = buttress_block::locked_by(path) {
        if !is_closing(pid, path) || wait.is_over() {
            return;
        }
        wait.step(Some(pid));
    }
}

/// Says whether a process is one of ours that has lost its mount already: then it will let go
/// soon. So will one that is gone; one that is only hidden from us (`hidepid`) is there.
fn is_closing(pid: u32, image: &Path) -> bool {
    let Ok(name) = std::fs::read_to_string(format!("/proc/{pid}/comm")) else {
        let raw = pid.try_into().ok().and_then(Pid::from_raw);
        return raw.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH));
    };
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mounts")).unwrap_or_default();
    let image = image.canonicalize().unwrap_or_else(|_| image.to_owned());
    // A mount is named by the first device of a volume, which its server has open.
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let open = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let listed =
        |path: PathBuf| path.to_string_lossy().replace('\\', "\\134").replace(' ', "\\040");
    let sources: HashSet<String> = open.chain([image]).map(listed).collect();
    let is_mounted = mounts.lines().any(|line| {
        let mut words = line.split(' ');
        let is_source = words.next().is_some_and(|word| sources.contains(word));
        is_source && words.nth(1).is_some_and(|kind| TYPES.contains(&kind))
    });
    // A verb that works on the image itself has no mount either, and answers for the volume.
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let serves_mount = words.split(|byte| *byte == 0).any(|word| word == b"mount");
    name.starts_with("buttress") && serves_mount && !is_mounted
}
