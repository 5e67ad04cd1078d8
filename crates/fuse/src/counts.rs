//! Counts the requests of each kind to this process.
//!
//! # What must hold
//!
//! - Each request of a kernel is counted once, by whatever transport it came.

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_protocol::{Opcode, opcode};

/// All opcodes of requests are below this.
const KINDS: usize = 64;

static COUNTS: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];

/// Requests that have a name.
const NAMES: [(Opcode, &str); 42] = [
    (opcode::LOOKUP, "lookup"),
    (opcode::FORGET, "forget"),
    (opcode::GETATTR, "getattr"),
    (opcode::SETATTR, "setattr"),
    (opcode::READLINK, "readlink"),
    (opcode::SYMLINK, "symlink"),
    (opcode::MKNOD, "mknod"),
    (opcode::MKDIR, "mkdir"),
    (opcode::UNLINK, "unlink"),
    (opcode::RMDIR, "rmdir"),
    (opcode::RENAME, "rename"),
    (opcode::LINK, "link"),
    (opcode::OPEN, "open"),
    (opcode::READ, "read"),
    (opcode::WRITE, "write"),
    (opcode::STATFS, "statfs"),
    (opcode::RELEASE, "release"),
    (opcode::FSYNC, "fsync"),
    (opcode::SETXATTR, "setxattr"),
    (opcode::GETXATTR, "getxattr"),
    (opcode::LISTXATTR, "listxattr"),
    (opcode::REMOVEXATTR, "removexattr"),
    (opcode::FLUSH, "flush"),
    (opcode::OPENDIR, "opendir"),
    (opcode::READDIR, "readdir"),
    (opcode::RELEASEDIR, "releasedir"),
    (opcode::FSYNCDIR, "fsyncdir"),
    (opcode::ACCESS, "access"),
    (opcode::CREATE, "create"),
    (opcode::INTERRUPT, "interrupt"),
    (opcode::DESTROY, "destroy"),
    (opcode::IOCTL, "ioctl"),
    (opcode::NOTIFY_REPLY, "notify_reply"),
    (opcode::BATCH_FORGET, "batch_forget"),
    (opcode::FALLOCATE, "fallocate"),
    (opcode::READDIRPLUS, "readdirplus"),
    (opcode::RENAME2, "rename2"),
    (opcode::LSEEK, "lseek"),
    (opcode::COPY_FILE_RANGE, "copy_file_range"),
    (opcode::SYNCFS, "syncfs"),
    (opcode::TMPFILE, "tmpfile"),
    (opcode::STATX, "statx"),
];

/// Counts a request.
pub(crate) fn count(of: Opcode) {
    if let Some(count) = COUNTS.get(of as usize) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// The number of requests of each kind to all mounts of this process. Kinds without requests are
/// left out.
#[must_use]
pub fn requests() -> Vec<(&'static str, u64)> {
    let counted = |(of, name): (Opcode, &'static str)| {
        let count = COUNTS[of as usize].load(Ordering::Relaxed);
        (count > 0).then_some((name, count))
    };
    NAMES.into_iter().filter_map(counted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each kind has one name, and its opcode is below `KINDS`.
    #[test]
    fn kinds_have_one_name_each() {
        for (index, (of, name)) in NAMES.iter().enumerate() {
            assert!((*of as usize) < KINDS);
            assert!(NAMES[..index].iter().all(|(other, known)| other != of && known != name));
        }
    }

    #[test]
    fn requests_are_counted_once_each() {
        let statx = || requests().iter().find(|(name, _)| *name == "statx").map_or(0, |(_, n)| *n);
        let before = statx();
        count(opcode::STATX);
        count(u32::MAX);
        assert_eq!(statx(), before + 1);
    }
}
