//! Checksums of data: those of a transaction not yet in the checksum tree, and lookups through all.
//!
//! # Invariants
//!
//! - **K1** Runs of one transaction never overlap: an extent's sums leave with the extent.

use std::collections::BTreeMap;

use buttress_base::sync::RwLock;
use buttress_format::{Extent, Key, Kind, Logical, TreeId, header::ITEM_LEN, ids};
use buttress_tree::Cursor;

use crate::{Error, Result, View};

#[derive(Clone, Debug)]
struct Run {
    len: u64,
    sums: std::sync::Arc<[u8]>,
}

#[derive(Debug, Default)]
struct Runs {
    map: BTreeMap<Logical, Run>,
    /// Bytes of their sums.
    bytes: u64,
    /// Items that they make, where those that touch are one.
    items: u64,
}

impl Runs {
    /// How many of the two neighbours of a run touch it.
    fn touching(&self, extent: Extent) -> u64 {
        let before = self.map.range(..extent.start).next_back();
        let touches = before.is_some_and(|(start, run)| start.end(run.len) == extent.start);
        u64::from(touches) + u64::from(self.map.contains_key(&extent.end()))
    }

    fn insert(&mut self, start: Logical, run: Run) {
        let extent = Extent { start, len: run.len };
        self.remove(start);
        // Two that it joins are one with it.
        self.items = self.items + 1 - self.touching(extent);
        self.bytes += run.sums.len() as u64;
        self.map.insert(start, run);
    }

    fn remove(&mut self, start: Logical) {
        let Some(run) = self.map.remove(&start) else { return };
        self.items = self.items + self.touching(Extent { start, len: run.len }) - 1;
        self.bytes -= run.sums.len() as u64;
    }
}

/// The checksums that one transaction adds.
#[derive(Debug, Default)]
pub(crate) struct PendingSums {
    runs: RwLock<Runs>,
    bytes: std::sync::atomic::AtomicU64,
}

impl PendingSums {
    /// Adds the sums of an extent, one per sector, in order.
    pub(crate) fn insert(&self, extent: Extent, sums: Vec<u8>) {
        self.bytes.fetch_add(sums.len() as u64 + 64, std::sync::atomic::Ordering::Relaxed);
        let run = Run { len: extent.len, sums: sums.into() };
        self.runs.write().insert(extent.start, run);
    }

    /// Forgets the sums of an extent that vanished.
    pub(crate) fn remove(&self, extent: Extent) {
        let mut runs = self.runs.write();
        let gone: Vec<_> =
            runs.map.range(extent.start..extent.end()).map(|(start, _)| *start).collect();
        for start in gone {
            runs.remove(start);
        }
    }

    /// Bytes of the items that they make, at most: one that an item can hold no more of is cut.
    pub(crate) fn planned(&self) -> u64 {
        let runs = self.runs.read();
        runs.bytes + runs.bytes / 64 + ITEM_LEN as u64 * runs.items
    }

    /// Memory held, in bytes; what left again still counts, since it was work.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Every run, ascending.
    pub(crate) fn sorted(&self) -> Vec<(Extent, std::sync::Arc<[u8]>)> {
        self.runs
            .read()
            .map
            .iter()
            .map(|(start, run)| (Extent { start: *start, len: run.len }, run.sums.clone()))
            .collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.read().map.is_empty()
    }

    /// The runs that touch a range, whole, ascending.
    pub(crate) fn touching(&self, range: Extent) -> Vec<(Extent, std::sync::Arc<[u8]>)> {
        let runs = &self.runs.read().map;
        let before = runs.range(..=range.start).next_back();
        let from = before.map_or(range.start, |(start, _)| *start);
        runs.range(from..range.end())
            .map(|(start, run)| (Extent { start: *start, len: run.len }, run.sums.clone()))
            .filter(|(run, _)| run.overlaps(&range))
            .collect()
    }

    fn fill(&self, into: &mut Csums) {
        let runs = &self.runs.read().map;
        let from = runs
            .range(..=into.extent.start)
            .next_back()
            .map_or(into.extent.start, |(start, _)| *start);
        for (start, run) in runs.range(from..into.extent.end()) {
            into.merge(Extent { start: *start, len: run.len }, &run.sums);
        }
    }
}

/// The checksums of a range, sector by sector, where there are any.
#[derive(Clone, Debug)]
pub struct Csums {
    extent: Extent,
    sector: u64,
    size: usize,
    bytes: Vec<u8>,
    known: Vec<bool>,
}

impl Csums {
    fn new(extent: Extent, sector: u64, size: usize) -> Self {
        let sectors = (extent.len / sector) as usize;
        Self { extent, sector, size, bytes: vec![0; sectors * size], known: vec![false; sectors] }
    }

    /// Number of sectors that the range has.
    #[must_use]
    pub fn sectors(&self) -> usize {
        self.known.len()
    }

    /// The checksum of the range's n-th sector, or nothing where data carries none.
    #[must_use]
    pub fn sector(&self, index: usize) -> Option<&[u8]> {
        let known = *self.known.get(index)?;
        known.then(|| &self.bytes[index * self.size..(index + 1) * self.size])
    }

    /// Whether no sector has a checksum.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.known.iter().any(|k| *k)
    }

    /// Whether every sector has a checksum.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.known.iter().all(|k| *k)
    }

    /// Takes over what is not known yet: callers go from the youngest source to the oldest.
    fn merge(&mut self, run: Extent, sums: &[u8]) {
        let start = run.start.0.max(self.extent.start.0);
        let end = run.end().0.min(self.extent.end().0);
        let mut at = start;
        while at < end {
            let to = ((at - self.extent.start.0) / self.sector) as usize;
            let from = ((at - run.start.0) / self.sector) as usize;
            // A run or a range that a damaged item put between sectors has a part of one at its end.
            if let Some(source) = sums.get(from * self.size..(from + 1) * self.size)
                && self.known.get(to) == Some(&false)
            {
                self.bytes[to * self.size..(to + 1) * self.size].copy_from_slice(source);
                self.known[to] = true;
            }
            at += self.sector;
        }
    }
}

/// Looks a range's checksums up: running, frozen, committed.
pub(crate) fn read(view: &View, extent: Extent) -> Result<Csums> {
    let geometry = *view.store().geometry();
    let sector = u64::from(geometry.sectorsize);
    let size = geometry.csum.size();
    let mut found = Csums::new(extent, sector, size);
    view.running().sums.fill(&mut found);
    if let Some(frozen) = view.frozen() {
        frozen.sums.fill(&mut found);
    }
    if found.known.iter().all(|k| *k) {
        return Ok(found);
    }
    let Some(root) = view.committed_root(TreeId::CSUM)? else { return Ok(found) };
    let key = Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, extent.start.0);
    let mut cursor = Cursor::seek_before(&**view.store(), TreeId::CSUM, root, &key)?;
    // The item before may reach into the range; where there is none the cursor is past the front.
    if cursor.key().is_none() {
        cursor = Cursor::seek(&**view.store(), TreeId::CSUM, root, &key)?;
    }
    while let Some((key, item)) = cursor.key().zip(cursor.item()) {
        if key.kind == Kind::EXTENT_CSUM && key.objectid == ids::EXTENT_CSUM {
            if key.offset >= extent.end().0 {
                break;
            }
            let len = (item.len() / size) as u64 * sector;
            if key.offset.checked_add(len).is_none() {
                let what = "a checksum item reaches past the end of the address space";
                return Err(Error::Extents { at: Logical(key.offset), what });
            }
            found.merge(Extent { start: Logical(key.offset), len }, item);
        } else if key.objectid > ids::EXTENT_CSUM {
            break;
        }
        cursor.advance()?;
    }
    Ok(found)
}
