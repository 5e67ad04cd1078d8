//! Commands that tell about the volume, its devices and its subvolumes.

use buttress_fs::{Ino, InodeId, RootFlags, TreeId};
use buttress_protocol::btrfs::{
    self, DeviceErrors, DeviceFacts, Features, SubvolumeFacts, VolumeFacts,
};
use buttress_protocol::{Errno, Reply};

use super::super::rights::{EXECUTE, READ, Rights};
use super::super::{Caller, FrontEnd, Node, refuse};
use super::{expect_admin, is_top};
use crate::attr::time_to_wire;
use crate::errno::Answer;

/// The number of subvolumes to look for: one more than an answer can hold, so that the answer can
/// report that more exist.
const REFS_MAX: usize = 256;

impl FrontEnd {
    pub(super) fn volume_facts(&self) -> Answer<Vec<u8>> {
        let superblock = self.fs.superblock();
        let devices = self.fs.devices();
        let missing = self.fs.missing_devices().map_err(refuse)?;
        let ids = devices.iter().map(|device| device.id.0).chain(missing.iter().map(|id| id.0));
        let uuid = superblock.metadata_uuid;
        let facts = VolumeFacts {
            device_max: ids.max().unwrap_or(0),
            devices: (devices.len() + missing.len()) as u64,
            fsid: superblock.fsid,
            metadata_uuid: if uuid == [0; 16] { superblock.fsid } else { uuid },
            nodesize: superblock.nodesize,
            sectorsize: superblock.sectorsize,
            csum: (superblock.csum_type as u16, superblock.csum_type.size() as u16),
            generation: self.fs.running().0,
        };
        Ok(facts.to_bytes())
    }

    pub(super) fn device_facts(&self, id: u64, uuid: [u8; 16]) -> Answer<Vec<u8>> {
        let devices = self.fs.devices();
        let is_wanted = |one: &&buttress_fs::DeviceInfo| {
            one.id.0 == id && (uuid == [0; 16] || one.item.uuid == uuid)
        };
        let device = devices.iter().find(is_wanted).ok_or(Errno::ENODEV)?;
        let facts = DeviceFacts {
            id,
            uuid: device.item.uuid,
            used: device.item.bytes_used,
            total: device.item.total_bytes,
            fsid: device.item.fsid,
            path: device.name.clone().into_bytes(),
        };
        Ok(facts.to_bytes())
    }

    /// The error counts of a device. Resetting the counts needs `CAP_SYS_ADMIN`.
    pub(super) fn device_errors(
        &self,
        caller: Caller,
        asked: &DeviceErrors<'_>,
    ) -> Answer<Vec<u8>> {
        if asked.reset {
            expect_admin(&Rights::of(caller))?;
        }
        let devices = self.fs.devices();
        let device = devices.iter().find(|device| device.id.0 == asked.id).ok_or(Errno::ENODEV)?;
        if asked.reset {
            self.fs.reset_device_stats(Some(device.id)).map_err(refuse)?;
        }
        Ok(asked.answer(&device.stats.counts))
    }

    pub(super) fn features(&self) -> Vec<u8> {
        let superblock = self.fs.superblock();
        let (compat, compat_ro) = (superblock.compat, superblock.compat_ro.0);
        Features { compat, compat_ro, incompat: superblock.incompat.0 }.to_bytes()
    }

    pub(super) fn subvolume_facts(&self, tree: TreeId) -> Answer<Vec<u8>> {
        let item = self.fs.subvolume_item(tree).map_err(refuse)?;
        let place = self.fs.subvolume_place(tree).map_err(refuse)?;
        let (place, name) =
            place.map_or(((0, 0), Vec::new()), |(dir, name)| ((dir.tree.0, dir.ino.0), name));
        let facts = SubvolumeFacts {
            tree: tree.0,
            name,
            place,
            generation: item.generation.0,
            flags: item.flags,
            uuids: [item.uuid, item.parent_uuid, item.received_uuid],
            transactions: [item.ctransid, item.otransid, item.stransid, item.rtransid]
                .map(|number| number.0),
            times: [item.ctime, item.otime, item.stime, item.rtime].map(time_to_wire),
        };
        Ok(facts.to_bytes())
    }

    pub(super) fn subvolume_refs(&self, tree: TreeId, from: u64) -> Answer<Reply> {
        let found = self.fs.subvolumes_within(tree, TreeId(from), REFS_MAX).map_err(refuse)?;
        let found: Vec<_> = found.into_iter().map(|(tree, dir)| (tree.0, dir.0)).collect();
        let (bytes, error) = btrfs::subvolume_refs(from, &found);
        Ok(match error {
            Some(error) => Reply::IoctlFailed(error, bytes),
            None => Reply::Ioctl(bytes),
        })
    }

    /// The path to an inode from the top of its subvolume. This needs `CAP_SYS_ADMIN`, except for
    /// the top itself, which has an empty path. So any caller may ask which subvolume a file is in.
    pub(super) fn inode_path(&self, caller: Caller, id: InodeId) -> Answer<Vec<u8>> {
        let way = if id.ino == Ino::ROOT_DIR {
            Vec::new()
        } else {
            expect_admin(&Rights::of(caller))?;
            self.fs.way_to(id).map_err(refuse)?
        };
        btrfs::inode_path(id.tree.0, id.ino.0, &way)
    }

    /// The name of a subvolume, and the path from `top` to the directory `dir` that holds it. The
    /// caller must be able to list each directory on the path except `dir`. Otherwise the error is
    /// `EACCES`.
    pub(super) fn subvolume_path(
        &self,
        caller: Caller,
        top: &Node,
        dir: Ino,
        tree: TreeId,
    ) -> Answer<Vec<u8>> {
        let id = top.inode.id();
        if dir == Ino::ROOT_DIR && !is_top(top) {
            return Err(Errno::EACCES);
        }
        let rights = Rights::of(caller);
        let (mut way, mut at) = (Vec::new(), InodeId { tree: id.tree, ino: dir });
        while at.ino != id.ino {
            let (above, name) = self.fs.last_name(at).map_err(refuse)?.ok_or(Errno::ENOENT)?;
            at.ino = above;
            let inode = self.fs.inode(at).map_err(refuse)?;
            self.expect_access(&rights, &inode, READ | EXECUTE).map_err(|_| Errno::EACCES)?;
            way.push(name);
            if above == Ino::ROOT_DIR && !is_top(top) {
                return Err(Errno::EACCES);
            }
            if way.len() > btrfs::ARGUMENT_LEN {
                return Err(Errno::ENAMETOOLONG);
            }
        }
        way.reverse();
        let place = self.fs.subvolume_place(tree).map_err(refuse)?;
        let (place, name) = place.filter(|(dir, _)| dir.tree == id.tree).ok_or(Errno::ENOENT)?;
        if place.ino != dir {
            return Err(Errno::EINVAL);
        }
        btrfs::subvolume_path(dir.0, tree.0, &name, &way)
    }

    pub(super) fn subvolume_flags(&self, node: &Node) -> Answer<Vec<u8>> {
        if !is_top(node) {
            return Err(Errno::EINVAL);
        }
        let item = self.fs.subvolume_item(node.inode.id().tree).map_err(refuse)?;
        let is_read_only = item.flags & RootFlags::READONLY != 0;
        let flags = if is_read_only { btrfs::SubvolumeFlags::READ_ONLY } else { 0 };
        Ok(flags.to_ne_bytes().to_vec())
    }
}
