//! The record of the last replacement of a device, which Linux and this program keep alike.
//!
//! # Invariants
//!
//! - **DR1** No write of this program lies before the cursor in the record of an unfinished
//!   replacement. The cursor says what Linux need not copy again, and Linux verifies nothing of it.
//!   If an opening finds a replacement, its first commit moves the cursor back to the beginning.
//! - **DR2** From the commit that begins a replacement to the one that ends it, the cursor in the
//!   record stays at the beginning. A commit could not take it back if the new device failed
//!   between the nodes and the superblock of this commit. This program goes on at the cursor that
//!   the new device itself has (`volume::target`).
//!
//! The volume may be written without the new device, since all that it holds is verified or copied
//! again.

use buttress_format::{ReplaceItem, ReplacePhase, TreeId};
use buttress_tree::{Cursor, Roots, Store};
use buttress_volume::Volume;

use crate::transaction::DeviceChange;
use crate::{Commits, Engine, Error, Result, Storage};

/// Reads the record, if there is one.
fn read(store: &Store, roots: &Roots) -> Result<Option<ReplaceItem>> {
    let (tree, key) = (TreeId::DEV, ReplaceItem::KEY);
    let root = roots.find(tree).ok_or(buttress_tree::Error::NoTree(tree))?;
    let Some((node, slot)) = Cursor::find(store, tree, root, &key)? else { return Ok(None) };
    let parsed = ReplaceItem::parse(node.item(slot));
    parsed.map(Some).map_err(|source| Error::Item { tree, key, source })
}

/// Why the volume cannot be written, as far as a replacement is concerned.
pub(crate) fn obstacle(volume: &Volume, store: &Store, roots: &Roots) -> Option<String> {
    let item = match read(store, roots) {
        Err(error) => return Some(format!("the record of a replacement cannot be kept: {error}")),
        Ok(item) => item?,
    };
    let target = volume.target()?;
    // Linux crashed between two superblock writes of the commit that ended the replacement. The new
    // device's superblock does not have the old device's number yet. So this program would take the
    // old device for the new one.
    (item.phase == ReplacePhase::Finished).then(|| {
        let (name, id) = (target.device.name(), item.source);
        format!("{name} has replaced device {id}, and its superblock does not say so yet")
    })
}

impl Commits {
    /// The record of the last replacement of a device, as of the last commit.
    ///
    /// # Errors
    ///
    /// When the device tree cannot be read, or the record is invalid.
    pub fn replacement(&self, store: &Store) -> Result<Option<ReplaceItem>> {
        read(store, self.view().roots())
    }

    /// The record of a replacement that has begun and not ended.
    ///
    /// # Errors
    ///
    /// As [`replacement`](Self::replacement).
    pub fn unfinished_replacement(&self, store: &Store) -> Result<Option<ReplaceItem>> {
        Ok(self.replacement(store)?.filter(ReplaceItem::is_active))
    }

    /// Pairs the devices of an unfinished replacement, if it can go on. Moves the cursor in its
    /// record back to the beginning, in the running transaction (DR1). Must come before anything
    /// but superblocks is written.
    pub(crate) fn take_up_replacement(&self, storage: &Storage) -> Result<()> {
        let Some(found) = self.unfinished_replacement(storage.store())? else { return Ok(()) };
        storage.volume().pair_found_target(found.source, found.cursor_left);
        if (found.cursor_left, found.cursor_right) != (0, 0) {
            let anew = ReplaceItem { cursor_left: 0, cursor_right: 0, ..found };
            self.change_device(DeviceChange::Replacement(anew));
        }
        Ok(())
    }
}

impl Engine {
    /// Commits the new cursor of an unfinished replacement, so that the copy begins anew after a
    /// crash (DR1). Must come before the first write in place and before the first log of fsync.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit).
    pub fn commit_replacement_anew(&self) -> Result<()> {
        let is_changed = |found: &ReplaceItem| found.cursor_left != 0 || found.cursor_right != 0;
        if self
            .commits()
            .unfinished_replacement(self.storage().store())?
            .is_some_and(|found| is_changed(&found))
        {
            self.check_writable()?;
            self.commit()?;
        }
        Ok(())
    }
}
