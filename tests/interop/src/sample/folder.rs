//! A tree written into a folder of this machine: Linux's btrfs, or a mount of ours.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, RenameFlags, Timespec, Timestamps, Uid,
    XattrFlags,
};

use super::Target;

/// A folder as a place to write to.
#[derive(Debug)]
pub struct Folder {
    top: PathBuf,
}

impl Folder {
    /// Writes below `top`.
    #[must_use]
    pub fn new(top: &Path) -> Self {
        Self { top: top.to_owned() }
    }

    fn at(&self, path: &[u8]) -> PathBuf {
        self.top.join(OsStr::from_bytes(path))
    }

    fn open(&self, path: &[u8]) -> File {
        done("open", path, OpenOptions::new().write(true).open(self.at(path)))
    }
}

#[track_caller]
fn done<T, E: std::fmt::Display>(what: &str, path: &[u8], result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{what} {}: {error}", path.escape_ascii()))
}

fn bits(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

impl Target for Folder {
    fn make_dir(&self, path: &[u8], mode: u32) {
        done("mkdir", path, std::fs::create_dir(self.at(path)));
        self.set_mode(path, mode);
    }

    fn make_file(&self, path: &[u8], mode: u32) {
        done("create", path, File::create_new(self.at(path)));
        self.set_mode(path, mode);
    }

    fn write(&self, path: &[u8], offset: u64, data: &[u8]) {
        done("write", path, self.open(path).write_all_at(data, offset));
    }

    fn set_len(&self, path: &[u8], len: u64) {
        done("truncate", path, self.open(path).set_len(len));
    }

    fn allocate(&self, path: &[u8], offset: u64, len: u64, keep_size: bool) {
        let flags = if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        done("fallocate", path, rustix::fs::fallocate(self.open(path), flags, offset, len));
    }

    fn punch(&self, path: &[u8], offset: u64, len: u64) {
        let flags = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
        done("punch", path, rustix::fs::fallocate(self.open(path), flags, offset, len));
    }

    fn make_symlink(&self, path: &[u8], target: &[u8]) {
        let target = OsStr::from_bytes(target);
        done("symlink", path, std::os::unix::fs::symlink(target, self.at(path)));
    }

    fn make_node(&self, path: &[u8], mode: u32, major: u32, minor: u32) {
        let kind = FileType::from_raw_mode(mode);
        let device = rustix::fs::makedev(major, minor);
        done("mknod", path, rustix::fs::mknodat(CWD, self.at(path), kind, bits(mode), device));
        self.set_mode(path, mode);
    }

    fn link(&self, path: &[u8], new: &[u8]) {
        done("link", new, std::fs::hard_link(self.at(path), self.at(new)));
    }

    fn rename(&self, path: &[u8], new: &[u8]) {
        done("rename", path, std::fs::rename(self.at(path), self.at(new)));
    }

    fn exchange(&self, path: &[u8], other: &[u8]) {
        let (path_at, other_at) = (self.at(path), self.at(other));
        let flags = RenameFlags::EXCHANGE;
        done("exchange", path, rustix::fs::renameat_with(CWD, path_at, CWD, other_at, flags));
    }

    fn remove_file(&self, path: &[u8]) {
        done("unlink", path, std::fs::remove_file(self.at(path)));
    }

    fn remove_dir(&self, path: &[u8]) {
        done("rmdir", path, std::fs::remove_dir(self.at(path)));
    }

    fn set_xattr(&self, path: &[u8], name: &str, value: &[u8]) {
        let flags = XattrFlags::empty();
        done("setxattr", path, rustix::fs::lsetxattr(self.at(path), name, value, flags));
    }

    fn remove_xattr(&self, path: &[u8], name: &str) {
        done("removexattr", path, rustix::fs::lremovexattr(self.at(path), name));
    }

    fn set_owner(&self, path: &[u8], uid: u32, gid: u32) {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        done("chown", path, rustix::fs::chownat(CWD, self.at(path), uid, gid, flags));
    }

    fn set_mode(&self, path: &[u8], mode: u32) {
        done("chmod", path, rustix::fs::chmodat(CWD, self.at(path), bits(mode), AtFlags::empty()));
    }

    fn set_times(&self, path: &[u8], seconds: i64, nanoseconds: u32) {
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
        let times = Timestamps { last_access: time, last_modification: time };
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        done("utimens", path, rustix::fs::utimensat(CWD, self.at(path), &times, flags));
    }

    fn sync(&self) {
        let top = done("open", b"", File::open(&self.top));
        done("sync", b"", rustix::fs::syncfs(top));
    }
}
