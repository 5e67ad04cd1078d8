//! A tree written through the library.

use buttress_fs::{
    FallocateMode, Filesystem, Inode, NewInode, RenameFlags, Result, SetAttr, Timespec, XattrFlags,
};

use super::Target;

/// A mounted volume as a place to write to.
#[derive(Debug)]
pub struct Library {
    filesystem: Filesystem,
}

impl Library {
    /// Writes below the root of `filesystem`.
    #[must_use]
    pub fn new(filesystem: &Filesystem) -> Self {
        Self { filesystem: filesystem.clone() }
    }

    fn at(&self, path: &[u8]) -> Inode {
        done("resolve", path, self.filesystem.resolve(path))
    }

    fn parent<'a>(&self, path: &'a [u8]) -> (Inode, &'a [u8]) {
        match path.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (self.at(&path[..slash]), &path[slash + 1..]),
            None => (self.filesystem.root(), path),
        }
    }

    fn set(&self, what: &str, path: &[u8], set: &SetAttr) {
        done(what, path, self.at(path).set_attr(set));
    }
}

#[track_caller]
fn done<T>(what: &str, path: &[u8], result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{what} {}: {error}", path.escape_ascii()))
}

impl Target for Library {
    fn make_dir(&self, path: &[u8], mode: u32) {
        let (parent, name) = self.parent(path);
        done("mkdir", path, parent.mkdir(name, mode, 0, 0));
    }

    fn make_file(&self, path: &[u8], mode: u32) {
        self.make_node(path, 0o100_000 | mode, 0, 0);
    }

    fn write(&self, path: &[u8], offset: u64, data: &[u8]) {
        let inode = self.at(path);
        let mut written = 0;
        while written < data.len() {
            let at = offset + written as u64;
            written += done("write", path, inode.write_at(at, &data[written..]));
        }
    }

    fn set_len(&self, path: &[u8], len: u64) {
        self.set("truncate", path, &SetAttr { size: Some(len), ..SetAttr::default() });
    }

    fn allocate(&self, path: &[u8], offset: u64, len: u64, keep_size: bool) {
        let mode = FallocateMode::Allocate { keep_size };
        done("fallocate", path, self.at(path).fallocate(offset, len, mode));
    }

    fn punch(&self, path: &[u8], offset: u64, len: u64) {
        done("punch", path, self.at(path).fallocate(offset, len, FallocateMode::PunchHole));
    }

    fn make_symlink(&self, path: &[u8], target: &[u8]) {
        let (parent, name) = self.parent(path);
        done("symlink", path, parent.symlink(name, target, 0, 0));
    }

    fn make_node(&self, path: &[u8], mode: u32, major: u32, minor: u32) {
        let (parent, name) = self.parent(path);
        let device = u64::from(major) << 20 | u64::from(minor);
        done("create", path, parent.create(name, NewInode::of_mode(mode, device)));
    }

    fn link(&self, path: &[u8], new: &[u8]) {
        let (parent, name) = self.parent(new);
        done("link", new, parent.link(&self.at(path), name));
    }

    fn rename(&self, path: &[u8], new: &[u8]) {
        let (old_parent, old_name) = self.parent(path);
        let (new_parent, new_name) = self.parent(new);
        let flags = RenameFlags::default();
        done("rename", path, old_parent.rename(old_name, &new_parent, new_name, flags));
    }

    fn exchange(&self, path: &[u8], other: &[u8]) {
        let (parent, name) = self.parent(path);
        let (other_parent, other_name) = self.parent(other);
        let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
        done("exchange", path, parent.rename(name, &other_parent, other_name, flags));
    }

    fn remove_file(&self, path: &[u8]) {
        let (parent, name) = self.parent(path);
        done("unlink", path, parent.unlink(name));
    }

    fn remove_dir(&self, path: &[u8]) {
        let (parent, name) = self.parent(path);
        done("rmdir", path, parent.rmdir(name));
    }

    fn set_xattr(&self, path: &[u8], name: &str, value: &[u8]) {
        let flags = XattrFlags::default();
        done("setxattr", path, self.at(path).set_xattr(name.as_bytes(), value, flags));
    }

    fn remove_xattr(&self, path: &[u8], name: &str) {
        done("removexattr", path, self.at(path).remove_xattr(name.as_bytes()));
    }

    fn set_owner(&self, path: &[u8], uid: u32, gid: u32) {
        self.set("chown", path, &SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() });
    }

    fn set_mode(&self, path: &[u8], mode: u32) {
        self.set("chmod", path, &SetAttr { mode: Some(mode), ..SetAttr::default() });
    }

    fn set_times(&self, path: &[u8], seconds: i64, nanoseconds: u32) {
        let time = Timespec { sec: seconds, nsec: nanoseconds };
        let set = SetAttr { atime: Some(time), mtime: Some(time), ..SetAttr::default() };
        self.set("utimens", path, &set);
    }

    fn sync(&self) {
        done("sync", b"", self.filesystem.sync());
    }
}
