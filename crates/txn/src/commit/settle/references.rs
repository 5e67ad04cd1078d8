//! Turns reference changes of operations and merges into changes of the extent tree.
//!
//! # Invariants
//!
//! - **R1** An extent that lost its last reference is pinned, and its checksums are removed in the
//!   same commit. If there is a stripe tree, so are its items there.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use buttress_format::{Extent, TreeId, limits};
use buttress_transaction::{csum_tree, stripe_tree};

use super::{Changes, Settle};
use crate::{
    Error, Result,
    delayed_ref::ExtentChange,
    extent_tree::{self, DataForm, ExtentEffect},
};

impl Settle<'_> {
    /// The merges changed references of nodes that may be shared. Turns these changes into changes
    /// of the extent tree.
    pub(super) fn shared_nodes(&mut self, pending: &mut Changes) -> Result<()> {
        let root = self.must_root(TreeId::EXTENT)?;
        let form = self.form();
        let blocks = std::mem::take(&mut self.addresses.sharing.blocks);
        for (at, change) in blocks {
            if self.addresses.is_born(at) {
                // The first round makes this node's item and applies the change to it.
                self.addresses.sharing.blocks.insert(at, change);
                continue;
            }
            if change.deltas.is_empty() && !change.make_full {
                continue;
            }
            let fate = self.reading(|source| {
                extent_tree::apply_block(source, root, at, &change, form, pending)
            })?;
            if fate == ExtentEffect::Freed {
                let extent = Extent { start: at, len: u64::from(form.nodesize) };
                self.account(extent, false)?;
                self.pin(extent)?;
                self.quotas.uncharge(self.addresses.maker(at), extent.len);
            }
        }
        Ok(())
    }

    /// All changes of data references: the changes of operations, and the changes that follow from
    /// nodes which became shared or unshared.
    fn data_changes(&mut self) -> Result<Vec<ExtentChange>> {
        const DISPUTED: &str = "two leaves disagree about its length";
        if let Some(at) = self.transaction.refs.disputed() {
            return Err(Error::Extents { at, what: DISPUTED });
        }
        let mut asked = self.transaction.refs.sorted();
        asked.retain(|change| !self.moved.data.contains(&change.extent.start));
        let mut changes = std::mem::take(&mut self.addresses.sharing.data);
        if changes.is_empty() {
            asked.retain(|change| !change.deltas.is_empty());
            return Ok(asked);
        }
        for change in asked {
            match changes.entry(change.extent.start) {
                Entry::Vacant(place) => drop(place.insert(change)),
                Entry::Occupied(mut there) => {
                    let there = there.get_mut();
                    if there.extent != change.extent {
                        let at = change.extent.start;
                        return Err(Error::Extents { at, what: DISPUTED });
                    }
                    (there.born, there.owner) = (change.born, change.owner);
                    for (user, delta) in change.deltas.iter() {
                        there.deltas.add(user, delta);
                    }
                }
            }
        }
        Ok(changes.into_values().filter(|change| !change.deltas.is_empty()).collect())
    }

    /// Turns data references into changes of the extent tree, and merges the checksum tree.
    pub(super) fn data_refs(&mut self, pending: &mut Changes) -> Result<()> {
        // Adjacent extents are joined, so that each structure that keeps ranges is updated once per
        // range.
        let (mut born, mut freed): (Vec<Extent>, Vec<Extent>) = (Vec::new(), Vec::new());
        let form = DataForm {
            generation: self.transaction.generation,
            nodesize: self.nodesize(),
            owners: self.quotas.is_simple(),
        };
        let sectorsize = self.sectorsize();
        let root = self.must_root(TreeId::EXTENT)?;
        for change in self.data_changes()? {
            let (fate, origin) = self
                .reading(|source| extent_tree::apply_data(source, root, &change, form, pending))?;
            let ExtentChange { extent, .. } = change;
            match fate {
                ExtentEffect::Kept => {}
                ExtentEffect::Made => {
                    self.quotas.charge(origin.owner, extent.len);
                    self.groups.join(&mut born, extent, sectorsize);
                }
                ExtentEffect::Freed => {
                    self.quotas.uncharge(Some(origin), extent.len);
                    self.groups.join(&mut freed, extent, sectorsize);
                }
            }
        }
        for extent in &born {
            self.account(*extent, true)?;
        }
        for extent in &freed {
            self.account(*extent, false)?;
            self.pin(*extent)?;
        }
        // Data written in place into an older extent that this commit frees needs no checksums.
        let lives = |run: &Extent| {
            let before = freed.partition_point(|gone| gone.start <= run.start);
            before == 0 || freed[before - 1].end() <= run.start
        };
        let mut added = self.transaction.sums.sorted();
        added.retain(|(run, _)| lives(run));
        if !freed.is_empty() || !added.is_empty() {
            let root = self.must_root(TreeId::CSUM)?;
            let geometry = *self.owners.storage.store().geometry();
            let has_stripes = self.roots.find(TreeId::RAID_STRIPE).is_some();
            let multiple = if has_stripes { limits::STRIPE_LEN } else { 1 };
            let how = (&geometry, multiple);
            let changes =
                self.reading(|source| csum_tree::changes(source, root, how, &freed, &added))?;
            self.merge(TreeId::CSUM, changes)?;
        }
        self.stripes(freed)
    }

    /// Updates the stripe tree, if the volume has one.
    fn stripes(&mut self, mut freed: Vec<Extent>) -> Result<()> {
        let Some(root) = self.roots.find(TreeId::RAID_STRIPE) else { return Ok(()) };
        let written = self.transaction.written.sorted(&freed);
        // Linux may leave an item behind when it overwrites data in place. The last of them goes
        // with its chunk.
        let removed = self.transaction.removed.lock();
        freed.extend(removed.iter().map(|chunk| Extent::new(chunk.logical, chunk.len)));
        drop(removed);
        if freed.is_empty() && written.is_empty() {
            return Ok(());
        }
        let volume = Arc::clone(self.owners.storage.volume());
        let items = |range| volume.stripe_items(range);
        let changes =
            self.reading(|source| stripe_tree::changes(source, root, &freed, &written, items))?;
        self.merge(TreeId::RAID_STRIPE, changes)
    }
}
