//! Checksums for the data of a log: in the log, or committed.
//!
//! Only checksums of data that the log names are compared with data. A log may have checksums
//! beside these, of data that was freed and overwritten since.

use buttress_base::RangeSet;
use buttress_format::{Extent, Key, Kind, Logical, TreeId, ids};
use buttress_tree::{Cursor, NodePtr};

use crate::context::{Context, Tree};
use crate::data;
use crate::facts::Item;

/// Looks for checksums.
pub(crate) struct LogSums<'s, 'c> {
    context: &'s Context<'c>,
    log: NodePtr,
    committed: Option<NodePtr>,
    pub(crate) verified_bytes: u64,
    /// Data that was verified. Several files may share it.
    verified: RangeSet,
}

impl<'s, 'c> LogSums<'s, 'c> {
    pub(crate) fn new(context: &'s Context<'c>, trees: &[Tree], log: NodePtr) -> Self {
        let committed = trees.iter().find(|tree| tree.id == TreeId::CSUM).map(|tree| tree.root);
        Self { context, log, committed, verified_bytes: 0, verified: RangeSet::default() }
    }

    /// Whether an item is a list of checksums.
    pub(crate) fn is_list(&self, item: &Item<'_>) -> bool {
        let size = self.context.superblock.csum_type.size();
        let (key, len) = (item.key, item.bytes.len());
        len > 0 && len.is_multiple_of(size) && self.context.is_aligned(key.offset)
    }

    /// Returns the first address without a checksum. Verifies the data with the checksums of the
    /// log, if the options ask for it. Committed checksums are verified elsewhere.
    pub(crate) fn first_missing(&mut self, range: Extent) -> Option<Logical> {
        let mut at = range.start;
        while at < range.end() {
            let committed = self.committed.and_then(|root| self.covering(root, at));
            if let Some((end, _)) = committed {
                at = end;
                continue;
            }
            let Some((end, mut sums)) = self.covering(self.log, at) else { return Some(at) };
            let end = end.min(range.end());
            let sectors = end.distance(at) / self.context.sectorsize();
            sums.truncate(sectors as usize * self.context.superblock.csum_type.size());
            let part = at.0..end.0;
            if self.context.options.check_data_csum && !self.verified.contains_all(&part) {
                // The memory is bounded, and verifying data again is no fault.
                if self.verified.len() >= 1 << 15 {
                    self.verified.clear();
                }
                self.verified.insert(part);
                self.verified_bytes += data::verify_at(self.context, at, sums);
            }
            at = end;
        }
        None
    }

    /// Returns the end of the list of checksums that has an address, and its checksums from this
    /// address on.
    fn covering(&self, root: NodePtr, at: Logical) -> Option<(Logical, Vec<u8>)> {
        let (source, sector) = (&self.context.source, self.context.sectorsize());
        let key = Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, at.0);
        let cursor = Cursor::seek_before(source, TreeId::CSUM, root, &key).ok()?;
        let (found, bytes) = (cursor.key()?, cursor.item()?);
        if found.objectid != key.objectid || found.kind != key.kind {
            return None;
        }
        let size = self.context.superblock.csum_type.size();
        let sectors = (bytes.len() / size) as u64;
        let index = (at.0 - found.offset) / sector;
        let rest = bytes.get(usize::try_from(index).ok()?.checked_mul(size)?..)?;
        let is_aligned = self.context.is_aligned(found.offset) && self.context.is_aligned(at.0);
        let is_there = is_aligned && index < sectors;
        is_there.then(|| (Logical(found.offset).end(sectors * sector), rest.to_vec()))
    }
}
