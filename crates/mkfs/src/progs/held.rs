//! Devices that the calling program holds.
//!
//! # Place
//!
//! A program that formats a block device locks it by `flock(2)`, so that udev leaves it alone.
//! `systemd-repart` does so, and calls `mkfs.btrfs` meanwhile. That lock is held for this program.
//! A shell does so by `exec 9>IMG; flock 9`. The process that took this lock has ended, and the
//! shell and its children have the descriptor.
//!
//! # Invariants
//!
//! - **H1** A lock of another program than a caller is respected, also beside a lock of a caller.
//! - **H2** A block device that the kernel uses is refused, whichever program holds its lock. A
//!   writer claims a block device also without a lock (`block::file::F1`).
//! - **H3** The first process is no caller. It adopts each process after the end of its caller, and
//!   it may hold any lock.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use buttress_block::{Device, OpenOptions};
use buttress_remote::{Inside, OpenRequest, host_file, is_remote};

use crate::closing::locked_by;
use crate::exit::{Context, Failure, Result};
use crate::plan;

/// The longest chain of callers that is followed.
const CALLERS_MAX: usize = 64;
/// The process that adopts all others.
const FIRST: u32 = 1;

/// The calling programs, and the locks that they hold for this one.
pub(super) struct Callers {
    /// The processes that called this one, the nearest first.
    pids: Vec<u32>,
    /// The locks that callers have, by device and inode number of the locked file.
    locks: HashMap<(u64, u64), HashSet<Lock>>,
}

/// A lock as the kernel describes it: its kind, the process that took it, and the locked file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lock(Vec<String>);

impl Lock {
    /// Reads a line of `/proc/locks`, or of the description of a descriptor without its title:
    /// `1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF`. Returns `None` for another kind of lock,
    /// and for a process that only waits.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace().skip(1).peekable();
        words.next_if_eq(&"FLOCK")?;
        Some(Self(words.map(str::to_owned).collect()))
    }

    /// Whether no other program can have a lock on the file.
    fn is_alone(&self) -> bool {
        self.0.get(1).is_some_and(|kind| kind == "WRITE")
    }

    /// The locked file, in the kernel's words.
    fn place(&self) -> Option<&str> {
        self.0.get(3).map(String::as_str)
    }
}

impl Callers {
    /// Looks for the callers. Before this program has locked a file itself: also the descriptors
    /// that it got from its callers are theirs.
    pub(super) fn find() -> Self {
        let own = std::process::id();
        let pids: Vec<u32> = std::iter::successors(parent(own), |pid| parent(*pid))
            .take(CALLERS_MAX)
            .take_while(|pid| *pid != FIRST)
            .collect();
        let mut locks: HashMap<_, HashSet<Lock>> = HashMap::new();
        for pid in std::iter::once(own).chain(pids.iter().copied()) {
            for (file, lock) in locks_of(pid) {
                locks.entry(file).or_default().insert(lock);
            }
        }
        Self { pids, locks }
    }

    /// Whether callers have locked a device, and no other program has (H1).
    fn hold(&self, path: &Path) -> bool {
        let Ok(metadata) = host_file(path).metadata() else { return false };
        let Some(own) = self.locks.get(&(metadata.dev(), metadata.ino())) else {
            // The descriptors of a caller with other rights are hidden.
            return locked_by(path).is_some_and(|pid| self.pids.contains(&pid));
        };
        let places: HashSet<&str> = own.iter().filter_map(Lock::place).collect();
        let table = std::fs::read_to_string("/proc/locks").unwrap_or_default();
        let all = table.lines().filter_map(Lock::parse);
        let here = all.filter(|lock| lock.place().is_some_and(|place| places.contains(place)));
        let here: Vec<Lock> = here.collect();
        // A lock for writing has no other beside it. Of shared ones the kernel hides those of other
        // namespaces, so at least one of the table must be known.
        own.iter().any(Lock::is_alone)
            || (!here.is_empty() && here.iter().all(|lock| own.contains(lock)))
    }
}

/// Opens a device. With a size, a file is made, or made longer.
pub(super) fn open(path: &Path, size: Option<u64>, callers: &Callers) -> Result<Arc<dyn Device>> {
    let asked = OpenRequest::default();
    if is_remote(path) || !callers.hold(path) {
        return plan::open(path, size, &asked);
    }
    let how = OpenOptions { lock: false, ..OpenOptions::WRITE };
    let open = || buttress_remote::open(path, how, &asked).map_err(Failure::of_remote);
    if let Some(size) = size.filter(|_| Inside::of(path).is_none()) {
        // `flock IMG` makes an empty file. Any other file is looked at before it is changed.
        if path.metadata().is_ok_and(|metadata| metadata.len() > 0) {
            open()?;
        }
        grow(path, size).context(|| path.display().to_string())?;
    }
    Ok(open()?.device())
}

/// Makes a file longer. A device keeps its length.
fn grow(path: &Path, size: u64) -> std::io::Result<()> {
    let found = path.metadata()?;
    match found.is_file() && found.len() < size {
        true => File::options().write(true).open(path)?.set_len(size),
        false => Ok(()),
    }
}

/// The locks that the descriptors of a process have, each with its file.
fn locks_of(pid: u32) -> Vec<((u64, u64), Lock)> {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in descriptors.flatten() {
        // A descriptor may be closed meanwhile.
        let Ok(text) = std::fs::read_to_string(entry.path()) else { continue };
        let locks: Vec<Lock> =
            text.lines().filter_map(|line| Lock::parse(line.strip_prefix("lock:")?)).collect();
        let file = Path::new("/proc").join(pid.to_string()).join("fd").join(entry.file_name());
        let Some(Ok(file)) = locks.first().map(|_| file.metadata()) else { continue };
        found.extend(locks.into_iter().map(|lock| ((file.dev(), file.ino()), lock)));
    }
    found
}

/// The process that started another one. `None` for the first process, and for hidden ones.
fn parent(pid: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program stands in brackets, and can have any character.
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok().filter(|parent| *parent > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first process is no caller (H3).
    #[test]
    fn callers_are_found() {
        let callers = Callers::find();
        let own = std::process::id();
        let parent = parent(own).expect("a test has a parent");
        assert_eq!(callers.pids.first(), Some(&parent).filter(|parent| **parent != FIRST));
        assert!(!callers.pids.contains(&FIRST) && !callers.pids.contains(&own));
    }

    /// The kernel describes a lock alike in both places.
    #[test]
    fn locks_are_read() {
        let lock = Lock::parse("1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF").expect("a lock");
        assert_eq!(lock.place(), Some("fd:01:5678"));
        assert_eq!(Lock::parse("\t17: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF"), Some(lock));
        assert_eq!(Lock::parse("1: -> FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF"), None);
        assert_eq!(Lock::parse("1: POSIX  ADVISORY  WRITE 1234 fd:01:5678 0 EOF"), None);
    }
}
