//! Copies from a volume to the host.
//!
//! Names and links of a volume are untrusted bytes. A name that is a path is refused. Nothing is
//! ever written through a symbolic link (`transfer::X1`), not even one that another process puts
//! there meanwhile.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use buttress_fs::{Attr, ErrorKind, FileKind, Inode, InodeId, NameError};
use rustix::fs::{FileType, Mode};

use super::{CHUNK, Job, needs_recursive};
use crate::host::{link_again, make_directory, make_file, make_room, open_made, write_all};
use crate::listing::{self, Entry};
use crate::rights::{Attributes, Xattrs, xattrs_of};
use buttress_control::exit::{Context, Exit, Failure, Result};
use buttress_control::location::show;

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
    /// Whether the copy made `target`.
    is_new: bool,
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
                // Lists of rights come last: entries would inherit them, or not be allowed.
                let attributes = Attributes::from(&level.source.attr());
                let (keep, xattrs) = (self.job.keep, self.xattrs(&level.source)?);
                let set = attributes.set_on_host(keep, &level.target, &xattrs, level.is_new);
                set.context(|| level.path.display().to_string())?;
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
                link_again(top, first, dir, name).context(text)?;
                return Ok(());
            }
            self.links.insert(attr.id, path.join(name));
        }
        let attributes = Attributes::from(attr);
        let mode = attributes.mode_at_first(self.job.keep);
        let made = match attr.kind {
            FileKind::Directory => {
                needs_recursive(self.job, &text())?;
                let (target, is_new) = make_directory(dir, name).context(text)?;
                let left = listing::entries(inode).context(text)?.into_iter();
                self.job.tally.directories += 1;
                let path = path.join(name);
                self.stack.push(Level { target, path, left, source: inode.clone(), is_new });
                return Ok(());
            }
            FileKind::Regular => {
                let file = make_file(dir, name, mode).context(text)?;
                self.content(inode, attr, &file, name)?;
                self.job.tally.files += 1;
                file
            }
            FileKind::Symlink => {
                let link = inode.read_link().context(text)?;
                rustix::fs::symlinkat(OsStr::from_bytes(&link), dir, name).context(text)?;
                self.job.tally.others += 1;
                open_made(dir, name, attr.kind).context(text)?
            }
            FileKind::Character | FileKind::Block | FileKind::Fifo | FileKind::Socket => {
                let kind = FileType::from_raw_mode(attr.mode);
                let (major, minor) = ((attr.rdev >> 20) as u32, (attr.rdev & 0xf_ffff) as u32);
                let device = rustix::fs::makedev(major, minor);
                let mode = Mode::from(mode & 0o777);
                rustix::fs::mknodat(dir, name, kind, mode, device).context(text)?;
                self.job.tally.others += 1;
                open_made(dir, name, attr.kind).context(text)?
            }
        };
        let xattrs = self.xattrs(inode)?;
        attributes.set_on_host(self.job.keep, &made, &xattrs, true).context(text)
    }

    fn content(&mut self, inode: &Inode, attr: &Attr, file: &OwnedFd, name: &OsStr) -> Result<()> {
        let text = || show(name.as_bytes());
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
                write_all(file, &self.buffer[..read], offset).context(text)?;
                offset += read as u64;
                self.job.bar.add(read as u64);
                self.job.tally.bytes += read as u64;
            }
        }
        self.job.bar.add(attr.size.saturating_sub(offset));
        rustix::fs::ftruncate(file, attr.size).context(text)
    }

    /// Reads the extended attributes that the copy keeps.
    fn xattrs(&self, inode: &Inode) -> Result<Xattrs> {
        xattrs_of(inode, self.job.keep).context(|| "extended attributes")
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
