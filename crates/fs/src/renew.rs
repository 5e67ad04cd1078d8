//! The state that a handle of a volume shows, and the change to a newer state.
//!
//! # Invariants
//!
//! - **R1** An inode keeps the commit in which it was found. The mount of that commit stays open
//!   for as long as an inode of that commit has a user.
//! - **R2** All clones of a handle show the same commit. A failure to open a newer commit changes
//!   nothing.

use std::sync::Arc;

use buttress_block::Device;
use buttress_items::Result;

use crate::filesystem::{Filesystem, Mounted};
use crate::inode::Inode;
use crate::mount::Mount;

impl Filesystem {
    /// Changes to the newest commit, if another machine writes the volume and has made a newer
    /// commit. All clones of this handle show that commit afterwards. An inode keeps the commit in
    /// which it was found. Returns whether there was a newer commit.
    ///
    /// # Errors
    ///
    /// The errors of [`Filesystem::open`]. The handle then keeps its commit.
    pub fn renew(&self) -> Result<bool> {
        let mounted = self.mounted();
        let mut has_newer = false;
        let mut devices = Vec::new();
        for device in mounted.mount.engine.volume().devices().iter() {
            let failed = |source| buttress_volume::Error::Device { device: device.id, source };
            let newer: Option<Arc<dyn Device>> = device.device.newer().map_err(failed)?;
            has_newer |= newer.is_some();
            devices.push(newer.unwrap_or_else(|| Arc::clone(&device.device)));
        }
        if has_newer {
            let newer = Self::open(devices, mounted.mount.options.clone())?.mounted();
            let mut current = self.current.write();
            // Another thread may have changed the state meanwhile, perhaps to an even newer commit.
            let is_same = Arc::ptr_eq(&current, &mounted);
            let unused = if is_same { std::mem::replace(&mut *current, newer) } else { newer };
            // The lock is released before the old state is dropped.
            drop(current);
            drop(unused);
        }
        Ok(has_newer)
    }

    /// Whether an inode was found in the commit that this handle shows ([`Filesystem::renew`]).
    #[must_use]
    pub fn is_of_present(&self, inode: &Inode) -> bool {
        Arc::ptr_eq(inode.mount(), &self.current.read().mount)
    }

    /// The state that this handle shows.
    pub(crate) fn mounted(&self) -> Arc<Mounted> {
        Arc::clone(&self.current.read())
    }

    pub(crate) fn mount(&self) -> Arc<Mount> {
        Arc::clone(&self.current.read().mount)
    }
}
