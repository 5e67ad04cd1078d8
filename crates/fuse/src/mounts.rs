//! The calls that a front end may make to all mounts of its volume. A mount holds a front end,
//! which knows the mounts only as this trait.

use buttress_fs::{InodeId, TreeId};

use crate::node::Place;

/// All mounts of one volume. The calls wait for the kernel: a thread that serves requests must not
/// make them.
pub(crate) trait Mounts: std::fmt::Debug + Send + Sync {
    /// Makes the kernel write back the data that programs wrote to a subvolume, or to all
    /// subvolumes.
    ///
    /// # Errors
    ///
    /// When a mount cannot be opened, or a write fails.
    fn write_back(&self, tree: Option<TreeId>) -> std::io::Result<()>;

    /// Tells the kernel that a subvolume was created under this name.
    fn note_created(&self, dir: InodeId, name: &[u8]);

    /// Prepares for the removal of a subvolume.
    fn prepare_removal(&self, tree: TreeId);

    /// Tells the mounts that a subvolume stays, although its removal was prepared.
    fn cancel_removal(&self);

    /// Makes the kernel look again at a name that was added or removed.
    fn invalidate_name(&self, dir: InodeId, name: &[u8]);

    /// The inode that has a number on one of the mounts. `None` for other devices.
    fn place_on(&self, device: u64, number: u64) -> Option<Place>;
}
