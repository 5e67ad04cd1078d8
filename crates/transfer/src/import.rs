//! Copies from the host into a volume.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use buttress_fs::{FileKind, Filesystem, Inode, NewInode, SetAttr, Timespec};
use rustix::fs::{AtFlags, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::acl;
use super::host::{DIR_FLAGS, xattrs_at, xattrs_of};
use super::links::Links;
use super::names::Names;
use super::rights::{Attributes, Xattrs};
use super::{CHUNK, Job, caller, directory, needs_recursive, regular, replacing};
use buttress_control::exit::{Context, Exit, Failure, Result};
use buttress_control::location::show;

/// The size of a tree, counted before it is copied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Census {
    /// Everything with a name.
    pub entries: u64,
    /// Bytes of the names.
    pub name_bytes: u64,
    /// Allocated bytes of regular files, each rounded up to a sector.
    pub data_bytes: u64,
    /// Lengths of regular files.
    pub file_bytes: u64,
    /// Lengths of regular files, each rounded up to a sector.
    pub sector_bytes: u64,
}

/// Opens a directory that the user named. A symbolic link is followed, because the user named it.
pub fn open_dir(path: &Path) -> Result<OwnedFd> {
    let flags = DIR_FLAGS.difference(OFlags::NOFOLLOW);
    rustix::fs::open(path, flags, Mode::empty()).context(|| path.display().to_string())
}

/// Counts the files that [`Import`] would copy.
pub fn survey(dir: OwnedFd, skip: &dyn Fn(&[u8]) -> bool) -> Result<Census> {
    let mut census = Census::default();
    let first = Names::of(&dir, skip)?;
    let mut stack = vec![(dir, first)];
    while let Some((dir, left)) = stack.last_mut() {
        let Some(name) = left.next()? else {
            stack.pop();
            continue;
        };
        let stat = stat(dir, &name)?;
        census.entries += 1;
        census.name_bytes += name.len() as u64;
        match kind(&stat) {
            Some(FileKind::Directory) => {
                let child = open_child(dir, &name)?;
                let left = Names::of(&child, skip)?;
                stack.push((child, left));
            }
            Some(FileKind::Regular) => {
                let len = length(&stat);
                let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
                census.file_bytes += len;
                census.sector_bytes += len.next_multiple_of(4096);
                census.data_bytes += allocated.min(len).next_multiple_of(4096);
            }
            _ => {}
        }
    }
    Ok(census)
}

/// Copies from the host into one volume.
pub struct Import<'a, 'b> {
    job: &'a mut Job<'b>,
    fs: &'a Filesystem,
    links: Links,
    buffer: Vec<u8>,
    stack: Vec<Level>,
    /// The path of the directory being copied, below the top of the copy.
    at: PathBuf,
    /// Whether a directory of the copy may have a list of rights that new entries inherit.
    may_inherit: bool,
}

/// A directory being copied.
struct Level {
    source: OwnedFd,
    left: Names,
    target: Inode,
    /// The attributes to set after the directory is filled, because filling changes its times. New
    /// entries would inherit its lists.
    attributes: Attributes,
    is_new: bool,
}

impl<'a, 'b> Import<'a, 'b> {
    /// Prepares a copy into `fs`.
    pub fn new(job: &'a mut Job<'b>, fs: &'a Filesystem) -> Self {
        let (links, stack) = (Links::default(), Vec::new());
        let at = PathBuf::new();
        Self { job, fs, links, buffer: vec![0; CHUNK], stack, at, may_inherit: false }
    }

    /// Copies the entry `name` of a host directory to the name `target` in `dir`.
    pub fn entry(
        &mut self,
        source: &OwnedFd,
        name: &OsStr,
        dir: &Inode,
        target: &[u8],
    ) -> Result<()> {
        self.may_inherit |= dir.xattr(acl::DEFAULT).is_ok();
        self.copy(source, name, dir, target)?;
        self.descend()
    }

    /// Copies the content of a host directory into `dir`. Also sets the preserved attributes of the
    /// directory.
    pub fn contents(&mut self, source: OwnedFd, dir: &Inode) -> Result<()> {
        let attributes = self.of(&rustix::fs::fstat(&source).context(|| "the folder")?);
        self.may_inherit |= dir.xattr(acl::DEFAULT).is_ok();
        self.enter(source, dir.clone(), attributes, false)?;
        self.descend()
    }

    /// Copies until the stack is empty (`transfer::X2`).
    fn descend(&mut self) -> Result<()> {
        while let Some(mut level) = self.stack.pop() {
            match level.left.next()? {
                Some(name) => {
                    // If the entry is a directory, `copy` puts it onto the stack. This level goes
                    // back onto the stack below that directory.
                    let at = self.stack.len();
                    self.copy(&level.source, &name, &level.target, name.as_bytes())?;
                    self.stack.insert(at, level);
                }
                None => {
                    let xattrs =
                        self.xattrs(|| xattrs_of(&level.source)).context(|| "directory")?;
                    let set = (&level.attributes, &xattrs, level.is_new);
                    self.finish(&level.target, set, "directory")?;
                    self.at.pop();
                }
            }
        }
        Ok(())
    }

    fn enter(
        &mut self,
        source: OwnedFd,
        target: Inode,
        attributes: Attributes,
        is_new: bool,
    ) -> Result<()> {
        let left = Names::of(&source, self.job.skip)?;
        self.stack.push(Level { source, left, target, attributes, is_new });
        Ok(())
    }

    fn copy(&mut self, source: &OwnedFd, name: &OsStr, dir: &Inode, target: &[u8]) -> Result<()> {
        let text = || show(name.as_bytes());
        let stat = stat(source, name)?;
        let Some(kind) = kind(&stat) else {
            return Err(Failure::new(Exit::Failure, format!("{}: unknown kind of file", text())));
        };
        if kind == FileKind::Regular && self.job.images.contains(&(stat.st_dev, stat.st_ino)) {
            return Ok(());
        }
        self.job.bar.set_message(&text());
        if kind != FileKind::Directory && self.linked(&stat, dir, target).context(text)? {
            return Ok(());
        }
        let (uid, gid) =
            if self.job.keep.everything { (stat.st_uid, stat.st_gid) } else { caller() };
        let attributes = self.of(&stat);
        let mode = attributes.mode_in_volume(self.job.keep);
        let (mut opened, mut is_new) = (None, true);
        let inode = match kind {
            FileKind::Directory => {
                needs_recursive(self.job, &text())?;
                let child = open_child(source, name)?;
                self.at.push(OsStr::from_bytes(target));
                let make = || {
                    let (inode, made) = directory(dir, target, mode, (uid, gid))?;
                    is_new = made;
                    Ok(inode)
                };
                let made = self.job.special.directory(&self.at, dir, (mode, uid, gid), make);
                let inode = made.context(text)?;
                self.may_inherit |= !is_new && inode.xattr(acl::DEFAULT).is_ok();
                self.job.tally.directories += 1;
                return self.enter(child, inode, attributes, is_new);
            }
            FileKind::Regular => {
                let file = open_file(source, name, &stat)?;
                let inode;
                (inode, is_new) = regular(dir, target, mode, (uid, gid)).context(text)?;
                self.job.special.file(&self.at, target, &inode).context(text)?;
                self.content(&file, &text(), &inode)?;
                self.job.tally.files += 1;
                opened = Some(file);
                inode
            }
            FileKind::Symlink => {
                let link = rustix::fs::readlinkat(source, name, Vec::new()).context(text)?;
                self.job.tally.others += 1;
                replacing(dir, target, || dir.symlink(target, link.as_bytes(), uid, gid))
                    .context(text)?
            }
            _ => {
                let (major, minor) =
                    (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
                let device = u64::from(major) << 20 | u64::from(minor);
                self.job.tally.others += 1;
                replacing(dir, target, || {
                    dir.create(target, NewInode::of_mode(mode, device).owner(uid, gid))
                })
                .context(text)?
            }
        };
        if self.job.keep.everything && stat.st_nlink > 1 {
            self.links.first(&stat, inode.id());
        }
        let xattrs = self.xattrs(|| match &opened {
            Some(file) => xattrs_of(file),
            None => xattrs_at(source, name),
        });
        self.finish(&inode, (&attributes, &xattrs.context(text)?, is_new), &text())
    }

    /// Makes one more name of a file that has been copied already.
    fn linked(&mut self, stat: &Stat, dir: &Inode, target: &[u8]) -> buttress_fs::Result<bool> {
        if !self.job.keep.everything || stat.st_nlink < 2 {
            return Ok(false);
        }
        let Some(id) = self.links.another(stat, dir.id().tree) else { return Ok(false) };
        let inode = self.fs.inode(id)?;
        replacing(dir, target, || dir.link(&inode, target))?;
        self.job.special.link(&self.at, target);
        Ok(true)
    }

    /// Copies the data of a file and leaves its holes out.
    fn content(&mut self, file: &OwnedFd, what: &str, inode: &Inode) -> Result<()> {
        let text = || what.to_owned();
        let mut len = length(&rustix::fs::fstat(file).context(text)?);
        if len == 0 {
            return self.unmeasured(file, inode, what);
        }
        let (mut offset, mut is_shareable) = (0, false);
        while offset < len {
            let next = match self.job.canonical {
                Some(_) => next_data(file, offset, len).map(|next| next.map(whole_pieces(len))),
                None => next_data(file, offset, len),
            };
            let Some((start, end)) = next.context(text)? else { break };
            self.job.bar.add(start - offset);
            offset = start;
            while offset < end {
                let want = usize::try_from(end - offset).map_or(CHUNK, |left| left.min(CHUNK));
                let read =
                    rustix::io::pread(file, &mut self.buffer[..want], offset).context(text)?;
                if read == 0 {
                    // The file was truncated during the copy, or is shorter than it seemed.
                    self.job.bar.add(len - offset);
                    len = offset;
                    break;
                }
                let piece = &self.buffer[..read];
                let whole = if self.job.clones.is_some() { read / BLOCK * BLOCK } else { 0 };
                if let Some(clones) = self.job.clones.filter(|_| whole > 0) {
                    if !is_shareable {
                        clones.expect_shareable(file, what)?;
                        is_shareable = true;
                    }
                    let (first, rest) = piece.split_at(whole);
                    let write = || inode.write_direct(offset, first);
                    clones.write(file, (offset, first), write).context(text)?.context(text)?;
                    if !rest.is_empty() {
                        inode.write_at(offset + whole as u64, rest).context(text)?;
                    }
                } else if self.job.canonical.is_some() {
                    write_data(inode, offset, piece).context(text)?;
                } else {
                    inode.write_at(offset, piece).context(text)?;
                }
                offset += read as u64;
                self.job.bar.add(read as u64);
                self.job.tally.bytes += read as u64;
            }
        }
        self.job.bar.add(len.saturating_sub(offset));
        if inode.attr().size < len {
            let size = SetAttr { size: Some(len), ..SetAttr::default() };
            inode.set_attr(&size).context(text)?;
        }
        Ok(())
    }

    /// Copies what can be read of a file without a length: the kernel makes some up when they are
    /// read.
    fn unmeasured(&mut self, file: &OwnedFd, inode: &Inode, what: &str) -> Result<()> {
        let text = || what.to_owned();
        let mut offset = 0;
        loop {
            let read = rustix::io::pread(file, &mut self.buffer[..], offset).context(text)?;
            if read == 0 {
                return Ok(());
            }
            inode.write_at(offset, &self.buffer[..read]).context(text)?;
            offset += read as u64;
            self.job.tally.bytes += read as u64;
        }
    }

    /// The attributes of a source. If equal trees must become equal volumes, no time is later than
    /// the last one allowed, and access times are not used.
    fn of(&self, stat: &Stat) -> Attributes {
        let mut found = Attributes::from(stat);
        if let Some(last) = self.job.canonical {
            if found.mtime.sec >= last {
                found.mtime = Timespec { sec: last, nsec: 0 };
            }
            found.atime = found.mtime;
        }
        found
    }

    /// Reads the extended attributes of a source, if the copy keeps any.
    fn xattrs(
        &self,
        read: impl FnOnce() -> rustix::io::Result<Xattrs>,
    ) -> rustix::io::Result<Xattrs> {
        if self.job.keep.modes() { read() } else { Ok(Xattrs::new()) }
    }

    /// Sets the attributes of a copy, after everything that would change them.
    fn finish(
        &mut self,
        inode: &Inode,
        (attributes, xattrs, is_new): (&Attributes, &Xattrs, bool),
        what: &str,
    ) -> Result<()> {
        let inherits = self.may_inherit;
        let set = attributes.set_in_volume(self.job.keep, inode, (xattrs, inherits), is_new);
        set.context(|| what.to_owned())?;
        self.may_inherit |= xattrs.iter().any(|(name, _)| name == acl::DEFAULT);
        Ok(())
    }
}

/// The size of a block in bytes. If equal trees must become equal volumes, a block of zeros becomes
/// a hole.
const BLOCK: usize = 4096;

/// Widens a run of data to whole pieces of the file, because file systems report holes in their own
/// block sizes.
fn whole_pieces(len: u64) -> impl Fn((u64, u64)) -> (u64, u64) {
    let piece = CHUNK as u64;
    move |(start, end)| (start / piece * piece, end.next_multiple_of(piece).min(len))
}

/// Writes all blocks that are not zero, in runs.
pub(super) fn write_data(inode: &Inode, offset: u64, piece: &[u8]) -> buttress_fs::Result<()> {
    let mut at = 0;
    while at < piece.len() {
        let is_zero = |from: usize| {
            let block = &piece[from..piece.len().min(from + BLOCK)];
            block.iter().all(|byte| *byte == 0)
        };
        let mut end = at;
        while end < piece.len() && !is_zero(end) {
            end = piece.len().min(end + BLOCK);
        }
        if end > at {
            inode.write_at(offset + at as u64, &piece[at..end])?;
        }
        at = end;
        while at < piece.len() && is_zero(at) {
            at = piece.len().min(at + BLOCK);
        }
    }
    Ok(())
}

/// Returns the next run of data at or after `offset`, or the whole rest if the host cannot tell.
pub(super) fn next_data(
    file: &OwnedFd,
    offset: u64,
    len: u64,
) -> rustix::io::Result<Option<(u64, u64)>> {
    if offset >= len {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL) => return Ok(Some((offset, len))),
        Err(errno) => return Err(errno),
    };
    if start >= len {
        return Ok(None);
    }
    let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(len);
    Ok(Some((start, end.min(len))))
}

pub(super) fn open_child(dir: &OwnedFd, name: &OsStr) -> Result<OwnedFd> {
    rustix::fs::openat(dir, name, DIR_FLAGS, Mode::empty()).context(|| show(name.as_bytes()))
}

/// Opens a regular file that `stat` found. The attributes of one file never come to the content of
/// another, if the name leads to another file by now.
pub(super) fn open_file(dir: &OwnedFd, name: &OsStr, found: &Stat) -> Result<OwnedFd> {
    let text = || show(name.as_bytes());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(dir, name, flags, Mode::empty()).context(text)?;
    let now = rustix::fs::fstat(&file).context(text)?;
    if (now.st_dev, now.st_ino, kind(&now)) != (found.st_dev, found.st_ino, kind(found)) {
        return Err(Failure::new(Exit::Failure, format!("{}: was replaced meanwhile", text())));
    }
    Ok(file)
}

pub(super) fn stat(dir: &OwnedFd, name: &OsStr) -> Result<Stat> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).context(|| show(name.as_bytes()))
}

pub(super) fn kind(stat: &Stat) -> Option<FileKind> {
    FileKind::from_mode(stat.st_mode)
}

pub(super) fn length(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}
