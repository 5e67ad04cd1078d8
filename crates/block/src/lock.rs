//! Locks on open devices: one writer alone, or any number of readers.
//!
//! # Place
//!
//! The lock is `flock(2)` on the open file. It ends when the device is closed, or with the process.
//! Two descriptors of one process exclude each other like those of two processes. A refusal does
//! not say which process holds the lock, so this module looks the process up in `/proc/locks`.
//!
//! A loop device over the file takes no lock, and no claim if it lies over a block device.
//! `check_not_looped` checks for such a loop device.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use buttress_base::text;

use crate::error::Error;

const RETRIES_MAX: u32 = 10;
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// Locks `file` for as long as it is open: exclusively for a writer, shared for a reader.
pub(crate) fn lock(file: &File, path: &Path, alone: bool) -> Result<(), Error> {
    let operation = if alone {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    let mut tries_left = RETRIES_MAX;
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            // A forked child may keep the lock for an instant, before its exec. Also udev locks new
            // block devices while it examines them.
            Err(Errno::WOULDBLOCK) if tries_left > 0 => {
                tries_left -= 1;
                std::thread::sleep(RETRY_AFTER);
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(Error::Locked { path: path.to_owned(), pid: holder(file) });
            }
            // Some network filesystems have no locks. Without locks this program cannot exclude a
            // second writer, but it still allows writes.
            Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => {
                tracing::warn!(path = text::of_path(path), "this filesystem has no locks");
                return Ok(());
            }
            Err(errno) => {
                return Err(Error::Open { path: path.to_owned(), source: io::Error::from(errno) });
            }
        }
    }
}

/// Releases the lock explicitly. Closing the descriptor is not enough: a forked child may have a
/// copy of the descriptor until its exec, and the lock lasts until the last copy is closed. Until
/// then other programs would be refused.
pub(crate) fn unlock(file: &File) {
    // If this fails, closing the descriptor releases the lock.
    let _ = flock(file, FlockOperation::Unlock);
}

/// A file of this program that this process alone has locked. The lock shows which process uses a
/// folder.
///
/// Every lock on such a file is taken through this type: dropping a bare `File` may leave the file
/// locked (see [`unlock`]).
#[derive(Debug)]
pub struct LockFile {
    file: File,
}

impl LockFile {
    /// Locks the file. Returns `None` if another descriptor has the lock.
    ///
    /// # Errors
    ///
    /// The filesystem has no locks, or refuses this one.
    pub fn try_lock(file: File) -> io::Result<Option<Self>> {
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self { file })),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Locks the file, and waits while another descriptor has the lock.
    ///
    /// # Errors
    ///
    /// The filesystem has no locks, or refuses this one.
    pub fn wait(file: File) -> io::Result<Self> {
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
        Ok(Self { file })
    }

    /// Unlocks the file before this value is dropped.
    pub fn release(&self) {
        unlock(&self.file);
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        self.release();
    }
}

/// Checks that no loop device uses a regular file. The kernel may have the loop device mounted, and
/// the loop device takes no lock.
pub(crate) fn check_not_looped(file: &File, path: &Path) -> Result<(), Error> {
    let (Ok(metadata), Ok(devices)) = (file.metadata(), std::fs::read_dir("/sys/block")) else {
        return Ok(());
    };
    for device in devices.flatten() {
        let Ok(backing) = std::fs::read_to_string(device.path().join("loop/backing_file")) else {
            continue;
        };
        let Ok(backing) = std::fs::metadata(backing.trim_end_matches('\n')) else { continue };
        let is_same = match metadata.file_type().is_block_device() {
            true => backing.file_type().is_block_device() && backing.rdev() == metadata.rdev(),
            false => (backing.dev(), backing.ino()) == (metadata.dev(), metadata.ino()),
        };
        if is_same {
            let by = Path::new("/dev").join(device.file_name());
            return Err(Error::Looped { path: path.to_owned(), by });
        }
    }
    Ok(())
}

/// The process that has locked the device at `path`; `None` if no process has locked it, or if the
/// process is not visible.
#[must_use]
pub fn locked_by(path: &Path) -> Option<u32> {
    holder_of(&std::fs::metadata(path).ok()?)
}

/// Looks up which process holds a lock on the inode behind `file`.
fn holder(file: &File) -> Option<u32> {
    holder_of(&file.metadata().ok()?)
}

fn holder_of(metadata: &std::fs::Metadata) -> Option<u32> {
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    let device = metadata.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let inode = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    holder_in(&table, &inode)
}

/// Finds the first holder of a lock on `inode` in the text of `/proc/locks`.
///
/// A line reads `1: FLOCK ADVISORY WRITE 1234 fd:01:5678 0 EOF`. A line of a waiter has an arrow
/// after its number and is skipped. A holder outside of this pid namespace appears as 0 or less.
fn holder_in(table: &str, inode: &str) -> Option<u32> {
    table.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        if fields.next()? == "->" {
            return None;
        }
        let pid = fields.nth(2)?;
        let at = fields.next()?;
        (at == inode).then(|| pid.parse().ok().filter(|&pid| pid > 0)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lock ends with its value, even while a forked child still has a copy of the descriptor.
    #[test]
    fn a_lock_ends_beside_a_copy_of_its_file() {
        let dir = tempfile::tempdir().expect("tempdir");
        let open = || {
            let mut options = File::options();
            options.write(true).create(true).truncate(false).open(dir.path().join("lock"))
        };
        let file = open().expect("a file");
        let _copy = file.try_clone().expect("a copy");
        let lock = LockFile::try_lock(file).expect("locks").expect("free");
        assert!(LockFile::try_lock(open().expect("a file")).expect("locks").is_none());
        drop(lock);
        assert!(LockFile::try_lock(open().expect("a file")).expect("locks").is_some());
    }

    /// The holder is read from the right line, not from the line of a waiter or of another inode.
    #[test]
    fn reads_the_table() {
        let table = "1: POSIX  ADVISORY  WRITE 11 fd:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 22 fd:01:78 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 33 fd:01:79 0 EOF\n\
                     3: FLOCK  ADVISORY  READ  44 fd:01:79 0 EOF\n\
                     4: FLOCK  ADVISORY  READ  -1 fd:01:80 0 EOF\n\
                     garbage\n";
        assert_eq!(holder_in(table, "fd:01:78"), Some(22));
        assert_eq!(holder_in(table, "fd:01:79"), Some(44));
        assert_eq!(holder_in(table, "fd:01:80"), None);
        assert_eq!(holder_in(table, "fd:01:7"), None);
        assert_eq!(holder_in("", "fd:01:7"), None);
    }
}
