//! Block groups in a commit. Their items and free space follow the changes of the extent tree in
//! this transaction (`txn::T11`).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use buttress_format::{BlockGroupItem, Extent, Key, Kind, Logical};
use buttress_tree::{Change, NodePtr, NodeSource};

use crate::commits::GroupRecord;
use crate::free_space_tree::{GroupFreeSpace, expect_whole};
use crate::{Error, Result};

#[derive(Default)]
pub(super) struct Groups {
    pub(super) records: BTreeMap<Logical, GroupRecord>,
    free_space: BTreeMap<Logical, GroupFreeSpace>,
    /// Groups with an item that differs from the item in the working tree.
    dirty: BTreeSet<Logical>,
    /// Change of the volume's bytes in use.
    pub(super) used_delta: i64,
}

impl Groups {
    pub(super) fn new(records: BTreeMap<Logical, GroupRecord>) -> Self {
        Self { records, ..Self::default() }
    }

    /// The ranges of all groups.
    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        self.records.iter().map(|(start, record)| Extent { start: *start, len: record.len })
    }

    fn group_of(&self, extent: Extent) -> Result<Extent> {
        let outside = Error::Extents { at: extent.start, what: "it lies in no block group" };
        let (start, record) =
            self.records.range(..=extent.start).next_back().ok_or_else(|| outside.clone())?;
        let group = Extent { start: *start, len: record.len };
        if extent.end() > group.end() {
            return Err(outside);
        }
        Ok(group)
    }

    /// Adds the group of a chunk of this transaction.
    pub(super) fn add<S: NodeSource + ?Sized>(
        &mut self,
        source: &S,
        free_space_root: Option<NodePtr>,
        start: Logical,
        record: GroupRecord,
    ) -> Result<()> {
        if let Some(root) = free_space_root {
            let group = Extent { start, len: record.len };
            self.free_space.insert(start, GroupFreeSpace::new(source, root, group)?);
        }
        self.records.insert(start, record);
        self.dirty.insert(start);
        Ok(())
    }

    /// Records the free space of a group again. `free` is the free space before any change of this
    /// transaction.
    pub(super) fn record_anew(&mut self, group: Extent, free: &[Extent]) {
        self.free_space.insert(group.start, GroupFreeSpace::anew(group, free));
        self.dirty.insert(group.start);
    }

    /// Adds an extent to a list. If it is adjacent to the last extent of the list, it extends the
    /// last extent. For this, both extents must be whole sectors, and no group may begin between
    /// the extents.
    pub(super) fn join(&self, all: &mut Vec<Extent>, extent: Extent, sectorsize: u32) {
        let sector = u64::from(sectorsize);
        let is_whole = extent.start.0.is_multiple_of(sector) && extent.len.is_multiple_of(sector);
        let is_apart = || self.records.contains_key(&extent.start);
        match all.last_mut() {
            Some(last) if last.end() == extent.start && is_whole && !is_apart() => {
                last.len += extent.len;
            }
            _ => all.push(extent),
        }
    }

    /// Notes that adjacent extent items were added (`in_use`) or removed.
    pub(super) fn change<S: NodeSource + ?Sized>(
        &mut self,
        source: &S,
        free_space_root: Option<NodePtr>,
        sectorsize: u32,
        extent: Extent,
        in_use: bool,
    ) -> Result<()> {
        let group = self.group_of(extent)?;
        expect_whole(group, extent, sectorsize)?;
        if let Some(root) = free_space_root {
            let space = match self.free_space.entry(group.start) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    place.insert(GroupFreeSpace::read(source, root, group, sectorsize)?)
                }
            };
            if in_use { space.take(extent)? } else { space.give(extent)? }
        }
        let len = i64::try_from(extent.len).unwrap_or(i64::MAX);
        let delta = if in_use { len } else { -len };
        self.used_delta += delta;
        self.dirty.insert(group.start);
        if let Some(record) = self.records.get_mut(&group.start) {
            record.used = record.used.checked_add_signed(delta).ok_or(Error::Extents {
                at: extent.start,
                what: "its block group holds less than is freed",
            })?;
        }
        Ok(())
    }

    /// Forgets a group, with its items.
    pub(super) fn remove<S: NodeSource + ?Sized>(
        &mut self,
        source: &S,
        free_space_root: Option<NodePtr>,
        sectorsize: u32,
        group: Extent,
        items: &mut BTreeMap<Key, Change>,
        free_space: &mut BTreeMap<Key, Change>,
    ) -> Result<()> {
        if let Some(root) = free_space_root {
            GroupFreeSpace::read(source, root, group, sectorsize)?.remove_all(free_space);
        }
        self.free_space.remove(&group.start);
        self.records.remove(&group.start);
        self.dirty.remove(&group.start);
        items.insert(Key::new(group.start.0, Kind::BLOCK_GROUP_ITEM, group.len), None);
        Ok(())
    }

    /// The items that differ from the working trees.
    pub(super) fn changes(
        &mut self,
        sectorsize: u32,
        items: &mut BTreeMap<Key, Change>,
        free_space: &mut BTreeMap<Key, Change>,
    ) {
        for start in std::mem::take(&mut self.dirty) {
            let Some(record) = self.records.get(&start) else { continue };
            let item = BlockGroupItem {
                used: record.used,
                chunk_objectid: buttress_format::ids::FIRST_CHUNK_TREE,
                flags: record.flags,
            };
            let key = Key::new(start.0, Kind::BLOCK_GROUP_ITEM, record.len);
            items.insert(key, Some(item.to_bytes().into()));
            if let Some(space) = self.free_space.get_mut(&start) {
                space.changes(sectorsize, free_space);
            }
        }
    }
}
