//! Checksums of data.
//!
//! # Invariants
//!
//! - **SU1** The checksum returned for a sector was recorded for the extent in question, not for
//!   earlier or later data at the same place.

use buttress_format::{Extent, FileExtent, Generation, Key, Kind, Logical, TreeId, ids};

use crate::log::Log;
use crate::pieces::Piece;
use crate::salvage::Salvage;
use crate::state::State;
use crate::tree::Leaves;

/// One checksum, padded with zeros.
pub(crate) type Sum = [u8; 32];

/// The first and the last transaction in which an extent was provably in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) from: Generation,
    pub(crate) until: Generation,
}

impl Piece for (FileExtent, Life) {
    fn extent(&self) -> &FileExtent {
        &self.0
    }

    fn with(&self, part: FileExtent) -> Self {
        (part, self.1)
    }
}

/// A source of checksums.
pub(crate) trait Sums {
    /// The checksum of each sector of a range; `None` for a sector without a checksum.
    fn of(&self, salvage: &Salvage, extent: Extent, life: Life) -> Vec<Option<Sum>>;
}

/// The checksums of one moment.
#[derive(Debug)]
pub(crate) struct TreeSums<'l> {
    leaves: Option<Leaves>,
    log: &'l Log,
}

impl<'l> TreeSums<'l> {
    /// The checksums of a state. Without a checksum tree there are only those of the log.
    pub(crate) fn new(salvage: &Salvage, state: &'l State) -> Self {
        let root = state.trees.get(&TreeId::CSUM).map(|tree| tree.root);
        let walk = |root| Leaves::walk(salvage, TreeId::CSUM, root, state.extents.as_ref());
        Self { leaves: root.map(walk), log: &state.log }
    }

    fn of_tree(&self, salvage: &Salvage, found: &mut Wanted) {
        let Some(tree) = self.leaves.as_ref().filter(|tree| !tree.is_empty()) else { return };
        let extent = found.extent;
        let key = Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, extent.start.0);
        for leaf in &tree.leaves()[tree.leaf_of(&key)..] {
            if leaf.first.offset >= extent.end().0 && leaf.first.objectid == ids::EXTENT_CSUM {
                break;
            }
            let Ok(node) = tree.read(salvage, leaf) else { continue };
            for slot in 0..node.len() {
                found.take(&node.key(slot), node.item(slot));
            }
        }
    }
}

impl Sums for TreeSums<'_> {
    fn of(&self, salvage: &Salvage, extent: Extent, _: Life) -> Vec<Option<Sum>> {
        let mut found = Wanted::new(salvage, extent);
        self.of_tree(salvage, &mut found);
        // Data of an fsync has its checksums in the log.
        if !found.is_whole() {
            self.log.sums(extent).for_each(|(key, sums)| found.take(key, sums));
        }
        found.sums
    }
}

/// The checksums that the search has found so far for a range.
pub(crate) struct Wanted {
    extent: Extent,
    sector: u64,
    size: usize,
    pub(crate) sums: Vec<Option<Sum>>,
}

impl Wanted {
    pub(crate) fn new(salvage: &Salvage, extent: Extent) -> Self {
        let sector = u64::from(salvage.superblock().sectorsize);
        let size = salvage.superblock().csum_type.size();
        let sums = vec![None; (extent.len / sector) as usize];
        Self { extent, sector, size, sums }
    }

    /// Whether a checksum was found for each sector.
    pub(crate) fn is_whole(&self) -> bool {
        self.sums.iter().all(Option::is_some)
    }

    /// Takes the missing checksums from an item.
    pub(crate) fn take(&mut self, key: &Key, bytes: &[u8]) {
        if key.kind != Kind::EXTENT_CSUM || key.objectid != ids::EXTENT_CSUM {
            return;
        }
        let start = key.offset;
        let len = (bytes.len() / self.size) as u64 * self.sector;
        if !Extent::new(Logical(start), len).overlaps(&self.extent) {
            return;
        }
        for (index, sum) in bytes.chunks_exact(self.size).enumerate() {
            let at = start.saturating_add(index as u64 * self.sector);
            let Some(within) = at.checked_sub(self.extent.start.0) else { continue };
            if !within.is_multiple_of(self.sector) {
                return;
            }
            if let Some(place @ None) = self.sums.get_mut((within / self.sector) as usize) {
                let mut whole = Sum::default();
                whole[..self.size].copy_from_slice(sum);
                *place = Some(whole);
            }
        }
    }
}
