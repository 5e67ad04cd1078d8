//! What copies to the host have in common: room for a name, more names of one file, attributes.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use buttress_control::exit::{Context, Result};
use buttress_control::location::show;
use buttress_fs::{Attr, FileKind};
use rustix::fs::{AtFlags, Mode, OFlags, Stat, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use crate::{Keep, acl};

/// How a directory is opened on the way down.
pub(crate) const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// The bits of a mode by which a program runs as the owner, or as the group, of its file.
pub(crate) const SET_USER: u32 = 0o4000;
pub(crate) const SET_GROUP: u32 = 0o2000;

/// The lists of rights that a new object may inherit.
pub(crate) const LISTS: [&[u8]; 2] = [acl::ACCESS, acl::DEFAULT];

/// The attributes of an object that a copy may get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) kind: Option<FileKind>,
    pub(crate) mode: u32,
    uid: u32,
    gid: u32,
    times: (Timespec, Timespec),
}

impl From<&Attr> for Attributes {
    fn from(attr: &Attr) -> Self {
        let time =
            |time: buttress_fs::Timespec| Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() };
        let times = (time(attr.atime), time(attr.mtime));
        Self { kind: Some(attr.kind), mode: attr.mode, uid: attr.uid, gid: attr.gid, times }
    }
}

impl From<&Stat> for Attributes {
    fn from(stat: &Stat) -> Self {
        let times =
            (time(stat.st_atime, stat.st_atime_nsec), time(stat.st_mtime, stat.st_mtime_nsec));
        let kind = FileKind::from_mode(stat.st_mode);
        Self { kind, mode: stat.st_mode, uid: stat.st_uid, gid: stat.st_gid, times }
    }
}

impl Attributes {
    /// Sets the owner, before attributes that a change of the owner removes.
    pub(crate) fn set_owner(&self, keep: Keep, dir: &OwnedFd, name: &OsStr) -> Result<()> {
        if !keep.everything {
            return Ok(());
        }
        let change = |owner: Option<u32>| {
            let owner = owner.map(rustix::fs::Uid::from_raw);
            let group = Some(rustix::fs::Gid::from_raw(self.gid));
            rustix::fs::chownat(dir, name, owner, group, AtFlags::SYMLINK_NOFOLLOW)
        };
        // A change of the owner needs a privilege. Without the privilege, the files belong to this
        // user, as with `cp -a`, and to the group if this user is in it.
        let changed = match change(Some(self.uid)) {
            Err(Errno::PERM) => change(None),
            other => other,
        };
        match changed {
            Ok(()) | Err(Errno::PERM) => Ok(()),
            Err(errno) => Err(errno).context(|| show(name.as_bytes())),
        }
    }

    /// Sets mode and times, after everything that would change them. `is_new` says that the copy
    /// made the object.
    pub(crate) fn set(&self, keep: Keep, dir: &OwnedFd, name: &OsStr, is_new: bool) -> Result<()> {
        let text = || show(name.as_bytes());
        let found = || rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).context(text);
        if !keep.attributes && !keep.everything {
            // Until the directory was filled, only this user could access it. It keeps the bit that
            // it inherited from its parent.
            if self.kind == Some(FileKind::Directory) && is_new {
                let umask = rustix::process::umask(Mode::empty());
                rustix::process::umask(umask);
                let mode = self.mode & 0o777 & !umask.bits() | found()?.st_mode & SET_GROUP;
                change_mode(dir, name, Mode::from(mode)).context(text)?;
            }
            return Ok(());
        }
        if self.kind != Some(FileKind::Symlink) {
            // A program that runs as its owner must not get another owner.
            let (mut mode, found) = (self.mode & 0o7777, found()?);
            if found.st_uid != self.uid {
                mode &= !SET_USER;
            }
            if found.st_gid != self.gid {
                mode &= !SET_GROUP;
            }
            change_mode(dir, name, Mode::from(mode)).context(text)?;
        }
        let times = Timestamps { last_access: self.times.0, last_modification: self.times.1 };
        rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW).context(text)
    }
}

/// Converts a time. Nanoseconds from the kernel are below a billion.
fn time(tv_sec: i64, nsec: impl TryInto<i64>) -> Timespec {
    Timespec { tv_sec, tv_nsec: nsec.try_into().unwrap_or(0) }
}

/// Sets the mode of an object, unless it is a symbolic link (`transfer::X1`).
fn change_mode(dir: &OwnedFd, name: &OsStr, mode: Mode) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    if FileKind::from_mode(rustix::fs::fstat(&file)?.st_mode) == Some(FileKind::Symlink) {
        return Err(Errno::LOOP);
    }
    // The descriptor is used, because the name may lead to another object by now.
    rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)
}

/// Makes `name` a name of a file that was created below `top`. An object that has the name already
/// gives it up, but no directory.
pub(crate) fn link_again(
    top: &OwnedFd,
    first: &Path,
    dir: &OwnedFd,
    name: &OsStr,
) -> rustix::io::Result<()> {
    match link_within(top, first, dir, name) {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
            link_within(top, first, dir, name)
        }
        other => other,
    }
}

/// Adds a name to a file that was created below `top`. Follows no symbolic link on the way to the
/// file (`transfer::X1`).
fn link_within(top: &OwnedFd, first: &Path, dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    let (Some(parent), Some(last)) = (first.parent(), first.file_name()) else {
        return Err(Errno::INVAL);
    };
    let mut holder: Option<OwnedFd> = None;
    for part in parent.components() {
        let from = holder.as_ref().unwrap_or(top);
        holder = Some(rustix::fs::openat(from, part.as_os_str(), DIR_FLAGS, Mode::empty())?);
    }
    let holder = holder.as_ref().unwrap_or(top);
    // If a symbolic link has taken the place of the file, the new name becomes a name of the link
    // itself: linkat does not follow links.
    rustix::fs::linkat(holder, last, dir, name, AtFlags::empty())
}

/// Removes an object that has the name already. A directory stays: the copy fills it or fails. A
/// file stays if the copy is a file, too, and gets the content of the copy.
pub(crate) fn make_room(dir: &OwnedFd, name: &OsStr, kind: FileKind) -> rustix::io::Result<()> {
    let found = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => FileKind::from_mode(found.st_mode),
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    match found {
        Some(FileKind::Directory) => Ok(()),
        Some(FileKind::Regular) if kind == FileKind::Regular => Ok(()),
        _ => rustix::fs::unlinkat(dir, name, AtFlags::empty()),
    }
}

/// Makes a directory for this user alone, or accepts one that exists, and opens it. Returns whether
/// it is new.
pub(crate) fn make_directory(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<(OwnedFd, bool)> {
    let is_new = match rustix::fs::mkdirat(dir, name, Mode::from(0o700)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(errno) => return Err(errno),
    };
    Ok((rustix::fs::openat(dir, name, DIR_FLAGS, Mode::empty())?, is_new))
}

/// Makes a file, or empties an existing file, and opens it.
pub(crate) fn make_file(dir: &OwnedFd, name: &OsStr, mode: u32) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::TRUNC
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::from(mode & 0o777))
}

pub(crate) fn write_all(
    file: &OwnedFd,
    mut bytes: &[u8],
    mut offset: u64,
) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::pwrite(file, bytes, offset)?;
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

/// Sets an extended attribute. The last component of `path` is an entry of an open directory
/// (`transfer::X1`).
pub(crate) fn set_xattr(path: &Path, name: &[u8], value: &[u8]) -> Result<()> {
    match rustix::fs::lsetxattr(path, OsStr::from_bytes(name), value, XattrFlags::empty()) {
        // Attributes of `trusted` and `security` need a privilege, and not every filesystem
        // has extended attributes.
        Ok(()) | Err(Errno::PERM | Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(errno).context(|| path.display().to_string()),
    }
}

/// Sets all extended attributes of an object, and takes lists of rights away that it has inherited
/// and its source lacks. The last component of `path` is an entry of an open directory
/// (`transfer::X1`).
pub(crate) fn set_xattrs(path: &Path, all: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
    for list in LISTS.into_iter().filter(|list| all.iter().all(|(name, _)| name != list)) {
        // Most objects have none, and some file systems know none.
        let _ = rustix::fs::lremovexattr(path, OsStr::from_bytes(list));
    }
    all.iter().try_for_each(|(name, value)| set_xattr(path, name, value))
}

/// Reads extended attributes, including access control lists, in the order of their names. The
/// last component of `path` is an entry of an open directory (`transfer::X1`).
pub(crate) fn xattrs(path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let text = || path.display().to_string();
    let mut list = vec![0_u8; 64 * 1024];
    let len = match rustix::fs::llistxattr(path, &mut list[..]) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        other => other.context(text)?,
    };
    let names = list[..len].split(|&byte| byte == 0).filter(|name| is_portable(name));
    let mut names: Vec<&[u8]> = names.collect();
    names.sort_unstable();
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let mut value = vec![0_u8; 64 * 1024];
        let len = match rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]) {
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => continue,
            other => other.context(text)?,
        };
        value.truncate(len);
        found.push((name.to_vec(), value));
    }
    Ok(found)
}

/// Returns whether an attribute means the same in another filesystem.
fn is_portable(name: &[u8]) -> bool {
    [&b"user."[..], b"trusted.", b"security.", b"system.posix_acl_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}
