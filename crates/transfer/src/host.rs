//! What copies to the host have in common: room for a name, more names of one file, attributes.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use buttress_fs::FileKind;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use crate::rights::{Attributes, LISTS, Xattrs};
use crate::{Keep, acl, through};

/// How a directory is opened on the way down.
pub(crate) const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

impl Attributes {
    /// Gives a copy on the host its owner, lists and other extended attributes, mode and times, in
    /// an order in which none takes another away. `file` is open at the copy: its name may lead to
    /// another object by now, if the folder belongs to another user.
    pub(crate) fn set_on_host(
        &self,
        keep: Keep,
        file: &OwnedFd,
        xattrs: &Xattrs,
        is_new: bool,
    ) -> rustix::io::Result<()> {
        if keep.everything {
            self.set_owner(file)?;
        }
        let has_lists = !keep.modes() || set_xattrs(keep, file, xattrs)?;
        let found = rustix::fs::fstat(file)?;
        let owner = (found.st_uid, found.st_gid);
        if let Some(mut mode) = self.mode_at_last(keep, owner, (found.st_mode, is_new)) {
            let list = xattrs.iter().find(|(name, _)| name == acl::ACCESS);
            if let Some((_, list)) = list.filter(|_| !has_lists) {
                // The place has no lists. The mask of this one is no right of the group.
                mode = mode & !0o070 | acl::group_of(list) << 3;
            }
            rustix::fs::chmod(path_of(file), Mode::from(mode))?;
        }
        if !keep.modes() {
            return Ok(());
        }
        let time = |time: buttress_fs::Timespec| Timespec {
            tv_sec: time.sec,
            tv_nsec: i64::from(time.nsec),
        };
        let times =
            Timestamps { last_access: time(self.atime), last_modification: time(self.mtime) };
        rustix::fs::utimensat(CWD, path_of(file), &times, AtFlags::empty())
    }

    /// Sets the owner, if this user may.
    fn set_owner(&self, file: &OwnedFd) -> rustix::io::Result<()> {
        let found = rustix::fs::fstat(file)?;
        if (found.st_uid, found.st_gid) == (self.uid, self.gid) {
            return Ok(());
        }
        // The permissions of an object that was there are not meant for the new group.
        let is_open = found.st_mode & 0o077 != 0 && self.kind != Some(FileKind::Symlink);
        if is_open {
            let mode = Mode::from(found.st_mode & self.mode & 0o700);
            match rustix::fs::chmod(path_of(file), mode) {
                Ok(()) | Err(Errno::PERM) => {}
                Err(errno) => return Err(errno),
            }
        }
        let change = |owner: Option<u32>| {
            let owner = owner.map(rustix::fs::Uid::from_raw);
            let group = Some(rustix::fs::Gid::from_raw(self.gid));
            rustix::fs::chownat(file, "", owner, group, AtFlags::EMPTY_PATH)
        };
        // A change of the owner needs a privilege. Without the privilege, the files belong to this
        // user, as with `cp -a`, and to the group if this user is in it.
        let changed = match change(Some(self.uid)) {
            Err(Errno::PERM) => change(None),
            other => other,
        };
        match changed {
            Err(Errno::PERM) => Ok(()),
            other => other,
        }
    }
}

/// The path of an open object, for system calls without descriptors. It leads to the object itself,
/// also if that is a symbolic link.
fn path_of(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Opens an object that was just made, for its attributes.
pub(crate) fn open_made(
    dir: &OwnedFd,
    name: &OsStr,
    kind: FileKind,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    match FileKind::from_mode(rustix::fs::fstat(&file)?.st_mode) {
        Some(found) if found == kind => Ok(file),
        _ => Err(Errno::STALE),
    }
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
        Err(Errno::EXIST) => {}
        other => return other,
    }
    // The new name replaces the old object at once, so no failure leaves the name without one. If
    // both are names of one file, the rename does nothing, and the first name stays.
    let temporary = format!(".buttress-{}", std::process::id());
    let temporary = OsStr::new(&temporary);
    link_within(top, first, dir, temporary)?;
    let renamed = rustix::fs::renameat(dir, temporary, dir, name);
    match rustix::fs::unlinkat(dir, temporary, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => renamed,
        Err(errno) => renamed.and(Err(errno)),
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

/// Sets the extended attributes that a copy keeps. Lists of rights that it has inherited and its
/// source lacks go. Returns whether the place took all lists.
fn set_xattrs(keep: Keep, file: &OwnedFd, all: &Xattrs) -> rustix::io::Result<bool> {
    let path = path_of(file);
    for list in LISTS.into_iter().filter(|list| all.iter().all(|(name, _)| name != list)) {
        // Most objects have none, and some file systems know none.
        let _ = rustix::fs::removexattr(path.as_str(), OsStr::from_bytes(list));
    }
    let mut has_lists = true;
    for (name, value) in all.iter().filter(|(name, _)| keep.has_xattr(name)) {
        let flags = XattrFlags::empty();
        match rustix::fs::setxattr(path.as_str(), OsStr::from_bytes(name), value, flags) {
            // Attributes of `trusted` and `security` need a privilege, and not every filesystem
            // has extended attributes.
            Err(Errno::PERM | Errno::OPNOTSUPP) => has_lists &= !LISTS.contains(&&name[..]),
            other => other?,
        }
    }
    Ok(has_lists)
}

/// Reads the extended attributes of an open object, including access control lists, in the order of
/// their names.
pub(crate) fn xattrs_of(file: &OwnedFd) -> rustix::io::Result<Xattrs> {
    let path = path_of(file);
    let list = |list: &mut [u8]| rustix::fs::listxattr(path.as_str(), list);
    xattrs_by(list, |name, value| rustix::fs::getxattr(path.as_str(), name, value))
}

/// As [`xattrs_of`], of an entry of an open directory, which may be a symbolic link
/// (`transfer::X1`).
pub(crate) fn xattrs_at(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<Xattrs> {
    let path = through(dir, Path::new(name));
    let list = |list: &mut [u8]| rustix::fs::llistxattr(&path, list);
    xattrs_by(list, |name, value| rustix::fs::lgetxattr(&path, name, value))
}

/// Reads extended attributes by calls that list names and get a value.
fn xattrs_by(
    list: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&OsStr, &mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Xattrs> {
    let mut names = vec![0_u8; 64 * 1024];
    let len = match list(&mut names) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        other => other?,
    };
    let names = names[..len].split(|&byte| byte == 0).filter(|name| is_portable(name));
    let mut names: Vec<&[u8]> = names.collect();
    names.sort_unstable();
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let mut value = vec![0_u8; 64 * 1024];
        let len = match get(OsStr::from_bytes(name), &mut value) {
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => continue,
            other => other?,
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
