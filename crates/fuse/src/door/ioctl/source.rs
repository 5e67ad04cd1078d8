//! The source of a snapshot: a program names it by one of its own descriptors.

use buttress_fs::{Ino, InodeId, TreeId};
use buttress_protocol::Errno;

use super::super::{Caller, Door};
use crate::errno::Answer;
use crate::node::Place;

impl Door {
    /// The inode that a descriptor of the caller's process is open on.
    ///
    /// # Errors
    ///
    /// `EINVAL` where it is open on nothing, `EXDEV` where it is open on another file system.
    pub(super) fn inode_of_descriptor(&self, caller: Caller, descriptor: i64) -> Answer<InodeId> {
        // Linux takes the low half of the field.
        let number = descriptor as i32;
        let opened = format!("/proc/{}/fd/{number}", caller.task);
        // The kernel may ask this mount for attributes: a thread that serves requests answers.
        let stat = rustix::fs::stat(&*opened).map_err(|_| Errno::EINVAL)?;
        let Place { tree, ino } = self.place_on(stat.st_dev, stat.st_ino).ok_or(Errno::EXDEV)?;
        Ok(InodeId { tree: TreeId(tree), ino: Ino(ino) })
    }

    /// What has a number on one of the volume's mounts.
    fn place_on(&self, device: u64, number: u64) -> Option<Place> {
        self.mounts()?.place_on(device, number)
    }
}
