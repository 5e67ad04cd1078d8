//! The folder that files are restored to.
//!
//! # Invariants
//!
//! - **TA1** Nothing is written through a symbolic link, or outside of the folder.
//! - **TA2** A file gets its name only after all of its readable content was written. So a run
//!   after an interrupted run continues where the interrupted run stopped.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use buttress_format::{InodeItem, Timespec};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timestamps, XattrFlags};
use rustix::io::Errno;

const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
/// The name of a file while its content is written.
const UNFINISHED: &str = ".buttress-restore.part";

/// A folder to fill. A folder without a descriptor accepts everything and writes nothing.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: Option<OwnedFd>,
    /// The path of the folder from the top.
    path: PathBuf,
}

/// A file that is written.
#[derive(Debug)]
pub(crate) struct Writing {
    fd: Option<OwnedFd>,
}

impl Dir {
    /// Opens the top folder, and creates it if it is missing. With `None`, nothing will be written.
    pub(crate) fn top(path: Option<&Path>) -> io::Result<Self> {
        let Some(path) = path else { return Ok(Self { fd: None, path: PathBuf::new() }) };
        std::fs::create_dir_all(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self { fd: Some(fd), path: PathBuf::new() })
    }

    /// Opens a folder in this folder, and creates it if it is missing.
    pub(crate) fn enter(&self, name: &[u8]) -> io::Result<Self> {
        let path = self.path.join(OsStr::from_bytes(name));
        let Some(dir) = &self.fd else { return Ok(Self { fd: None, path }) };
        let name = OsStr::from_bytes(name);
        match rustix::fs::mkdirat(dir, name, Mode::from(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let fd = rustix::fs::openat(dir, name, DIR_FLAGS, Mode::empty())?;
        Ok(Self { fd: Some(fd), path })
    }

    /// Opens the same folder once more.
    pub(crate) fn again(&self) -> io::Result<Self> {
        let fd = self.fd.as_ref().map(OwnedFd::try_clone).transpose()?;
        Ok(Self { fd, path: self.path.clone() })
    }

    /// Returns the path of a name in the folder, from the top.
    pub(crate) fn path_of(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(name))
    }

    /// Whether the folder has an entry of this name.
    pub(crate) fn has(&self, name: &[u8]) -> bool {
        let Some(dir) = &self.fd else { return false };
        let name = OsStr::from_bytes(name);
        rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Begins a file.
    pub(crate) fn begin(&self) -> io::Result<Writing> {
        let Some(dir) = &self.fd else { return Ok(Writing { fd: None }) };
        // A file that an earlier run left is removed instead of overwritten, since it may have
        // further names.
        match rustix::fs::unlinkat(dir, UNFINISHED, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(dir, UNFINISHED, flags, Mode::from(0o600))?;
        Ok(Writing { fd: Some(fd) })
    }

    /// Ends a file: sets its size and attributes, and gives it its name. Returns the attributes
    /// that could not be set.
    pub(crate) fn finish(
        &self,
        file: Writing,
        name: &[u8],
        size: u64,
        item: Option<&InodeItem>,
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> io::Result<Vec<String>> {
        let (Some(dir), Some(fd)) = (&self.fd, file.fd) else { return Ok(Vec::new()) };
        rustix::fs::ftruncate(&fd, size)?;
        let notes = attributes(&fd, item, xattrs);
        rustix::fs::renameat(dir, UNFINISHED, dir, OsStr::from_bytes(name))?;
        Ok(notes)
    }

    /// Removes the entry with this name, unless it is a folder.
    pub(crate) fn clear(&self, name: &[u8]) -> io::Result<()> {
        let Some(dir) = &self.fd else { return Ok(()) };
        Ok(rustix::fs::unlinkat(dir, OsStr::from_bytes(name), AtFlags::empty())?)
    }

    /// Sets the attributes of the folder itself, after all its content was written.
    pub(crate) fn leave(
        &self,
        item: Option<&InodeItem>,
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> Vec<String> {
        self.fd.as_ref().map_or_else(Vec::new, |fd| attributes(fd, item, xattrs))
    }

    /// Makes a symbolic link.
    pub(crate) fn symlink(
        &self,
        name: &[u8],
        target: &[u8],
        item: Option<&InodeItem>,
    ) -> io::Result<Vec<String>> {
        let Some(dir) = &self.fd else { return Ok(Vec::new()) };
        rustix::fs::symlinkat(OsStr::from_bytes(target), dir, OsStr::from_bytes(name))?;
        Ok(item.map_or_else(Vec::new, |item| by_name(dir, name, item)))
    }

    /// Makes a device file, a pipe or a socket.
    pub(crate) fn special(&self, name: &[u8], item: &InodeItem) -> io::Result<Vec<String>> {
        let Some(dir) = &self.fd else { return Ok(Vec::new()) };
        let kind = FileType::from_raw_mode(item.mode);
        let (major, minor) = ((item.rdev >> 20) as u32, (item.rdev & 0xf_ffff) as u32);
        let device = rustix::fs::makedev(major, minor);
        let mode = Mode::from(item.mode & 0o777);
        rustix::fs::mknodat(dir, OsStr::from_bytes(name), kind, mode, device)?;
        Ok(by_name(dir, name, item))
    }

    /// Gives one more name to a file that was restored before. `self` is the top folder.
    pub(crate) fn link(&self, first: &Path, dir: &Self, name: &[u8]) -> io::Result<()> {
        let (Some(top), Some(to)) = (&self.fd, &dir.fd) else { return Ok(()) };
        let (Some(parent), Some(last)) = (first.parent(), first.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut holder: Option<OwnedFd> = None;
        for part in parent.components() {
            let from = holder.as_ref().unwrap_or(top).as_fd();
            holder = Some(rustix::fs::openat(from, part.as_os_str(), DIR_FLAGS, Mode::empty())?);
        }
        let holder = holder.as_ref().unwrap_or(top);
        let name = OsStr::from_bytes(name);
        Ok(rustix::fs::linkat(holder, last, to, name, AtFlags::empty())?)
    }
}

impl Writing {
    /// Writes all of `bytes`.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let Some(fd) = &self.fd else { return Ok(()) };
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let written = rustix::io::pwrite(fd, rest, at)?;
            rest = &rest[written..];
            at += written as u64;
        }
        Ok(())
    }
}

/// Sets owner, attributes, mode and times of an open file. Returns the settings that failed.
fn attributes(
    fd: &OwnedFd,
    item: Option<&InodeItem>,
    xattrs: &[(Vec<u8>, Vec<u8>)],
) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(item) = item {
        let owner = rustix::fs::Uid::from_raw(item.uid);
        let group = rustix::fs::Gid::from_raw(item.gid);
        // Only a privileged user may give files away. Without the privilege, the files belong to
        // the user that restores them.
        let own = rustix::fs::fchown(fd, Some(owner), Some(group));
        note(&mut notes, "owner", own);
    }
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    for (name, value) in xattrs {
        let flags = XattrFlags::empty();
        let set = rustix::fs::setxattr(path.as_str(), OsStr::from_bytes(name), value, flags);
        let what = format!("attribute {}", String::from_utf8_lossy(name));
        note(&mut notes, &what, set);
    }
    if let Some(item) = item {
        // With a list of rights, the group's bits of the mode are the mask of the list. So the mode
        // comes behind the lists.
        let mode = rustix::fs::fstat(fd).map(|found| mode_of(item, (found.st_uid, found.st_gid)));
        let set = mode.and_then(|mode| rustix::fs::fchmod(fd, Mode::from(mode)));
        note(&mut notes, "mode", set);
        note(&mut notes, "times", rustix::fs::futimens(fd, &times(item)));
    }
    notes
}

/// The mode of a restored file with this owner and group. A program that ran as its owner or group
/// does so only if it has the same one.
fn mode_of(item: &InodeItem, (uid, gid): (u32, u32)) -> u32 {
    let mut mode = item.mode & 0o7777;
    if uid != item.uid {
        mode &= !0o4000;
    }
    if gid != item.gid {
        mode &= !0o2000;
    }
    mode
}

fn by_name(dir: &OwnedFd, name: &[u8], item: &InodeItem) -> Vec<String> {
    let mut notes = Vec::new();
    let name = OsStr::from_bytes(name);
    let owner = rustix::fs::Uid::from_raw(item.uid);
    let group = rustix::fs::Gid::from_raw(item.gid);
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let own = rustix::fs::chownat(dir, name, Some(owner), Some(group), flags);
    note(&mut notes, "owner", own);
    note(&mut notes, "times", rustix::fs::utimensat(dir, name, &times(item), flags));
    notes
}

/// Records a failure to set something. A missing permission, or a feature that the host's file
/// system lacks, is expected and not recorded.
fn note(notes: &mut Vec<String>, what: &str, set: rustix::io::Result<()>) {
    match set {
        Ok(()) | Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL) => {}
        Err(errno) => notes.push(format!("its {what} could not be set: {errno}")),
    }
}

fn times(item: &InodeItem) -> Timestamps {
    let time = |time: Timespec| rustix::fs::Timespec {
        tv_sec: time.sec,
        tv_nsec: i64::from(time.nsec.min(999_999_999)),
    };
    Timestamps { last_access: time(item.atime), last_modification: time(item.mtime) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program of another owner does not run as its new one.
    #[test]
    fn programs_keep_their_owner_or_run_as_none() {
        let item = InodeItem { mode: 0o106_755, uid: 7, gid: 8, ..InodeItem::default() };
        assert_eq!(mode_of(&item, (7, 8)), 0o6755);
        assert_eq!(mode_of(&item, (7, 1)), 0o4755);
        assert_eq!(mode_of(&item, (1, 1)), 0o755);
    }
}
