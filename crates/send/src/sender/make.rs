//! Sends inodes: creates them at their final place, then sets their attributes and content.

use std::io::Write;

use buttress_format::{Body, Ino, InodeFlags, InodeItem};

use super::Sender;
use super::diff::Change;
use super::paths::path;
use super::tree::{
    DIRECTORY, Inode, Link, REGULAR, SYMLINK, TYPE, has_inheritable_xattrs, is_dir, is_inherited,
};
use crate::error::Result;
use crate::stream::{Command, Version};

const FIFO: u32 = 0o010_000;
const SOCKET: u32 = 0o140_000;

/// A write or a change of owner removes this attribute, so it is set last.
const CAPABILITY: &[u8] = b"security.capability";

impl<W: Write> Sender<'_, '_, W> {
    /// Sends the differences of one inode. The module `names` has already moved and removed names
    /// that the old tree has.
    pub(super) fn inode(&mut self, change: &Change) -> Result<()> {
        let ino = change.ino;
        let Some(inode) = self.new.inode(ino)? else { return Ok(()) };
        let old = self.same_in_old(ino, &inode.item)?;
        let at = match (&old, ino) {
            (_, Ino::ROOT_DIR) => Vec::new(),
            (Some(_), _) => self.paths.of(first(&inode))?,
            (None, _) => self.make(ino, &inode)?,
        };
        self.xattrs(&at, &inode, old.as_ref())?;
        let mut written = false;
        if inode.item.mode & TYPE == REGULAR {
            written =
                self.content(&at, ino, &inode.item, old.as_ref().map(|old| &old.item), change)?;
        }
        self.attributes(&at, &inode, old.as_ref(), written)?;
        if is_dir(&inode.item) {
            self.stamps_due.insert(ino);
            if old.is_none() && has_inheritable_xattrs(&inode) {
                self.deferred_xattrs.insert(ino);
            }
            return Ok(());
        }
        self.verity(&at, ino, &inode, old.as_ref())?;
        self.stamp(&at, &inode.item)
    }

    /// The inode in the old tree, if it is the same inode.
    fn same_in_old(&self, ino: Ino, item: &InodeItem) -> Result<Option<Inode>> {
        let Some(old) = self.old else { return Ok(None) };
        let found = old.inode(ino)?;
        // Another generation means a different inode with a reused number. The top directory is
        // always the same inode.
        Ok(found.filter(|old| old.item.generation == item.generation || ino == Ino::ROOT_DIR))
    }

    /// Whether the receiver has a directory already.
    fn is_there(&self, ino: Ino) -> Result<bool> {
        if ino == Ino::ROOT_DIR || ino < self.current || self.made_ahead.contains(&ino) {
            return Ok(true);
        }
        let Some(item) = self.new.inode_item(ino)? else { return Ok(false) };
        let Some(old) = self.old else { return Ok(false) };
        let old = old.inode_item(ino)?;
        Ok(old.is_some_and(|old| old.generation == item.generation))
    }

    /// Makes a directory and its parents, as far as they do not exist.
    fn make_parents(&mut self, ino: Ino) -> Result<()> {
        let mut missing = Vec::new();
        let mut at = ino;
        while !self.is_there(at)? {
            missing.push(at);
            let link = self.new.first_link(at)?;
            at = link.ok_or_else(|| self.new.damaged(at, "a directory without a name"))?.parent;
            if missing.len() > super::paths::DEPTH_MAX {
                return Err(self.new.damaged(ino, "the way up from it does not end"));
            }
        }
        while let Some(dir) = missing.pop() {
            let inode = self.new.inode(dir)?;
            let inode = inode.ok_or_else(|| self.new.damaged(dir, "a directory without a name"))?;
            self.make_here(dir, &inode)?;
            self.stamps_due.insert(first(&inode).parent);
            self.made_ahead.insert(dir);
        }
        Ok(())
    }

    /// Makes a new inode with all its names; returns the first path.
    fn make(&mut self, ino: Ino, inode: &Inode) -> Result<Vec<u8>> {
        let at = self.named(first(inode))?;
        if self.made_ahead.remove(&ino) {
            return Ok(at);
        }
        self.make_here(ino, inode)?;
        for link in &inode.links[1..] {
            let name = self.named(link)?;
            self.emit(&Command::Link { path: path(&name)?, existing: path(&at)? })?;
        }
        Ok(at)
    }

    /// Makes an inode under its first name, in an existing directory.
    fn make_here(&mut self, ino: Ino, inode: &Inode) -> Result<()> {
        let link = first(inode);
        let at = self.paths.of(link)?;
        if !self.inherits(link.parent)? {
            return self.make_at(&at, ino, inode);
        }
        let aside = self.spare_name(ino, &inode.item)?;
        self.make_at(&aside, ino, inode)?;
        self.stamps_due.insert(Ino::ROOT_DIR);
        self.emit(&Command::Rename { path: path(&aside)?, to: path(&at)? })
    }

    /// Whether new entries of a directory inherit attributes from it. New directories get such
    /// attributes last.
    fn inherits(&self, dir: Ino) -> Result<bool> {
        if dir == Ino::ROOT_DIR {
            // An entry that must not inherit is made in the top directory first. Outside of the top
            // directory there is no place for a temporary name. So entries of the top directory are
            // made in that directory directly.
            return Ok(false);
        }
        let Some(new) = self.new.inode(dir)? else { return Ok(false) };
        let old = self.same_in_old(dir, &new.item)?;
        Ok(old.is_some_and(|old| has_inheritable_xattrs(&old) || has_inheritable_xattrs(&new)))
    }

    /// A name in the top directory that no entry has.
    fn spare_name(&self, ino: Ino, item: &InodeItem) -> Result<Vec<u8>> {
        let mut count = 0_u64;
        loop {
            let name = format!("o{ino}-{}-{count}", item.generation).into_bytes();
            let old = self.old.map_or(Ok(None), |old| old.lookup(Ino::ROOT_DIR, &name))?;
            if old.is_none() && self.new.lookup(Ino::ROOT_DIR, &name)?.is_none() {
                return Ok(name);
            }
            count += 1;
        }
    }

    fn make_at(&mut self, at: &[u8], ino: Ino, inode: &Inode) -> Result<()> {
        let number = ino.0;
        let to = path(at)?;
        let mode = inode.item.mode;
        match mode & TYPE {
            REGULAR => self.emit(&Command::MkFile { path: to, ino: number })?,
            DIRECTORY => self.emit(&Command::MkDir { path: to, ino: number })?,
            FIFO => self.emit(&Command::MkFifo { path: to, ino: number })?,
            SOCKET => self.emit(&Command::MkSock { path: to, ino: number })?,
            SYMLINK => {
                let target = self.target(ino, &inode.item)?;
                self.emit(&Command::Symlink { path: to, ino: number, target: &target })?;
            }
            _ => {
                let rdev = pack_device(inode.item.rdev);
                let command = Command::MkNod { path: to, ino: number, mode: mode.into(), rdev };
                self.emit(&command)?;
            }
        }
        Ok(())
    }

    /// The path of a name. The directory of the name is made if the receiver does not have it yet.
    fn named(&mut self, link: &Link) -> Result<Vec<u8>> {
        self.make_parents(link.parent)?;
        self.stamps_due.insert(link.parent);
        self.paths.of(link)
    }

    fn target(&self, ino: Ino, item: &InodeItem) -> Result<Vec<u8>> {
        let mapping = self.new.mapping(ino, 0)?;
        match mapping.map(|mapping| mapping.extent) {
            Some(extent) if extent.compression == buttress_format::Compression::None => {
                match extent.body {
                    Body::Inline(target) if target.len() as u64 == item.size => Ok(target),
                    _ => {
                        Err(self.new.damaged(ino, "a symbolic link without its target in its item"))
                    }
                }
            }
            _ => {
                let id = buttress_fs::InodeId { tree: self.new.id, ino };
                Ok(self.fs.inode(id)?.read_link()?)
            }
        }
    }

    fn xattrs(&mut self, at: &[u8], inode: &Inode, old: Option<&Inode>) -> Result<()> {
        let to = path(at)?;
        for name in old.into_iter().flat_map(|old| old.xattrs.keys()) {
            if !inode.xattrs.contains_key(name) {
                self.emit(&Command::RemoveXattr { path: to, name })?;
            }
        }
        for (name, value) in &inode.xattrs {
            let before = old.and_then(|old| old.xattrs.get(name));
            let late = old.is_none() && is_deferred(inode, name);
            if before != Some(value) && name != CAPABILITY && !late {
                self.emit(&Command::SetXattr { path: to, name, value })?;
            }
        }
        Ok(())
    }

    /// Sets the attributes that a new directory must not have while entries are made in it.
    pub(super) fn send_deferred_xattrs(&mut self, at: &[u8], inode: &Inode) -> Result<()> {
        for (name, value) in inode.xattrs.iter().filter(|(name, _)| is_deferred(inode, name)) {
            self.emit(&Command::SetXattr { path: path(at)?, name, value })?;
        }
        Ok(())
    }

    /// Makes the receiver enable fs-verity, once the content is complete: later writes are refused.
    fn verity(&mut self, at: &[u8], ino: Ino, inode: &Inode, old: Option<&Inode>) -> Result<()> {
        let has = |inode: &Inode| inode.item.flags & InodeFlags::RO_VERITY != 0;
        if self.options.version < Version::Three || !has(inode) || old.is_some_and(has) {
            return Ok(());
        }
        let id = buttress_fs::InodeId { tree: self.new.id, ino };
        let Some(known) = self.fs.inode(id)?.verity()? else { return Ok(()) };
        self.emit(&Command::EnableVerity {
            path: path(at)?,
            algorithm: known.hash as u8,
            block_size: 1 << known.log_block,
            salt: &known.salt,
            signature: &known.signature,
        })
    }

    fn attributes(
        &mut self,
        at: &[u8],
        inode: &Inode,
        old: Option<&Inode>,
        written: bool,
    ) -> Result<()> {
        let to = path(at)?;
        let item = &inode.item;
        let owner = |item: &InodeItem| (item.uid, item.gid);
        let given = old.is_none_or(|old| owner(&old.item) != owner(item));
        if given {
            self.emit(&Command::Chown { path: to, uid: item.uid, gid: item.gid })?;
        }
        // A change of owner clears the set-id bits.
        let mode = old.is_none_or(|old| old.item.mode != item.mode) || given;
        if mode && item.mode & TYPE != SYMLINK {
            self.emit(&Command::Chmod { path: to, mode: (item.mode & 0o7777).into() })?;
        }
        if let Some(value) = inode.xattrs.get(CAPABILITY) {
            let before = old.and_then(|old| old.xattrs.get(CAPABILITY));
            if given || written || before != Some(value) {
                self.emit(&Command::SetXattr { path: to, name: CAPABILITY, value })?;
            }
        }
        Ok(())
    }
}

/// Whether a new inode gets an attribute only after all its entries are made.
fn is_deferred(inode: &Inode, name: &[u8]) -> bool {
    is_dir(&inode.item) && is_inherited(name)
}

/// The first name of an inode, by which commands address the inode.
fn first(inode: &Inode) -> &Link {
    inode.links.first().expect("only the top has no names, and was asked for before")
}

/// A device number as system calls pack it, from the format's (major << 20 | minor).
fn pack_device(rdev: u64) -> u64 {
    let (major, minor) = (rdev >> 20, rdev & 0xf_ffff);
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Device number 8:300 is packed as Linux packs it.
    #[test]
    fn device_numbers_are_packed() {
        assert_eq!(pack_device(8 << 20 | 300), 0x0010_082c);
        assert_eq!(pack_device(5 << 20 | 7), 0x507);
    }
}
