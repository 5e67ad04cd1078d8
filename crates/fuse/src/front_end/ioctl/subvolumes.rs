//! Commands that make, delete and change subvolumes.

use buttress_fs::{FileKind, Generation, Ino, Inode, InodeId, ReceivedUuid, RootFlags, TreeId};
use buttress_protocol::Errno;
use buttress_protocol::btrfs::{Made, Name, Origin, SubvolumeFlags};

use super::super::rights::{Capability, EXECUTE, Rights, WRITE};
use super::super::{Caller, FrontEnd, Node, refuse};
use super::is_top;
use crate::attr::{time_from_wire, time_to_wire};
use crate::errno::Answer;

/// The permission bits of a new subvolume, before the umask is applied.
const ALL_BITS: u32 = 0o777;
/// The least number of a subvolume other than the top level.
const TREE_MIN: u64 = 256;

impl FrontEnd {
    /// Makes an empty subvolume. As in Linux, the umask and the group of the caller apply, whatever
    /// the directory says.
    pub(super) fn create_subvolume(
        &self,
        caller: Caller,
        id: u64,
        dir: &Node,
        made: Made<'_>,
    ) -> Answer<()> {
        let rights = Rights::of(caller);
        let name = self.checked_name(caller, dir, &made)?;
        self.expect_room_for_name(&rights, dir, name)?;
        let (uid, gid) = self.owner(caller)?;
        let mode = ALL_BITS & !rights.umask;
        let make = || dir.inode.create_subvolume(name, mode, uid, gid).map_err(refuse);
        drop(self.with_space(id, make)?);
        self.name_changed(dir.inode.id(), name, true);
        Ok(())
    }

    /// Makes a snapshot of the subvolume that a descriptor of the caller is open on.
    pub(super) fn snapshot(
        &self,
        caller: Caller,
        id: u64,
        dir: &Node,
        source: i64,
        made: Made<'_>,
    ) -> Answer<()> {
        let rights = Rights::of(caller);
        let name = self.checked_name(caller, dir, &made)?;
        let source = self.inode_of_descriptor(caller, source)?;
        let inode = self.fs.inode(source).map_err(refuse)?;
        if !self.is_owner(&rights, &inode.attr()) {
            return Err(Errno::EPERM);
        }
        if source.ino != Ino::ROOT_DIR {
            return Err(Errno::EINVAL);
        }
        drop(inode);
        self.expect_room_for_name(&rights, dir, name)?;
        self.write_back(Some(source.tree))?;
        let read_only = made.flags & SubvolumeFlags::READ_ONLY != 0;
        let make = || dir.inode.snapshot(name, source.tree, read_only).map_err(refuse);
        drop(self.with_space(id, make)?);
        self.name_changed(dir.inode.id(), name, true);
        Ok(())
    }

    /// Checks the argument, and returns the name.
    fn checked_name<'a>(&self, caller: Caller, dir: &Node, made: &Made<'a>) -> Answer<&'a [u8]> {
        if dir.inode.kind() != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let name = made.name.bytes()?;
        made.check_flags()?;
        if made.flags & SubvolumeFlags::INHERIT != 0 && self.fs.has_quotas().map_err(refuse)? {
            return Err(Errno::EOPNOTSUPP);
        }
        self.expect_writable(caller, dir)?;
        match name {
            b"." | b".." => Err(Errno::EEXIST),
            name if name.contains(&b'/') => Err(Errno::EINVAL),
            name => Ok(name),
        }
    }

    /// Checks that a name is free, and that the caller may add it.
    fn expect_room_for_name(&self, rights: &Rights, dir: &Node, name: &[u8]) -> Answer<()> {
        if name.is_empty() {
            return Err(Errno::EACCES);
        }
        self.expect_access(rights, &dir.inode, EXECUTE)?;
        match dir.inode.lookup(name).map_err(refuse) {
            Ok(_) => return Err(Errno::EEXIST),
            Err(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
        self.expect_changeable(&dir.inode)?;
        self.expect_may_add(rights, &dir.inode)
    }

    /// Checks that the subvolume of an inode is not read-only.
    fn expect_changeable(&self, inode: &Inode) -> Answer<()> {
        let item = self.fs.subvolume_item(inode.id().tree).map_err(refuse)?;
        if item.flags & RootFlags::READONLY != 0 { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Deletes the subvolume that has a name in a directory.
    pub(super) fn destroy(
        &self,
        caller: Caller,
        id: u64,
        dir: &Node,
        name: Name<'_>,
        flags: u64,
    ) -> Answer<()> {
        if flags != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let name = name.bytes()?;
        self.expect_writable(caller, dir)?;
        if name.contains(&b'/') || name == b".." {
            return Err(Errno::EINVAL);
        }
        if dir.inode.kind() != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if matches!(name, b"" | b".") {
            return Err(Errno::EACCES);
        }
        let rights = Rights::of(caller);
        self.expect_access(&rights, &dir.inode, EXECUTE)?;
        let victim = dir.inode.lookup(name).map_err(refuse)?;
        self.destroy_named(&rights, (id, dir), name, &victim)
    }

    /// Deletes a subvolume wherever its name is.
    pub(super) fn destroy_by_id(&self, caller: Caller, node: &Node, tree: TreeId) -> Answer<()> {
        if tree.0 < TREE_MIN {
            return Err(Errno::EINVAL);
        }
        self.expect_writable(caller, node)?;
        let place = self.fs.subvolume_place(tree).map_err(refuse)?;
        let (dir, name) = place.ok_or(Errno::ENOENT)?;
        let id = self.nodes.id_of(super::super::place(dir));
        let victim = self.fs.inode(InodeId { tree, ino: Ino::ROOT_DIR }).map_err(refuse)?;
        let dir = self.node(id).map_err(|_| Errno::ENOENT)?;
        self.destroy_named(&Rights::of(caller), (id, &dir), &name, &victim)
    }

    fn destroy_named(
        &self,
        rights: &Rights,
        (id, dir): (u64, &Node),
        name: &[u8],
        victim: &Inode,
    ) -> Answer<()> {
        let InodeId { tree, ino } = victim.id();
        let attr = victim.attr();
        if !rights.has(Capability::SysAdmin) {
            if !self.options.user_subvol_rm {
                return Err(Errno::EPERM);
            }
            if tree == dir.inode.id().tree {
                return Err(Errno::EINVAL);
            }
            // As in Linux, nothing of a read-only subvolume is writable, its top included.
            self.expect_changeable(victim)?;
            self.expect_access(rights, victim, WRITE | EXECUTE)?;
        }
        self.expect_changeable(&dir.inode)?;
        self.expect_may_remove(rights, &dir.inode, &attr)?;
        if attr.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if ino != Ino::ROOT_DIR {
            return Err(Errno::EINVAL);
        }
        // A deletion that is refused leaves the subvolume's own mount as it is.
        dir.inode.expect_deletable_subvolume(name).map_err(refuse)?;
        let mounts = self.mounts();
        if let Some(mounts) = &mounts {
            mounts.prepare_removal(tree);
        }
        let gone = self.with_space(id, || dir.inode.delete_subvolume(name).map_err(refuse));
        match mounts {
            Some(mounts) if gone.is_err() => mounts.cancel_removal(),
            _ => self.name_changed(dir.inode.id(), name, false),
        }
        gone
    }

    /// Makes the subvolume of a node read-only, or writable.
    pub(super) fn set_subvolume_flags(
        &self,
        caller: Caller,
        node: &Node,
        flags: u64,
    ) -> Answer<()> {
        if !self.is_owner(&Rights::of(caller), &node.inode.attr()) {
            return Err(Errno::EPERM);
        }
        self.expect_writable(caller, node)?;
        if !is_top(node) {
            return Err(Errno::EINVAL);
        }
        if flags & !SubvolumeFlags::READ_ONLY != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let tree = node.inode.id().tree;
        let read_only = flags != 0;
        let item = self.fs.subvolume_item(tree).map_err(refuse)?;
        if (item.flags & RootFlags::READONLY != 0) == read_only {
            return Ok(());
        }
        // For a subvolume that was read-only, the kernel holds no unsent data.
        if read_only {
            self.write_back(Some(tree))?;
        }
        self.fs.set_subvolume_read_only(tree, read_only).map_err(refuse)
    }

    /// Records the origin of a received subvolume. Returns the transaction and the time of the
    /// record.
    pub(super) fn set_received(
        &self,
        caller: Caller,
        node: &Node,
        origin: &Origin<'_>,
    ) -> Answer<Vec<u8>> {
        if !self.is_owner(&Rights::of(caller), &node.inode.attr()) {
            return Err(Errno::EPERM);
        }
        self.expect_writable(caller, node)?;
        if !is_top(node) {
            return Err(Errno::EINVAL);
        }
        self.expect_changeable(&node.inode)?;
        let tree = node.inode.id().tree;
        let (uuid, stransid) = (origin.uuid, Generation(origin.transaction));
        let stime = time_from_wire(origin.time);
        self.fs.set_received(tree, ReceivedUuid { uuid, stransid, stime }).map_err(refuse)?;
        let item = self.fs.subvolume_item(tree).map_err(refuse)?;
        Ok(origin.answer(item.rtransid.0, time_to_wire(item.rtime)))
    }
}
