//! Finds checksums of data. The newest source that has the checksum of a sector wins.

use buttress_format::{Extent, Key, Kind, Logical, TreeId, ids};
use buttress_tree::Cursor;

use crate::{Error, Result, View};

/// The checksums of a range, sector by sector; a sector may have none.
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

    /// The checksum of the range's n-th sector; `None` if the sector has none.
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

    /// Adds checksums for sectors without one yet. Callers go from the newest source to the oldest.
    fn merge(&mut self, run: Extent, sums: &[u8]) {
        let start = run.start.0.max(self.extent.start.0);
        let end = run.end().0.min(self.extent.end().0);
        let mut at = start;
        while at < end {
            let to = ((at - self.extent.start.0) / self.sector) as usize;
            let from = ((at - run.start.0) / self.sector) as usize;
            // A damaged item can make a run or a range begin within a sector. A sector without a
            // whole checksum in `sums` is skipped.
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

/// Looks up the checksums of a range: first in the running transaction, then in the frozen one,
/// then in the committed tree.
pub fn read(view: &View, extent: Extent) -> Result<Csums> {
    let geometry = *view.store().geometry();
    let sector = u64::from(geometry.sectorsize);
    let size = geometry.csum.size();
    let mut found = Csums::new(extent, sector, size);
    view.running().sums.for_each(extent, |run, sums| found.merge(run, sums));
    if let Some(frozen) = view.frozen() {
        frozen.sums.for_each(extent, |run, sums| found.merge(run, sums));
    }
    if found.known.iter().all(|k| *k) {
        return Ok(found);
    }
    let Some(root) = view.committed_root(TreeId::CSUM)? else { return Ok(found) };
    let key = Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, extent.start.0);
    let mut cursor = Cursor::seek_before(&**view.store(), TreeId::CSUM, root, &key)?;
    // The item before may reach into the range. If there is no item before, the cursor has no key.
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
