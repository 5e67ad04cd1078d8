//! The free-space tree: the free extents of each block group, as of one commit.
//!
//! # Invariants
//!
//! - **F1** A group's items follow the changes of the extent tree in the same transaction
//!   (`txn::T11`). The items never follow allocations that happen in memory meanwhile.
//! - **F2** Items of a group are read once in a commit, and only changed items are written.

use std::collections::BTreeMap;

use buttress_base::RangeSet;
use buttress_format::{Extent, FreeSpaceInfo, Key, Kind, Logical, TreeId};
use buttress_space::free_space_form::{self, Form};
use buttress_tree::{Change, Cursor, NodePtr, NodeSource, Payload, Roots, Store};

use crate::{Error, Result, View};

/// One group's part of the tree while a commit changes this part.
pub(crate) struct GroupFreeSpace {
    group: Extent,
    form: Form,
    free: RangeSet,
    /// The items as the working tree has them.
    items: BTreeMap<Key, Payload>,
    dirty: bool,
}

fn malformed(group: Extent, what: impl Into<String>) -> Error {
    Error::FreeSpace { group: group.start, what: what.into() }
}

fn read_items<S: NodeSource + ?Sized>(
    source: &S,
    root: NodePtr,
    group: Extent,
) -> Result<BTreeMap<Key, Payload>> {
    let mut items = BTreeMap::new();
    let first = Key::new(group.start.0, Kind(0), 0);
    let mut cursor = Cursor::seek(source, TreeId::FREE_SPACE, root, &first)?;
    while let Some((key, item)) = cursor.key().zip(cursor.item()) {
        if key.objectid >= group.end().0 {
            break;
        }
        items.insert(key, item.into());
        cursor.advance()?;
    }
    Ok(items)
}

fn parse(
    group: Extent,
    sectorsize: u32,
    items: &BTreeMap<Key, Payload>,
) -> Result<(Form, Vec<Extent>)> {
    let info_key = Key::new(group.start.0, Kind::FREE_SPACE_INFO, group.len);
    let Some(info) = items.get(&info_key) else {
        return Err(malformed(group, "there is no info item"));
    };
    let info = FreeSpaceInfo::parse(info).map_err(|e| malformed(group, e.to_string()))?;
    let form = Form::of(&info);
    let others = items.iter().filter(|(k, _)| **k != info_key).map(|(k, v)| (*k, &**v));
    let free = free_space_form::parse(group, sectorsize, &info, others)
        .map_err(|e| malformed(group, e.to_string()))?;
    Ok((form, free))
}

/// The free extents of a group as of the last commit. With `trusted`, they come from the free-space
/// tree, otherwise from the gaps between used extents.
pub(crate) fn read_committed(view: &View, group: Extent, trusted: bool) -> Result<Vec<Extent>> {
    let geometry = *view.store().geometry();
    match view.roots().find(TreeId::FREE_SPACE).filter(|_| trusted) {
        Some(root) => {
            let items = read_items(&**view.store(), root, group)?;
            Ok(parse(group, geometry.sectorsize, &items)?.1)
        }
        None => gaps(view.store(), view.roots(), group),
    }
}

/// The gaps between the extents of a group. The gaps are whole sectors, because the extents are
/// whole sectors.
pub(crate) fn gaps(store: &Store, roots: &Roots, group: Extent) -> Result<Vec<Extent>> {
    let (nodesize, sectorsize) = (store.geometry().nodesize, store.geometry().sectorsize);
    let root = roots
        .find(TreeId::EXTENT)
        .ok_or_else(|| Error::Malformed("there is no extent tree".into()))?;
    let mut free = Vec::new();
    let mut at = group.start;
    let first = Key::new(group.start.0, Kind(0), 0);
    let mut cursor = Cursor::seek(store, TreeId::EXTENT, root, &first)?;
    while let Some(key) = cursor.key().filter(|k| k.objectid < group.end().0) {
        let len = match key.kind {
            Kind::EXTENT_ITEM => key.offset,
            Kind::METADATA_ITEM => u64::from(nodesize),
            _ => 0,
        };
        let start = Logical(key.objectid);
        if len > 0 {
            expect_whole(group, Extent { start, len }, sectorsize)?;
            if start < at || start.end(len) > group.end() {
                return Err(malformed(group, format!("extent at {start} overlaps another")));
            }
            if start > at {
                free.push(Extent { start: at, len: start.distance(at) });
            }
            at = start.end(len);
        }
        cursor.advance()?;
    }
    if at < group.end() {
        free.push(Extent { start: at, len: group.end().distance(at) });
    }
    Ok(free)
}

/// Refuses an extent that begins or ends within a sector. So free extents also begin and end at the
/// boundaries of sectors.
pub(crate) fn expect_whole(group: Extent, extent: Extent, sectorsize: u32) -> Result<()> {
    let whole = |bytes: u64| bytes.is_multiple_of(u64::from(sectorsize));
    if whole(extent.start.0) && whole(extent.len) {
        return Ok(());
    }
    Err(malformed(group, format!("{extent} is not made of whole sectors")))
}

impl GroupFreeSpace {
    /// Reads a group's items from the working tree.
    pub(crate) fn read<S: NodeSource + ?Sized>(
        source: &S,
        root: NodePtr,
        group: Extent,
        sectorsize: u32,
    ) -> Result<Self> {
        let items = read_items(source, root, group)?;
        let (form, extents) = parse(group, sectorsize, &items)?;
        let mut free = RangeSet::default();
        for extent in extents {
            free.insert(extent.start.0..extent.end().0);
        }
        Ok(Self { group, form, free, items, dirty: false })
    }

    /// A group with rebuilt items. The old content of its items is ignored, as if the tree
    /// were empty.
    pub(crate) fn anew(group: Extent, free: &[Extent]) -> Self {
        let mut ranges = RangeSet::default();
        for extent in free {
            ranges.insert(extent.start.0..extent.end().0);
        }
        Self { group, form: Form::Extents, free: ranges, items: BTreeMap::new(), dirty: true }
    }

    /// A group that is new in this transaction: all its space is free. Items that the tree has in
    /// its range go away: before 6.16.1, mkfs.btrfs leaves those of groups that it removed.
    pub(crate) fn new<S: NodeSource + ?Sized>(
        source: &S,
        root: NodePtr,
        group: Extent,
    ) -> Result<Self> {
        let items = read_items(source, root, group)?;
        Ok(Self { items, ..Self::anew(group, &[group]) })
    }

    /// Marks the space of a new extent item as used.
    pub(crate) fn take(&mut self, extent: Extent) -> Result<()> {
        let range = extent.start.0..extent.end().0;
        if !self.free.contains_all(&range) {
            return Err(malformed(self.group, format!("{extent} is allocated but not free")));
        }
        self.free.remove(range);
        self.dirty = true;
        Ok(())
    }

    /// Marks the space of a deleted extent item as free.
    pub(crate) fn give(&mut self, extent: Extent) -> Result<()> {
        let range = extent.start.0..extent.end().0;
        if self.free.overlaps(&range) {
            return Err(malformed(self.group, format!("{extent} is freed but free already")));
        }
        self.free.insert(range);
        self.dirty = true;
        Ok(())
    }

    /// Adds the items that differ from the working tree to `out`. Later calls count these items as
    /// part of the tree.
    pub(crate) fn changes(&mut self, sectorsize: u32, out: &mut BTreeMap<Key, Change>) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let extents: Vec<_> = self
            .free
            .iter()
            .map(|r| Extent { start: Logical(r.start), len: r.end - r.start })
            .collect();
        let count = u32::try_from(extents.len()).unwrap_or(u32::MAX);
        self.form = free_space_form::next_form(self.form, count, self.group.len, sectorsize);
        let info = self.form.info(count);
        let mut wanted: BTreeMap<Key, Payload> =
            free_space_form::write(self.group, sectorsize, self.form, &extents)
                .into_iter()
                .map(|item| (item.key, Payload::from(item.payload)))
                .collect();
        let info_key = Key::new(self.group.start.0, Kind::FREE_SPACE_INFO, self.group.len);
        wanted.insert(info_key, info.to_bytes().into());
        for key in self.items.keys().filter(|k| !wanted.contains_key(k)) {
            out.insert(*key, None);
        }
        for (key, payload) in &wanted {
            if self.items.get(key) != Some(payload) {
                out.insert(*key, Some(Payload::clone(payload)));
            }
        }
        self.items = wanted;
    }

    /// Deletes every item of a group that goes away with its chunk.
    pub(crate) fn remove_all(&self, out: &mut BTreeMap<Key, Change>) {
        out.extend(self.items.keys().map(|key| (*key, None)));
    }
}
