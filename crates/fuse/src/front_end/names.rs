//! Names: finding, making, moving and removing them.
//!
//! # Invariants
//!
//! - **M1** If the directory has a default list, this list limits the mode of a new inode.
//!   Otherwise the umask limits the mode. The two never both apply. The volume applies the list;
//!   only this crate knows the umask.

use buttress_fs::{ErrorKind, Inode, NameError, NewInode, RenameFlags, mode};
use buttress_protocol::{Errno, OpenFlags, RenameFlags as Flags};

use super::{Caller, Entry, FrontEnd, Node, place, refuse};
use crate::attr;
use crate::errno::Answer;

/// The answer to `create`.
pub(crate) struct Created {
    pub(crate) entry: Entry,
    pub(crate) flags: OpenFlags,
}

impl FrontEnd {
    /// Answers `lookup`. A missing name is an answer as well, which the kernel may cache.
    pub(crate) fn lookup(&self, parent: u64, name: &[u8]) -> Answer<Entry> {
        let node = self.node(parent)?;
        let found = match name {
            b"." => Ok(node.inode.clone()),
            b".." => node.inode.parent().and_then(|id| self.fs.inode(id)),
            name => node.inode.lookup(name),
        };
        match found {
            Ok(inode) => Ok(self.entry(inode)),
            Err(error) if error.kind() == ErrorKind::Name(NameError::NotFound) => {
                if node.inode.is_in_deleted_subvolume() {
                    self.absent_names.note(node.inode.id().tree, parent, name);
                }
                Ok(Entry { attr: attr::absent(), generation: 0, valid_secs: self.valid_secs() })
            }
            Err(error) => Err(refuse(error)),
        }
    }

    /// Answers `mknod`.
    pub(crate) fn mknod(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        bits: u32,
        umask: u32,
        rdev: u32,
    ) -> Answer<Entry> {
        Ok(self.entry(self.make(caller, parent, name, bits, umask, rdev)?))
    }

    /// Answers `create`: makes a file and opens it.
    pub(crate) fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        bits: u32,
        umask: u32,
        flags: i32,
    ) -> Answer<Created> {
        let bits = bits & mode::PERMISSIONS | mode::REGULAR;
        let entry = self.entry(self.make(caller, parent, name, bits, umask, 0)?);
        let flags = self.opened(entry.attr.ino, flags)?;
        Ok(Created { entry, flags })
    }

    /// Answers `tmpfile`: makes a file without a name and opens it.
    pub(crate) fn tmpfile(
        &self,
        caller: Caller,
        parent: u64,
        bits: u32,
        umask: u32,
        flags: i32,
    ) -> Answer<Created> {
        let node = self.node(parent)?;
        let bits = cut(&node, bits & mode::PERMISSIONS, umask)?;
        let (uid, gid) = self.owner(caller)?;
        let made =
            self.with_space(parent, || node.inode.tmpfile(bits, uid, gid).map_err(refuse))?;
        let entry = self.entry(made);
        let flags = self.opened(entry.attr.ino, flags)?;
        Ok(Created { entry, flags })
    }

    fn make(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        bits: u32,
        umask: u32,
        rdev: u32,
    ) -> Answer<Inode> {
        let node = self.node(parent)?;
        let bits = cut(&node, bits, umask)?;
        let (uid, gid) = self.owner(caller)?;
        let new = NewInode::of_mode(bits, attr::device_from_wire(rdev)).owner(uid, gid);
        self.with_space(parent, || node.inode.create(name, new).map_err(refuse))
    }

    /// Answers `mkdir`.
    pub(crate) fn mkdir(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        bits: u32,
        umask: u32,
    ) -> Answer<Entry> {
        let node = self.node(parent)?;
        let bits = cut(&node, bits & mode::PERMISSIONS | mode::DIRECTORY, umask)?;
        let (uid, gid) = self.owner(caller)?;
        let inode =
            self.with_space(parent, || node.inode.mkdir(name, bits, uid, gid).map_err(refuse))?;
        Ok(self.entry(inode))
    }

    /// Answers `symlink`.
    pub(crate) fn symlink(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Entry> {
        let node = self.node(parent)?;
        let (uid, gid) = self.owner(caller)?;
        let symlink = || node.inode.symlink(name, target, uid, gid).map_err(refuse);
        let inode = self.with_space(parent, symlink)?;
        Ok(self.entry(inode))
    }

    /// Answers `readlink`.
    pub(crate) fn readlink(&self, id: u64) -> Answer<Vec<u8>> {
        self.node(id)?.inode.read_link().map_err(refuse)
    }

    /// Answers `link`.
    pub(crate) fn link(&self, id: u64, parent: u64, name: &[u8]) -> Answer<Entry> {
        let node = self.node(id)?;
        self.node(parent)?.inode.link(&node.inode, name).map_err(refuse)?;
        Ok(self.entry(node.inode.clone()))
    }

    /// Answers `unlink`.
    pub(crate) fn unlink(&self, parent: u64, name: &[u8]) -> Answer<()> {
        let node = self.node(parent)?;
        let _victim = self.wake_named(&node, name)?;
        node.inode.unlink(name).map_err(refuse)?;
        self.freed_files.note_removed();
        Ok(())
    }

    /// Answers `rmdir`.
    pub(crate) fn rmdir(&self, parent: u64, name: &[u8]) -> Answer<()> {
        let node = self.node(parent)?;
        let _victim = self.wake_named(&node, name)?;
        node.inode.rmdir(name).map_err(refuse)
    }

    /// Answers `rename`.
    pub(crate) fn rename(
        &self,
        caller: Caller,
        parent: u64,
        old: &[u8],
        target: u64,
        new: &[u8],
        flags: Flags,
    ) -> Answer<()> {
        let known = Flags::NOREPLACE.with(Flags::EXCHANGE).with(Flags::WHITEOUT);
        let is_exchange = flags.contains(Flags::EXCHANGE);
        if !known.contains(flags) || is_exchange && flags != Flags::EXCHANGE {
            return Err(Errno::EINVAL);
        }
        let leaves_whiteout = flags.contains(Flags::WHITEOUT);
        let flags = RenameFlags {
            no_replace: flags.contains(Flags::NOREPLACE),
            exchange: flags.contains(Flags::EXCHANGE),
        };
        let (node, target) = (self.node(parent)?, self.node(target)?);
        let _victim = self.wake_named(&target, new)?;
        if leaves_whiteout {
            let owner = self.owner(caller)?;
            let (from, to) = (&node.inode, &target.inode);
            let rename = || from.rename_leaving_whiteout(old, to, new, flags, owner);
            self.with_space(parent, || rename().map_err(refuse))?;
        } else {
            node.inode.rename(old, &target.inode, new, flags).map_err(refuse)?;
        }
        self.freed_files.note_removed();
        Ok(())
    }

    /// Returns the inode number of `..` in a listing.
    pub(super) fn parent_ino(&self, node: &Node) -> u64 {
        let parent = node.inode.parent().unwrap_or_else(|_| node.inode.id());
        self.nodes.user_ino(place(parent))
    }
}

/// Applies the umask to a mode, unless the directory has a default list (M1).
fn cut(directory: &Node, bits: u32, umask: u32) -> Answer<u32> {
    Ok(if directory.has_default_list()? { bits } else { bits & !umask })
}
