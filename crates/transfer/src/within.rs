//! Copies from a volume to the same volume or to another volume.

use std::collections::HashMap;

use buttress_fs::{ErrorKind, FileKind, Filesystem, Inode, InodeId, NameError, NewInode, SetAttr};

use super::rights::{Attributes, xattrs_of};
use super::{CHUNK, Job, Reflink, acl, caller, directory, needs_recursive, regular, replacing};
use crate::listing::{self, Entry};
use buttress_control::exit::{Context, Exit, Failure, Result};
use buttress_control::location::show;

/// Copies into one volume from one volume, which may be the same.
pub struct Within<'a, 'b> {
    job: &'a mut Job<'b>,
    /// The volume with the copies.
    fs: &'a Filesystem,
    /// The first copy of every file with several names.
    links: HashMap<InodeId, InodeId>,
    buffer: Vec<u8>,
    stack: Vec<Level>,
    /// The first copy of a directory.
    first: Option<InodeId>,
    /// Whether a directory of the copy may have a list of rights that new entries inherit.
    may_inherit: bool,
}

/// A directory being copied.
struct Level {
    left: std::vec::IntoIter<Entry>,
    source: Inode,
    target: Inode,
    is_new: bool,
}

/// A function that changes a new regular file before it has content.
type Made<'m> = &'m dyn Fn(&mut Job<'_>, &Inode) -> buttress_fs::Result<()>;

impl<'a, 'b> Within<'a, 'b> {
    /// Prepares a copy into `fs`.
    pub fn new(job: &'a mut Job<'b>, fs: &'a Filesystem) -> Self {
        let (links, stack) = (HashMap::new(), Vec::new());
        Self { job, fs, links, buffer: vec![0; CHUNK], stack, first: None, may_inherit: false }
    }

    /// Copies `inode` to the name `target` in `dir`.
    pub fn entry(&mut self, inode: &Inode, dir: &Inode, target: &[u8]) -> Result<()> {
        let made = &|_: &mut Job<'_>, _: &Inode| Ok(());
        self.may_inherit |= dir.xattr(acl::DEFAULT).is_ok();
        self.first = None;
        self.copy(inode, dir, target, made)?;
        while let Some(mut level) = self.stack.pop() {
            let Some(entry) = level.left.next() else {
                self.finish(&level.source, &level.target, level.is_new).context(|| show(target))?;
                continue;
            };
            let at = self.stack.len();
            self.copy(&entry.inode, &level.target, &entry.name, made)?;
            self.stack.insert(at, level);
        }
        Ok(())
    }

    /// Copies anything but a directory to the name `target` in `dir`. A new regular file is shown
    /// to `made` before it has content.
    pub(super) fn file(
        &mut self,
        inode: &Inode,
        dir: &Inode,
        target: &[u8],
        made: Made<'_>,
    ) -> Result<()> {
        self.may_inherit |= dir.xattr(acl::DEFAULT).is_ok();
        self.copy(inode, dir, target, made)
    }

    fn copy(&mut self, inode: &Inode, dir: &Inode, name: &[u8], made: Made<'_>) -> Result<()> {
        let text = || show(name);
        let attr = inode.attr();
        let keep = self.job.keep;
        let (uid, gid) = if keep.everything { (attr.uid, attr.gid) } else { caller() };
        let mode = Attributes::from(&attr).mode_in_volume(keep);
        self.job.bar.set_message(&text());
        // The numbers of two volumes say nothing about each other.
        let is_one_volume = self.fs.is_of_present(inode);
        if attr.kind != FileKind::Directory {
            let is_it = |found: Inode| is_one_volume && found.id() == inode.id();
            if dir.lookup(name).is_ok_and(is_it) {
                let what = format!("{}: is the same file on both sides", text());
                return Err(Failure::new(Exit::Failure, what));
            }
            if self.linked(inode.id(), dir, name).context(text)? {
                return Ok(());
            }
        }
        let mut is_new = true;
        let copied = match attr.kind {
            FileKind::Directory => {
                needs_recursive(self.job, &text())?;
                if is_one_volume && self.first == Some(inode.id()) {
                    let what = format!("{}: a directory cannot be copied into itself", text());
                    return Err(Failure::new(Exit::Failure, what));
                }
                // The source is listed before the copy may appear in it.
                let left = listing::entries(inode).context(text)?.into_iter();
                let (target, is_new) = directory(dir, name, mode, (uid, gid)).context(text)?;
                self.first.get_or_insert(target.id());
                self.may_inherit |= !is_new && target.xattr(acl::DEFAULT).is_ok();
                self.job.tally.directories += 1;
                self.stack.push(Level { left, source: inode.clone(), target, is_new });
                return Ok(());
            }
            FileKind::Symlink => {
                let link = inode.read_link().context(text)?;
                self.job.tally.others += 1;
                replacing(dir, name, || dir.symlink(name, &link, uid, gid)).context(text)?
            }
            FileKind::Regular => {
                let copied;
                (copied, is_new) = regular(dir, name, mode, (uid, gid)).context(text)?;
                made(self.job, &copied).context(text)?;
                content(self.job, inode, &copied, attr.size, &mut self.buffer).context(text)?;
                self.job.tally.files += 1;
                copied
            }
            FileKind::Character | FileKind::Block | FileKind::Fifo | FileKind::Socket => {
                self.job.tally.others += 1;
                replacing(dir, name, || {
                    dir.create(name, NewInode::of_mode(mode, attr.rdev).owner(uid, gid))
                })
                .context(text)?
            }
        };
        if keep.everything && attr.nlink > 1 {
            self.links.insert(inode.id(), copied.id());
        }
        self.finish(inode, &copied, is_new).context(text)
    }

    /// Makes one more name of a file that has been copied already. Links do not lead from one
    /// subvolume to another.
    fn linked(&mut self, source: InodeId, dir: &Inode, name: &[u8]) -> buttress_fs::Result<bool> {
        let Some(copy) = self.links.get(&source).copied() else { return Ok(false) };
        if copy.tree != dir.id().tree || !self.job.keep.everything {
            return Ok(false);
        }
        if dir.lookup(name).is_ok_and(|found| found.id() == copy) {
            return Ok(true);
        }
        let copy = self.fs.inode(copy)?;
        replacing(dir, name, || dir.link(&copy, name))?;
        Ok(true)
    }

    fn finish(&mut self, source: &Inode, copy: &Inode, is_new: bool) -> buttress_fs::Result<()> {
        let (keep, attributes) = (self.job.keep, Attributes::from(&source.attr()));
        let xattrs = xattrs_of(source, keep)?;
        attributes.set_in_volume(keep, copy, (&xattrs, self.may_inherit), is_new)?;
        self.may_inherit |= xattrs.iter().any(|(name, _)| name == acl::DEFAULT);
        Ok(())
    }
}

fn content(
    job: &mut Job<'_>,
    source: &Inode,
    target: &Inode,
    size: u64,
    buffer: &mut [u8],
) -> buttress_fs::Result<()> {
    match job.reflink {
        Reflink::Never => {}
        Reflink::Always => return shared(job, source, target, size),
        Reflink::Auto => match shared(job, source, target, size) {
            // If the files are in different volumes, or only one of them has checksums, the data is
            // copied.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Invalid | ErrorKind::Name(NameError::CrossDevice)
                ) => {}
            done => return done,
        },
    }
    let mut offset = 0;
    while offset < size {
        offset = match source.seek_data(offset) {
            Ok(start) => start,
            Err(error) if error.kind() == ErrorKind::Name(NameError::NoSuchRange) => break,
            Err(error) => return Err(error),
        };
        let end = source.seek_hole(offset)?.min(size);
        while offset < end {
            let want = usize::try_from(end - offset).map_or(CHUNK, |left| left.min(CHUNK));
            let read = source.read_at(offset, &mut buffer[..want])?;
            if read == 0 {
                break;
            }
            target.write_at(offset, &buffer[..read])?;
            offset += read as u64;
            job.bar.add(read as u64);
            job.tally.bytes += read as u64;
        }
    }
    target.set_attr(&SetAttr { size: Some(size), ..SetAttr::default() })?;
    Ok(())
}

/// Lets the copy share the data of the source.
fn shared(job: &mut Job<'_>, source: &Inode, target: &Inode, size: u64) -> buttress_fs::Result<()> {
    source.clone_range(0, target, 0, 0)?;
    job.bar.add(size);
    job.tally.bytes += size;
    Ok(())
}
