//! Removes the items of an inode that has no name and no user.
//!
//! # Invariants
//!
//! - **X1** Removal works in bounded steps. The last step removes the inode item. So after a crash
//!   in between, the next mount finds the inode and removes the rest.

use std::ops::ControlFlow;

use buttress_format::{Body, Extent, FileExtent, Key, Kind};
use buttress_txn::{Cost, Handle, MetaReservation};

use crate::drop_extents::reference_key;
use crate::error::{Error, Result};
use crate::extent_map::disk_extent;
use crate::file::File;
use crate::files::Files;
use crate::step::StepItems;

/// Whether a removal is complete (`Break`) or needs another step (`Continue`).
pub type Removal = ControlFlow<()>;

impl Files {
    /// Forgets all data that waits for writeback. Data that is being written is not affected.
    pub fn forget_waiting(&self, file: &File) {
        let mut dirty = file.dirty.lock();
        self.forget(&mut dirty, 0..u64::MAX, None);
    }

    /// Removes some of the items of an inode that is no longer reachable. `last` runs inside the
    /// handle that removes the inode item.
    ///
    /// # Errors
    ///
    /// An error of the trees or the reservation. The step has then changed nothing.
    pub fn remove_step(&self, file: &File, last: impl FnOnce(&Handle<'_>)) -> Result<Removal> {
        let mut step = StepItems::new();
        loop {
            let removal = self.plan_removal(file, step.0)?;
            if let Some(reservation) = step.reserve(&self.engine, removal.cost())? {
                return Ok(self.remove(file, removal, reservation, last));
            }
        }
    }

    /// Removes the descriptor and the Merkle tree of a file without the flag of fs-verity, in
    /// steps. A crash between two steps leaves items that the next call removes. Returns whether
    /// there were items.
    ///
    /// # Errors
    ///
    /// As [`Files::remove_step`].
    pub fn remove_verity(&self, file: &File) -> Result<bool> {
        let key = |kind: Kind, offset: u64| Key::new(file.ino.0, kind, offset);
        let from = key(Kind::VERITY_DESC_ITEM, 0);
        let to = key(Kind::VERITY_MERKLE_ITEM, u64::MAX);
        let mut step = StepItems::new();
        let mut had_items = false;
        loop {
            let view = self.engine.view();
            let found = view.range(file.tree, from, to).take(step.0);
            let keys = found.map(|found| Ok(found?.0)).collect::<Result<Vec<Key>>>()?;
            drop(view);
            if keys.is_empty() {
                return Ok(had_items);
            }
            had_items = true;
            let Some(reservation) = step.reserve(&self.engine, Cost::of(keys.len() as u32, 0))?
            else {
                continue;
            };
            let handle = self.engine.begin(reservation);
            for key in keys {
                handle.delete(file.tree, key);
            }
        }
    }

    /// Finds the items that a step removes, at most `most`.
    fn plan_removal(&self, file: &File, most: usize) -> Result<Step> {
        let view = self.engine.view();
        let from = Key::new(file.ino.0, Kind(0), 0);
        let to = Key::new(file.ino.0, Kind(u8::MAX), u64::MAX);
        let mut keys: Vec<Key> = Vec::new();
        let mut refs = Vec::new();
        let (mut done, mut lost) = (true, 0);
        for found in view.range(file.tree, from, to) {
            let (key, item) = found?;
            if keys.len() == most {
                done = false;
                break;
            }
            if key.kind == Kind::INODE_ITEM || key.kind == Kind::ORPHAN_ITEM {
                continue;
            }
            if key.kind == Kind::EXTENT_DATA {
                let extent = FileExtent::parse(&item).map_err(|source| Error::Item {
                    tree: file.tree,
                    ino: file.ino,
                    offset: key.offset,
                    source,
                })?;
                if let Body::Regular(region) | Body::Prealloc(region) = &extent.body
                    && region.disk.0 != 0
                {
                    refs.push((disk_extent(region), reference_key(key.offset, region)));
                    lost += region.len;
                }
            }
            keys.push(key);
        }
        Ok(Step { keys, refs, lost, is_last: done })
    }

    fn remove(
        &self,
        file: &File,
        Step { keys, refs, lost, is_last }: Step,
        reservation: MetaReservation,
        last: impl FnOnce(&Handle<'_>),
    ) -> Removal {
        let handle = self.engine.begin(reservation);
        for key in keys {
            handle.delete(file.tree, key);
        }
        for (extent, offset) in refs {
            handle.drop_data_ref(extent, file.data_ref(offset));
        }
        if is_last {
            handle.delete(file.tree, Key::new(file.ino.0, Kind::INODE_ITEM, 0));
            last(&handle);
            return ControlFlow::Break(());
        }
        // After a crash the item has the number of bytes that are left.
        file.update_meta(&handle, |meta| meta.item.nbytes = meta.item.nbytes.saturating_sub(lost));
        ControlFlow::Continue(())
    }
}

/// Items of an inode that one handle removes, and the references of their extents.
struct Step {
    keys: Vec<Key>,
    refs: Vec<(Extent, u64)>,
    /// Bytes of the file that the items held.
    lost: u64,
    is_last: bool,
}

impl Step {
    fn cost(&self) -> Cost {
        let (items, refs) = (self.keys.len() as u64 + 2, self.refs.len() as u64);
        Cost { items, commit_items: 3 * refs, bytes: 160 + 64 * refs }
    }
}
