//! The source of a snapshot: a program names it by one of its own descriptors.

use buttress_fs::{Ino, InodeId, TreeId};
use buttress_protocol::Errno;
use rustix::fs::{AtFlags, CWD, StatxFlags};

use super::super::{Caller, FrontEnd};
use crate::errno::Answer;
use crate::node::Place;

impl FrontEnd {
    /// The inode that a descriptor of the caller's process is open on.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the descriptor is not open, `EXDEV` if it is open on another file system.
    pub(super) fn inode_of_descriptor(&self, caller: Caller, descriptor: i64) -> Answer<InodeId> {
        // Linux takes the low half of the field.
        let number = descriptor as i32;
        let opened = format!("/proc/{}/fd/{number}", caller.task);
        // The attributes that the kernel has cached are enough. The server of another file system
        // may never answer, and this thread carries out the commands of all callers.
        let how = AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(CWD, &*opened, how, StatxFlags::INO);
        let found = found.map_err(|_| Errno::EINVAL)?;
        let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
        let Place { tree, ino } = self.place_on(device, found.stx_ino).ok_or(Errno::EXDEV)?;
        Ok(InodeId { tree: TreeId(tree), ino: Ino(ino) })
    }

    /// The inode that has a number on one of the volume's mounts. `None` for other devices.
    fn place_on(&self, device: u64, number: u64) -> Option<Place> {
        self.mounts()?.place_on(device, number)
    }
}
