//! Copies names, attributes and the map of content from ext4 into the new volume.
//!
//! # Invariants
//!
//! - **C1** Content stays where it is, except for content in reserved ranges.
//! - **C2** A directory gets its times and its default access control list after all of its names.
//!   Each new name changes the times and inherits the list. Flags are set last of all: an immutable
//!   file takes no further name.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use buttress_base::RangeSet;
use buttress_block::Device;
use buttress_format::{Extent, InodeFlags};
use buttress_fs::{FileKind, Filesystem, InodeId, NewInode, SetAttr, XattrFlags};

use crate::error::{Error, Result};
use crate::ext4::{self, Ext4, Kind};
use crate::plan::Content;

/// The flags that both file systems have, by the number in ext4 and by the number in btrfs.
const FLAGS: [(u32, u64); 6] = [
    (0x8, InodeFlags::SYNC),
    (0x10, InodeFlags::IMMUTABLE),
    (0x20, InodeFlags::APPEND),
    (0x40, InodeFlags::NODUMP),
    (0x80, InodeFlags::NOATIME),
    (0x1_0000, InodeFlags::DIRSYNC),
];

/// The mask of the permission bits.
const PERMISSIONS: u32 = 0o7777;

/// Bytes that are read at a time for a copy.
const COPY_BYTES: u64 = 1 << 20;

/// The counts of a conversion.
///
/// Plain data: counts for the caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Inodes of all kinds.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Bytes that stay where they are.
    pub kept_bytes: u64,
    /// Bytes that were copied, since btrfs needs their place.
    pub copied_bytes: u64,
}

/// A copy under way.
pub(crate) struct Copy<'a> {
    pub(crate) ext4: &'a Ext4,
    pub(crate) device: &'a Arc<dyn Device>,
    pub(crate) fs: &'a Filesystem,
    pub(crate) extents: &'a [Extent],
    /// The used bytes in ranges that btrfs needs.
    pub(crate) moves: &'a RangeSet,
    /// Whether files have checksums.
    pub(crate) has_sums: bool,
    pub(crate) tally: Tally,
    pub(crate) saw: &'a mut dyn FnMut(u64),
    /// Inodes with several names, and their copies.
    links: HashMap<u32, InodeId>,
    /// Directories that were met.
    seen: HashSet<u32>,
    late: Vec<(InodeId, SetAttr, Option<Vec<u8>>)>,
    flags: Vec<(InodeId, u64)>,
}

impl<'a> Copy<'a> {
    pub(crate) fn new(
        (ext4, device): (&'a Ext4, &'a Arc<dyn Device>),
        fs: &'a Filesystem,
        (extents, moves): (&'a [Extent], &'a RangeSet),
        has_sums: bool,
        saw: &'a mut dyn FnMut(u64),
    ) -> Self {
        let (links, late, flags) = (HashMap::new(), Vec::new(), Vec::new());
        let seen = HashSet::from([ext4::ROOT]);
        let tally = Tally::default();
        Self { ext4, device, fs, extents, moves, has_sums, tally, saw, links, seen, late, flags }
    }

    /// Copies all names below the top.
    pub(crate) fn all(&mut self) -> Result<()> {
        let top = self.fs.root();
        let root = self.inode(ext4::ROOT)?;
        if root.kind != Kind::Directory {
            return Err(Error::NotClean("its top is no directory".to_owned()));
        }
        self.attributes(&root, &top)?;
        let mut waiting = vec![(root, top.id())];
        while let Some((dir, id)) = waiting.pop() {
            let to = self.fs.inode(id)?;
            for entry in self.ext4.list(&dir)? {
                if let Some(below) = self.entry(&entry, &to)? {
                    waiting.push(below);
                }
            }
        }
        for (id, set, default) in std::mem::take(&mut self.late) {
            let inode = self.fs.inode(id)?;
            if let Some(default) = default {
                inode.set_xattr(ext4::DEFAULT_ACL, &default, XattrFlags::default())?;
            }
            inode.set_attr(&set)?;
        }
        Ok(())
    }

    /// Sets the flags of files. With some flags, a file permits no further change (C2).
    pub(crate) fn finish(self) -> Result<Tally> {
        for (id, flags) in self.flags {
            let inode = self.fs.inode(id)?;
            let attr = inode.attr();
            let set = SetAttr {
                flags: Some(attr.flags | flags),
                ctime: Some(attr.ctime),
                ..SetAttr::default()
            };
            inode.set_attr(&set)?;
        }
        Ok(self.tally)
    }

    fn inode(&self, number: u32) -> Result<ext4::Inode> {
        let found = self.ext4.inode(number)?;
        found.ok_or_else(|| Error::NotClean(format!("a name is of inode {number}, which is free")))
    }

    /// Copies one name. Returns a directory that has to be filled.
    fn entry(
        &mut self,
        entry: &ext4::Entry,
        dir: &buttress_fs::Inode,
    ) -> Result<Option<(ext4::Inode, InodeId)>> {
        if let Some(&id) = self.links.get(&entry.inode) {
            dir.link(&self.fs.inode(id)?, &entry.name)?;
            return Ok(None);
        }
        let from = self.inode(entry.inode)?;
        let (name, mode) = (&entry.name[..], from.mode & PERMISSIONS);
        let create = |kind: FileKind| {
            let device = from.device()?;
            Ok::<_, Error>(dir.create(
                name,
                NewInode::of_mode(mode | kind.mode_bits(), device).owner(from.uid, from.gid),
            )?)
        };
        let to = match from.kind {
            Kind::Directory => dir.mkdir(name, mode, from.uid, from.gid)?,
            Kind::Symlink => dir.symlink(name, &self.ext4.target(&from)?, from.uid, from.gid)?,
            Kind::Regular => dir.create(name, NewInode::file(mode).owner(from.uid, from.gid))?,
            Kind::Character => create(FileKind::Character)?,
            Kind::Block => create(FileKind::Block)?,
            Kind::Fifo => create(FileKind::Fifo)?,
            Kind::Socket => create(FileKind::Socket)?,
        };
        if from.kind == Kind::Regular {
            let content = Content::of(&self.ext4.runs(&from)?, self.extents);
            self.fill(&to, &content, from.size)?;
        }
        self.attributes(&from, &to)?;
        if from.kind == Kind::Directory {
            if !self.seen.insert(from.number) {
                return Err(Error::NotClean(format!("directory {} has two names", from.number)));
            }
            self.tally.directories += 1;
            return Ok(Some((from, to.id())));
        }
        if from.links > 1 {
            self.links.insert(from.number, to.id());
        }
        Ok(None)
    }

    /// Gives a file its content.
    pub(crate) fn fill(
        &mut self,
        to: &buttress_fs::Inode,
        content: &Content,
        size: u64,
    ) -> Result<()> {
        if !self.has_sums {
            to.leave_out_checksums()?;
        }
        // Blocks may be allocated behind the end of a file. No program sees such blocks, so they
        // are left out.
        let end = size.next_multiple_of(ext4::BLOCK);
        let pieces: Vec<_> =
            content.pieces.iter().copied().filter(|piece| piece.offset < end).collect();
        to.adopt(&pieces, size)?;
        self.tally.kept_bytes += pieces.iter().map(|piece| piece.len).sum::<u64>();
        for (offset, bytes) in &content.copies {
            if !self.moves.contains_all(bytes) {
                return Err(Error::NotClean("a file has a block that counts as free".to_owned()));
            }
            let mut at = bytes.start;
            while at < bytes.end {
                let offset = offset + at - bytes.start;
                let len = COPY_BYTES.min(bytes.end - at).min(size.saturating_sub(offset));
                if len == 0 {
                    break;
                }
                let mut buf = vec![0; len as usize];
                self.device.read_at(at, &mut buf)?;
                to.write_at(offset, &buf)?;
                self.tally.copied_bytes += len;
                at += len;
            }
        }
        Ok(())
    }

    /// Copies attributes, owners and times.
    fn attributes(&mut self, from: &ext4::Inode, to: &buttress_fs::Inode) -> Result<()> {
        let mut default = None;
        for (name, value) in self.ext4.attributes(from)? {
            if name == ext4::DEFAULT_ACL {
                default = Some(value);
                continue;
            }
            to.set_xattr(&name, &value, XattrFlags::default())?;
        }
        let set = SetAttr {
            mode: (from.kind != Kind::Symlink).then_some(from.mode & PERMISSIONS),
            uid: Some(from.uid),
            gid: Some(from.gid),
            atime: Some(from.atime),
            mtime: Some(from.mtime),
            ctime: Some(from.ctime),
            ..SetAttr::default()
        };
        // Each further name of a file changes the times of the file.
        if from.kind == Kind::Directory || from.links > 1 {
            self.late.push((to.id(), set, default));
        } else {
            to.set_attr(&set)?;
        }
        let flags = FLAGS.iter().filter(|(ext4, _)| from.flags & ext4 != 0);
        let flags = flags.fold(0, |all, (_, ours)| all | ours);
        if flags != 0 {
            self.flags.push((to.id(), flags));
        }
        self.tally.inodes += 1;
        (self.saw)(self.tally.inodes);
        Ok(())
    }
}
