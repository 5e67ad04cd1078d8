//! Names: finding, making, moving and removing them.
//!
//! # Invariants
//!
//! - **M1** A new inode belongs to who asked, but for the group in a directory with the set-group
//!   bit; its mode is cut by the umask, or by the directory's default list if it has one, never by
//!   both.

use std::sync::Arc;

use buttress_fs::{Attr, ErrorKind, FileKind, Inode, NameError, RenameFlags, XattrFlags, mode};
use fuser::{Errno, FopenFlags, Generation, Request};

use super::{Answer, Door, Entry, Node, content, place, refuse};
use crate::acl::{self, Acl};
use crate::attr;

/// What an inode is born with.
struct Birth {
    mode: u32,
    uid: u32,
    gid: u32,
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
}

/// What `create` answers.
pub(crate) struct Created {
    pub(crate) entry: Entry,
    pub(crate) flags: FopenFlags,
}

impl Door {
    /// Answers `lookup`. That there is no such name is an answer too, and one to remember.
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
                Ok(Entry { attr: attr::absent(), generation: Generation(0) })
            }
            Err(error) => Err(refuse(error)),
        }
    }

    /// Answers `mknod`.
    pub(crate) fn mknod(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        bits: u32,
        umask: u32,
        rdev: u32,
    ) -> Answer<Entry> {
        Ok(self.entry(self.make(req, parent, name, bits, umask, rdev)?))
    }

    /// Answers `create`: makes a file and opens it.
    pub(crate) fn create(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        bits: u32,
        umask: u32,
        flags: i32,
    ) -> Answer<Created> {
        let bits = bits & mode::PERMISSIONS | mode::REGULAR;
        let entry = self.entry(self.make(req, parent, name, bits, umask, 0)?);
        Ok(Created { entry, flags: content::open_flags(flags) })
    }

    fn make(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        bits: u32,
        umask: u32,
        rdev: u32,
    ) -> Answer<Inode> {
        let node = self.node(parent)?;
        let birth = birth(req, &node, bits, umask)?;
        let rdev = attr::device_from_wire(rdev);
        let inode =
            node.inode.create(name, birth.mode, birth.uid, birth.gid, rdev).map_err(refuse)?;
        birth.attach_lists(&inode).inspect_err(|_| drop(node.inode.unlink(name)))?;
        Ok(inode)
    }

    /// Answers `mkdir`.
    pub(crate) fn mkdir(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        bits: u32,
        umask: u32,
    ) -> Answer<Entry> {
        let node = self.node(parent)?;
        let birth = birth(req, &node, bits & mode::PERMISSIONS | mode::DIRECTORY, umask)?;
        let inode = node.inode.mkdir(name, birth.mode, birth.uid, birth.gid).map_err(refuse)?;
        birth.attach_lists(&inode).inspect_err(|_| drop(node.inode.rmdir(name)))?;
        Ok(self.entry(inode))
    }

    /// Answers `symlink`.
    pub(crate) fn symlink(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Entry> {
        let node = self.node(parent)?;
        let gid = group_of_new(req, &node.inode.attr());
        let inode = node.inode.symlink(name, target, req.uid(), gid).map_err(refuse)?;
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
        self.node(parent)?.inode.unlink(name).map_err(refuse)
    }

    /// Answers `rmdir`.
    pub(crate) fn rmdir(&self, parent: u64, name: &[u8]) -> Answer<()> {
        self.node(parent)?.inode.rmdir(name).map_err(refuse)
    }

    /// Answers `rename`.
    pub(crate) fn rename(
        &self,
        parent: u64,
        old: &[u8],
        target: u64,
        new: &[u8],
        flags: fuser::RenameFlags,
    ) -> Answer<()> {
        let known = fuser::RenameFlags::RENAME_NOREPLACE | fuser::RenameFlags::RENAME_EXCHANGE;
        if !known.contains(flags) || flags == known {
            return Err(Errno::EINVAL);
        }
        let flags = RenameFlags {
            no_replace: flags.contains(fuser::RenameFlags::RENAME_NOREPLACE),
            exchange: flags.contains(fuser::RenameFlags::RENAME_EXCHANGE),
        };
        let target = self.node(target)?;
        self.node(parent)?.inode.rename(old, &target.inode, new, flags).map_err(refuse)
    }

    /// Says which number stands for `..` in a listing.
    pub(super) fn parent_ino(&self, node: &Node) -> u64 {
        let parent = node.inode.parent().unwrap_or_else(|_| node.inode.id());
        self.nodes.user_ino(place(parent))
    }
}

/// Works out what a new inode in a directory gets (M1).
fn birth(req: &Request, parent: &Node, bits: u32, umask: u32) -> Answer<Birth> {
    let directory = parent.inode.attr();
    let is_directory = FileKind::from_mode(bits) == Some(FileKind::Directory);
    let (uid, gid) = (req.uid(), group_of_new(req, &directory));
    let inherited = if is_directory { directory.mode & mode::SETGID } else { 0 };
    let mut birth =
        Birth { mode: bits & !umask | inherited, uid, gid, access: None, default: None };
    if let Some(list) = default_list(parent)? {
        let given = list.inherit(bits, is_directory);
        birth = Birth {
            mode: given.mode | inherited,
            access: given.access,
            default: given.default,
            ..birth
        };
    }
    Ok(birth)
}

fn group_of_new(req: &Request, directory: &Attr) -> u32 {
    if directory.mode & mode::SETGID != 0 { directory.gid } else { req.gid() }
}

/// Returns a directory's default list, from what was learnt before if it can.
fn default_list(directory: &Node) -> Answer<Option<Arc<Acl>>> {
    let mut known = directory.default_acl.lock();
    if let Some(list) = &*known {
        return Ok(list.clone());
    }
    let list = match directory.inode.xattr(acl::DEFAULT) {
        Ok(value) => Some(Arc::new(Acl::parse(&value).ok_or(Errno::EIO)?)),
        Err(error) if error.kind() == ErrorKind::Name(NameError::NoAttribute) => None,
        Err(error) => return Err(refuse(error)),
    };
    Ok(known.insert(list).clone())
}

impl Birth {
    fn attach_lists(&self, inode: &Inode) -> Answer<()> {
        for (name, list) in [(acl::ACCESS, &self.access), (acl::DEFAULT, &self.default)] {
            if let Some(value) = list {
                inode.set_xattr(name, value, XattrFlags::default()).map_err(refuse)?;
            }
        }
        Ok(())
    }
}
