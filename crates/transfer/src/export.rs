//! Copies from a volume to the host.
//!
//! Names and links of a volume are untrusted bytes. A name that is a path is refused. Nothing is
//! ever written through a symbolic link (`transfer::X1`), not even one that another process puts
//! there meanwhile.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use buttress_fs::{Attr, ErrorKind, FileKind, Inode, InodeId, NameError};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::{CHUNK, Job, needs_recursive, through};
use crate::listing::{self, Entry};
use buttress_control::exit::{Context, Exit, Failure, Result};
use buttress_control::location::show;

const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Copies from one volume to the host.
pub struct Export<'a, 'b> {
    job: &'a mut Job<'b>,
    /// The path of the first copy of every file with several names, from the top of the copy.
    links: HashMap<InodeId, std::path::PathBuf>,
    buffer: Vec<u8>,
    stack: Vec<Level>,
}

/// A directory being copied.
struct Level {
    target: OwnedFd,
    /// The path of `target` from the top of the copy.
    path: std::path::PathBuf,
    left: std::vec::IntoIter<Entry>,
    source: Inode,
}

impl<'a, 'b> Export<'a, 'b> {
    /// Prepares a copy.
    pub fn new(job: &'a mut Job<'b>) -> Self {
        Self { job, links: HashMap::new(), buffer: vec![0; CHUNK], stack: Vec::new() }
    }

    /// Copies `inode` to the name `target` in a host directory.
    pub fn entry(&mut self, inode: &Inode, top: &OwnedFd, target: &OsStr) -> Result<()> {
        let attr = inode.attr();
        self.copy(inode, &attr, top, top, target, Path::new(""))?;
        while let Some(mut level) = self.stack.pop() {
            let Some(entry) = level.left.next() else {
                self.attributes(&level.source.attr(), &level.target, OsStr::new("."))?;
                continue;
            };
            let name = checked_name(&entry.name)?;
            let at = self.stack.len();
            let (dir, path) = (&level.target, &level.path);
            self.copy(&entry.inode, &entry.attr, top, dir, name, path)?;
            self.stack.insert(at, level);
        }
        Ok(())
    }

    fn copy(
        &mut self,
        inode: &Inode,
        attr: &Attr,
        top: &OwnedFd,
        dir: &OwnedFd,
        name: &OsStr,
        path: &Path,
    ) -> Result<()> {
        let text = || show(name.as_bytes());
        self.job.bar.set_message(&text());
        make_room(dir, name, attr.kind).context(text)?;
        let several = self.job.keep.everything && attr.nlink > 1;
        if several && attr.kind != FileKind::Directory {
            if let Some(first) = self.links.get(&attr.id) {
                link_within(top, first, dir, name).context(text)?;
                return Ok(());
            }
            self.links.insert(attr.id, path.join(name));
        }
        match attr.kind {
            FileKind::Directory => {
                needs_recursive(self.job, &text())?;
                match rustix::fs::mkdirat(dir, name, Mode::from(0o700)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno).context(text),
                }
                let target =
                    rustix::fs::openat(dir, name, DIR_FLAGS, Mode::empty()).context(text)?;
                let left = listing::entries(inode).context(text)?.into_iter();
                self.job.tally.directories += 1;
                self.xattrs(inode, &through(dir, Path::new(name)))?;
                let path = path.join(name);
                self.stack.push(Level { target, path, left, source: inode.clone() });
                return Ok(());
            }
            FileKind::Regular => {
                self.content(inode, attr, dir, name)?;
                self.job.tally.files += 1;
            }
            FileKind::Symlink => {
                let link = inode.read_link().context(text)?;
                rustix::fs::symlinkat(OsStr::from_bytes(&link), dir, name).context(text)?;
                self.job.tally.others += 1;
            }
            FileKind::Character | FileKind::Block | FileKind::Fifo | FileKind::Socket => {
                let kind = FileType::from_raw_mode(attr.mode);
                let (major, minor) = ((attr.rdev >> 20) as u32, (attr.rdev & 0xf_ffff) as u32);
                let device = rustix::fs::makedev(major, minor);
                let mode = Mode::from(attr.mode & 0o777);
                rustix::fs::mknodat(dir, name, kind, mode, device).context(text)?;
                self.job.tally.others += 1;
            }
        }
        self.xattrs(inode, &through(dir, Path::new(name)))?;
        self.attributes(attr, dir, name)
    }

    fn content(&mut self, inode: &Inode, attr: &Attr, dir: &OwnedFd, name: &OsStr) -> Result<()> {
        let text = || show(name.as_bytes());
        let flags = OFlags::WRONLY
            | OFlags::CREATE
            | OFlags::TRUNC
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::CLOEXEC;
        let mode = Mode::from(attr.mode & 0o777);
        let file = rustix::fs::openat(dir, name, flags, mode).context(text)?;
        let mut offset = 0;
        while offset < attr.size {
            let start = match inode.seek_data(offset) {
                Ok(start) => start,
                Err(error) if error.kind() == ErrorKind::Name(NameError::NoSuchRange) => break,
                Err(error) => return Err(Failure::of_volume(text(), error)),
            };
            let end = inode.seek_hole(start).context(text)?.min(attr.size);
            self.job.bar.add(start.saturating_sub(offset));
            offset = start;
            while offset < end {
                let want = usize::try_from(end - offset).map_or(CHUNK, |left| left.min(CHUNK));
                let read = inode.read_at(offset, &mut self.buffer[..want]).context(text)?;
                if read == 0 {
                    break;
                }
                write_all(&file, &self.buffer[..read], offset).context(text)?;
                offset += read as u64;
                self.job.bar.add(read as u64);
                self.job.tally.bytes += read as u64;
            }
        }
        self.job.bar.add(attr.size.saturating_sub(offset));
        rustix::fs::ftruncate(&file, attr.size).context(text)
    }

    fn attributes(&self, attr: &Attr, dir: &OwnedFd, name: &OsStr) -> Result<()> {
        let text = || show(name.as_bytes());
        let keep = self.job.keep;
        if !keep.attributes && !keep.everything {
            // Until the directory was filled, only this user could access it.
            if attr.kind == FileKind::Directory {
                let umask = rustix::process::umask(Mode::empty());
                rustix::process::umask(umask);
                let mode = Mode::from(attr.mode & 0o777 & !umask.bits());
                change_mode(dir, name, mode).context(text)?;
            }
            return Ok(());
        }
        if keep.everything {
            let owner = rustix::fs::Uid::from_raw(attr.uid);
            let group = rustix::fs::Gid::from_raw(attr.gid);
            match rustix::fs::chownat(
                dir,
                name,
                Some(owner),
                Some(group),
                AtFlags::SYMLINK_NOFOLLOW,
            ) {
                // A change of the owner needs a privilege. Without the privilege, the files belong
                // to this user, as with `cp -a`.
                Ok(()) | Err(Errno::PERM) => {}
                Err(errno) => return Err(errno).context(text),
            }
        }
        if attr.kind != FileKind::Symlink {
            let mode = Mode::from(attr.mode & 0o7777);
            change_mode(dir, name, mode).context(text)?;
        }
        let times =
            Timestamps { last_access: time(attr.atime), last_modification: time(attr.mtime) };
        rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW).context(text)
    }

    fn xattrs(&self, inode: &Inode, path: &Path) -> Result<()> {
        if !self.job.keep.everything {
            return Ok(());
        }
        let text = || path.display().to_string();
        for name in inode.list_xattrs().context(text)? {
            let value = inode.xattr(&name).context(text)?;
            let flags = XattrFlags::empty();
            match rustix::fs::lsetxattr(path, OsStr::from_bytes(&name), &value, flags) {
                // Attributes of `trusted` and `security` need a privilege, and not every filesystem
                // has extended attributes.
                Ok(()) | Err(Errno::PERM | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno).context(text),
            }
        }
        Ok(())
    }
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
fn make_room(dir: &OwnedFd, name: &OsStr, kind: FileKind) -> rustix::io::Result<()> {
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

/// Returns a name, if it is a single name and not a path.
fn checked_name(name: &[u8]) -> Result<&OsStr> {
    let is_path = name.is_empty() || name == b"." || name == b"..";
    if is_path || name.contains(&b'/') || name.contains(&0) {
        let what = format!("the volume holds the name {:?}, which is none", show(name));
        return Err(Failure::new(Exit::Corrupt, what));
    }
    Ok(OsStr::from_bytes(name))
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::pwrite(file, bytes, offset)?;
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

fn time(time: buttress_fs::Timespec) -> rustix::fs::Timespec {
    rustix::fs::Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() }
}
