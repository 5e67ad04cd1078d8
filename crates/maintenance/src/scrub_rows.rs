//! Scrubs chunks with parity, row by row.
//!
//! # Invariants
//!
//! - **U4** The scrub examines a row as a whole, under one view. While the view is held, the row is
//!   not written, because the view keeps a part of the row in use (`txn::rows::P1`). A step
//!   examines only whole rows, so it begins and ends at row boundaries.

use std::collections::BTreeMap;

use buttress_format::{
    BlockGroupFlags, Extent, ExtentFlags, ExtentItem, Header, Key, Kind, Logical, TreeId,
};
use buttress_tree::Cursor;
use buttress_volume::Sector;

use buttress_txn::{Csums, Error, Result, View};

use crate::found::{FoundExtent, STEP_BYTES, extents_for};
use crate::scrub_progress::Content;
use crate::{Maintenance, ScrubProgress};

/// The most searches for the extent before an address. Two are enough on a sound volume: one finds
/// a reference of the extent, or the item of the block group, and one finds the extent.
const SEARCHES_MAX: u32 = 64;

/// A chunk with parity, or the part of it that a step examines.
#[derive(Clone, Copy)]
pub(crate) struct Striped {
    pub(crate) chunk: Extent,
    pub(crate) flags: BlockGroupFlags,
    pub(crate) row: u64,
}

/// The extents in use in a row.
struct InRow {
    range: Extent,
    found: Vec<FoundExtent>,
    sums: Option<Csums>,
}

impl Maintenance {
    /// Scrubs some rows of a chunk from an address on; returns where to continue.
    pub(crate) fn scrub_rows(
        &self,
        striped: Striped,
        from: Logical,
        repairs: bool,
        progress: &mut ScrubProgress,
    ) -> Result<Logical> {
        let Striped { chunk, flags, row } = striped;
        let floor = |at: Logical| chunk.start.end(at.distance(chunk.start) / row * row);
        let from = floor(from);
        let view = self.engine().view();
        // A step has at least one whole row, however long rows are.
        let least = STEP_BYTES.max(2 * row);
        let (mut found, next) = extents_for(&view, from, chunk.end(), least)?;
        let stop = if next < chunk.end() { floor(next) } else { next };
        found.extend(before(&view, chunk.start, from)?.filter(|one| one.extent.end() > from));
        let mut rows: BTreeMap<Logical, Vec<FoundExtent>> = BTreeMap::new();
        for one in found {
            if one.extent.start >= from && one.extent.start < stop {
                match one.level {
                    Some(_) => progress.tree_extents_scrubbed += 1,
                    None => progress.data_extents_scrubbed += 1,
                }
            }
            let mut at = floor(one.extent.start.max(from));
            while at < one.extent.end().min(stop) {
                rows.entry(at).or_default().push(one);
                at = at.end(row);
            }
        }
        let is_data = flags.has(BlockGroupFlags::DATA);
        let geometry = *self.geometry();
        let unit = if is_data { geometry.sectorsize } else { geometry.nodesize };
        for (at, found) in rows {
            let range = Extent::new(at, row.min(chunk.end().distance(at)));
            let sums = if is_data { Some(self.engine().read_csums(&view, range)?) } else { None };
            let row = InRow { range, found, sums };
            let verify = |within: usize, bytes: &[u8]| self.verify(&row, within as u64, bytes);
            let (compared, parity) =
                self.volume().compare_row(at, unit as usize, repairs, verify)?;
            progress.add(&compared, if is_data { Content::Data } else { Content::Nodes });
            progress.parity_errors += parity.wrong.len() as u64;
            if is_data {
                progress.no_csum += row.unknown(u64::from(unit));
            }
            progress.done += row.used();
        }
        Ok(stop)
    }

    fn verify(&self, row: &InRow, within: u64, bytes: &[u8]) -> Sector {
        let geometry = *self.geometry();
        let at = row.range.start.end(within);
        let Some(one) = row.found.iter().find(|one| one.extent.contains(at)) else {
            return Sector::Unused;
        };
        let size = geometry.csum.size();
        let good = match one.level {
            None => {
                let index = (within / u64::from(geometry.sectorsize)) as usize;
                let Some(sum) = row.sums.as_ref().and_then(|sums| sums.sector(index)) else {
                    return Sector::Unknown;
                };
                geometry.csum.digest(bytes)[..size] == *sum
            }
            Some(level) => {
                if one.extent.start != at || bytes.len() as u64 != one.extent.len {
                    return Sector::Unknown;
                }
                geometry.csum.digest(&bytes[32..])[..size] == bytes[..size]
                    && Header::parse(bytes).is_ok_and(|header| {
                        header.bytenr == at
                            && header.generation == one.generation
                            && header.level == level
                            && geometry.is_own(header.fsid)
                    })
            }
        };
        if good { Sector::Good } else { Sector::Bad }
    }
}

impl InRow {
    /// Bytes in use.
    fn used(&self) -> u64 {
        let of = |one: &FoundExtent| {
            let (start, end) = (self.range.start, self.range.end());
            one.extent.end().min(end).distance(one.extent.start.max(start))
        };
        self.found.iter().map(of).sum()
    }

    /// Sectors of data without a checksum.
    fn unknown(&self, sector: u64) -> u64 {
        let known = self.sums.as_ref().map_or(0, |sums| {
            (0..sums.sectors()).filter(|index| sums.sector(*index).is_some()).count() as u64
        });
        let data = self.found.iter().filter(|one| one.level.is_none()).count();
        if data == 0 { 0 } else { (self.used() / sector).saturating_sub(known) }
    }
}

/// The last extent of a chunk that begins before an address. Extents do not cross chunks.
fn before(view: &View, chunk: Logical, at: Logical) -> Result<Option<FoundExtent>> {
    let Some(root) = view.committed_root(TreeId::EXTENT)? else { return Ok(None) };
    let store = &**view.store();
    let geometry = store.geometry();
    let Some(last) = at.0.checked_sub(1) else { return Ok(None) };
    let mut key = Key::new(last, Kind(u8::MAX), u64::MAX);
    for _ in 0..SEARCHES_MAX {
        let cursor = Cursor::seek_before(store, TreeId::EXTENT, root, &key)?;
        let is_inside = |(found, _): &(Key, _)| *found <= key && found.objectid >= chunk.0;
        let Some((found, item)) = cursor.key().zip(cursor.item()).filter(is_inside) else {
            return Ok(None);
        };
        let len = match found.kind {
            Kind::EXTENT_ITEM => found.offset,
            Kind::METADATA_ITEM => u64::from(geometry.nodesize),
            // The keys of back references and block groups come after the extent item at the same
            // address.
            _ if found.kind > Kind::METADATA_ITEM => {
                key = Key::new(found.objectid, Kind::METADATA_ITEM, u64::MAX);
                continue;
            }
            _ => return Ok(None),
        };
        let malformed = |source| Error::Item { tree: TreeId::EXTENT, key: found, source };
        let parsed = ExtentItem::parse(&found, item).map_err(malformed)?;
        let is_node = parsed.flags & ExtentFlags::TREE_BLOCK != 0;
        let level = match (is_node, found.kind, parsed.tree_block) {
            (false, ..) => None,
            (true, Kind::METADATA_ITEM, _) => Some(u8::try_from(found.offset).unwrap_or(u8::MAX)),
            (true, _, known) => known.map(|(_, level)| level),
        };
        let extent = Extent::new(Logical(found.objectid), len);
        return Ok(Some(FoundExtent { extent, generation: parsed.generation, level }));
    }
    Err(Error::Extents { at, what: "references before it belong to no extent" })
}
