//! Copies from the host to the host: between two mounts, or between a mount and any other folder.
//!
//! # Invariants
//!
//! - **AC1** A file is never copied onto itself, and a directory never into itself.
//! - **AC2** With [`Reflink::Always`], either the copy shares the data, or the copy fails. Mounts
//!   do not get the kernel's request to share, so there `copy_file_range` shares whole sectors.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use buttress_fs::FileKind;
use rustix::fs::{FileType, Mode, Stat};
use rustix::io::Errno;

use super::host::{
    link_again, make_directory, make_file, make_room, open_made, write_all, xattrs_at, xattrs_of,
};
use super::import::{kind, length, next_data, open_child, open_file, stat};
use super::names::Names;
use super::rights::Attributes;
use super::{CHUNK, Job, Reflink, needs_recursive};
use buttress_control::exit::{Context, Exit, Failure, Result};
use buttress_control::location::show;

/// The type of file systems that a program serves.
const FUSE: u64 = 0x6573_5546;

/// The most bytes of one `copy_file_range`. Between two calls the bar moves.
const RANGE_MAX: u64 = 256 << 20;

/// The device and the number of an inode.
type Id = (u64, u64);

/// Copies from the host to the host.
pub struct Across<'a, 'b> {
    job: &'a mut Job<'b>,
    /// The path of the first copy of every file with several names, from the top of the copy.
    links: HashMap<Id, PathBuf>,
    buffer: Vec<u8>,
    stack: Vec<Level>,
    /// The first directory that was made.
    first: Option<Id>,
}

/// A directory being copied.
struct Level {
    source: OwnedFd,
    left: Names,
    target: OwnedFd,
    /// The path of `target` from the top of the copy.
    path: PathBuf,
    attributes: Attributes,
    /// Whether the copy made `target`.
    is_new: bool,
}

/// The place of a copy: a name in a directory below the top of the copy.
#[derive(Clone, Copy)]
struct To<'t> {
    top: &'t OwnedFd,
    dir: &'t OwnedFd,
    name: &'t OsStr,
    /// The path of `dir` from the top.
    path: &'t Path,
}

impl<'a, 'b> Across<'a, 'b> {
    /// Prepares a copy.
    pub fn new(job: &'a mut Job<'b>) -> Self {
        let (links, stack) = (HashMap::new(), Vec::new());
        Self { job, links, buffer: vec![0; CHUNK], stack, first: None }
    }

    /// Copies the entry `name` of a directory to the name `target` in `top`.
    pub fn entry(
        &mut self,
        source: &OwnedFd,
        name: &OsStr,
        top: &OwnedFd,
        target: &OsStr,
    ) -> Result<()> {
        self.copy(source, name, To { top, dir: top, name: target, path: Path::new("") })?;
        while let Some(mut level) = self.stack.pop() {
            let Some(name) = level.left.next()? else {
                // Lists of rights come last: entries would inherit them, or not be allowed.
                let (keep, text) = (self.job.keep, || level.path.display().to_string());
                let xattrs = match keep.modes() {
                    true => xattrs_of(&level.source).context(text)?,
                    false => Vec::new(),
                };
                let set = level.attributes.set_on_host(keep, &level.target, &xattrs, level.is_new);
                set.context(text)?;
                continue;
            };
            // If the entry is a directory, `copy` puts it onto the stack. This level goes back
            // onto the stack below that directory (`transfer::X2`).
            let at = self.stack.len();
            let to = To { top, dir: &level.target, name: &name, path: &level.path };
            self.copy(&level.source, &name, to)?;
            self.stack.insert(at, level);
        }
        Ok(())
    }

    /// Copies the entries of a directory into `top`.
    pub fn contents(&mut self, source: &OwnedFd, top: &OwnedFd) -> Result<()> {
        let mut left = Names::of(source, self.job.skip)?;
        while let Some(name) = left.next()? {
            self.entry(source, &name, top, &name)?;
        }
        Ok(())
    }

    fn copy(&mut self, source: &OwnedFd, name: &OsStr, to: To<'_>) -> Result<()> {
        let text = || show(name.as_bytes());
        let found = stat(source, name)?;
        let Some(kind) = kind(&found) else {
            return Err(Failure::new(Exit::Failure, format!("{}: unknown kind of file", text())));
        };
        self.job.bar.set_message(&text());
        if kind == FileKind::Directory {
            return self.directory(source, name, &found, to);
        }
        expect_other(&found, to)?;
        make_room(to.dir, to.name, kind).context(text)?;
        if self.job.keep.everything && found.st_nlink > 1 {
            if let Some(first) = self.links.get(&id(&found)) {
                return link_again(to.top, first, to.dir, to.name).context(text);
            }
            self.links.insert(id(&found), to.path.join(to.name));
        }
        let (keep, attributes) = (self.job.keep, Attributes::from(&found));
        let mode = attributes.mode_at_first(keep);
        let mut xattrs = Vec::new();
        let made = match kind {
            FileKind::Regular => {
                let file = open_file(source, name, &found)?;
                let copy = make_file(to.dir, to.name, mode).context(text)?;
                self.content(&file, &copy, length(&found), &text())?;
                self.job.tally.files += 1;
                if keep.modes() {
                    xattrs = xattrs_of(&file).context(text)?;
                }
                copy
            }
            FileKind::Symlink => {
                let link = rustix::fs::readlinkat(source, name, Vec::new()).context(text)?;
                rustix::fs::symlinkat(&*link, to.dir, to.name).context(text)?;
                self.job.tally.others += 1;
                open_made(to.dir, to.name, kind).context(text)?
            }
            _ => {
                let raw = FileType::from_raw_mode(found.st_mode);
                let mode = Mode::from(mode & 0o777);
                rustix::fs::mknodat(to.dir, to.name, raw, mode, found.st_rdev).context(text)?;
                self.job.tally.others += 1;
                open_made(to.dir, to.name, kind).context(text)?
            }
        };
        if kind != FileKind::Regular && keep.modes() {
            xattrs = xattrs_at(source, name).context(text)?;
        }
        attributes.set_on_host(keep, &made, &xattrs, true).context(text)
    }

    fn directory(
        &mut self,
        source: &OwnedFd,
        name: &OsStr,
        found: &Stat,
        to: To<'_>,
    ) -> Result<()> {
        let text = || show(name.as_bytes());
        needs_recursive(self.job, &text())?;
        if self.first == Some(id(found)) {
            let what = format!("{}: a directory cannot be copied into itself", text());
            return Err(Failure::new(Exit::Failure, what));
        }
        let child = open_child(source, name)?;
        // The source is listed before the copy may appear in it.
        let left = Names::of(&child, self.job.skip)?;
        let (target, is_new) = make_directory(to.dir, to.name).context(text)?;
        if self.first.is_none() {
            self.first = Some(id(&rustix::fs::fstat(&target).context(text)?));
        }
        self.job.tally.directories += 1;
        let (path, attributes) = (to.path.join(to.name), Attributes::from(found));
        self.stack.push(Level { source: child, left, target, path, attributes, is_new });
        Ok(())
    }

    fn content(&mut self, file: &OwnedFd, copy: &OwnedFd, len: u64, what: &str) -> Result<()> {
        let text = || what.to_owned();
        let reflink = self.job.reflink;
        if reflink != Reflink::Never && rustix::fs::ioctl_ficlone(copy, file).is_ok() {
            self.job.bar.add(len);
            self.job.tally.bytes += len;
            return Ok(());
        }
        if reflink == Reflink::Always && !shares(file, copy).context(text)? {
            let what = format!("{}: its data cannot be shared; --reflink=auto copies it", text());
            return Err(Failure::new(Exit::Failure, what));
        }
        let mut end = self.ranges(file, copy, len).context(text)?;
        if len == 0 {
            // Files that the kernel makes up have no length before they are read.
            end = self.copy_unmeasured(file, copy).context(text)?;
        }
        rustix::fs::ftruncate(copy, end).context(text)
    }

    /// Copies what can be read of a file without a length. Returns the length.
    fn copy_unmeasured(&mut self, file: &OwnedFd, copy: &OwnedFd) -> rustix::io::Result<u64> {
        let mut offset = 0;
        loop {
            let read = rustix::io::pread(file, &mut self.buffer[..], offset)?;
            if read == 0 {
                return Ok(offset);
            }
            write_all(copy, &self.buffer[..read], offset)?;
            offset += read as u64;
            self.job.tally.bytes += read as u64;
        }
    }

    /// Copies the data of a file and leaves its holes out. Returns the length of the copy.
    fn ranges(&mut self, file: &OwnedFd, copy: &OwnedFd, len: u64) -> rustix::io::Result<u64> {
        let mut is_by_kernel = self.job.reflink != Reflink::Never;
        let mut offset = 0;
        while let Some((start, end)) = next_data(file, offset, len)? {
            self.job.bar.add(start - offset);
            offset = start;
            while offset < end {
                let done = if is_by_kernel {
                    match by_kernel(file, copy, offset, end) {
                        Ok(done) if done > 0 => done,
                        // With `Always`, the files lie on one mount, and this call shares (AC2).
                        Err(errno) if self.job.reflink == Reflink::Always => return Err(errno),
                        Err(errno) if !is_no_way(errno) => return Err(errno),
                        // Also where the kernel says that there is nothing left: it says so of
                        // files that it makes up.
                        _ => {
                            is_by_kernel = false;
                            continue;
                        }
                    }
                } else {
                    let want = usize::try_from(end - offset).map_or(CHUNK, |left| left.min(CHUNK));
                    let read = rustix::io::pread(file, &mut self.buffer[..want], offset)?;
                    write_all(copy, &self.buffer[..read], offset)?;
                    read as u64
                };
                if done == 0 {
                    // The file was truncated during the copy, or is shorter than it seemed.
                    self.job.bar.add(len - offset);
                    return Ok(offset);
                }
                offset += done;
                self.job.bar.add(done);
                self.job.tally.bytes += done;
            }
        }
        self.job.bar.add(len.saturating_sub(offset));
        Ok(len)
    }
}

/// Copies up to [`RANGE_MAX`] bytes in the kernel, or in the server of a mount.
fn by_kernel(file: &OwnedFd, copy: &OwnedFd, offset: u64, end: u64) -> rustix::io::Result<u64> {
    let (mut from, mut to) = (offset, offset);
    let len = usize::try_from((end - offset).min(RANGE_MAX)).unwrap_or(usize::MAX);
    let done = rustix::fs::copy_file_range(file, Some(&mut from), copy, Some(&mut to), len)?;
    Ok(done as u64)
}

/// Whether an error of `copy_file_range` means that reading and writing may work.
fn is_no_way(errno: Errno) -> bool {
    matches!(errno, Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// Whether `copy_file_range` shares data between two files of a mount (AC2). It copies if only one
/// of them has checksums.
fn shares(file: &OwnedFd, copy: &OwnedFd) -> rustix::io::Result<bool> {
    if rustix::fs::fstatfs(copy)?.f_type as u64 != FUSE {
        return Ok(false);
    }
    let has_no_sums = |file| {
        rustix::fs::ioctl_getflags(file).map(|flags| flags.contains(rustix::fs::IFlags::NOCOW))
    };
    let is_one = rustix::fs::fstat(file)?.st_dev == rustix::fs::fstat(copy)?.st_dev;
    Ok(is_one && has_no_sums(file)? == has_no_sums(copy)?)
}

/// Refuses a copy of a file onto itself (AC1).
fn expect_other(found: &Stat, to: To<'_>) -> Result<()> {
    let is_same = stat(to.dir, to.name).is_ok_and(|there| id(&there) == id(found));
    if is_same {
        let what = format!("{}: is the same file on both sides", show(to.name.as_bytes()));
        return Err(Failure::new(Exit::Failure, what));
    }
    Ok(())
}

fn id(stat: &Stat) -> Id {
    (stat.st_dev, stat.st_ino)
}
