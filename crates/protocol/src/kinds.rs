//! The names of the kinds of requests.

use crate::request::{Opcode, opcode};

/// The kinds of requests, by the numbers that FUSE gives them, and their names.
pub const KINDS: [(Opcode, &str); 42] = [
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

/// The name of a kind of request.
#[must_use]
pub fn kind_name(of: Opcode) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == of).map_or("other", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_one_name_each() {
        for (index, (of, kind)) in KINDS.iter().enumerate() {
            assert!(KINDS[..index].iter().all(|(other, known)| other != of && known != kind));
            assert_eq!(kind_name(*of), *kind);
        }
        assert_eq!(kind_name(u32::MAX), "other");
    }
}
