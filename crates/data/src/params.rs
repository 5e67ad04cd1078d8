//! Parameters of files, from the volume and the mount options.
//!
//! # What must hold
//!
//! - The parameters do not change while the volume is mounted. The functions here only compute:
//!   they access neither memory that threads share nor a device.

use buttress_format::{CsumType, InodeFlags, StripeItem};
use buttress_txn::Cost;

use crate::codec::Codec;
use crate::dirty::Run;
use crate::file::Meta;
use crate::job::Packed;
use crate::pages::ReadBatch;

/// Cost of one new extent: the inode item, the extent's own item, and the extent's reference and
/// checksums.
pub(crate) const EXTENT_COST: Cost = Cost { items: 2, commit_items: 5, bytes: 277 };

/// Additional cost of a new extent that splits an old item: the items of the two remaining ends,
/// and the reference of the second end.
pub(crate) const SPLIT_COST: Cost = Cost { items: 2, commit_items: 3, bytes: 179 };

/// Cost of hole items that an extent may add, on volumes where holes have items.
pub(crate) const HOLE_COST: Cost = Cost::of(2, 106);

/// Layout options of files, from the superblock and the mount options.
#[derive(Clone, Debug)]
pub struct FilesOptions {
    /// Largest file that is stored inline in the tree, in bytes.
    pub max_inline: u32,
    /// Whether the volume has no items for holes. Otherwise each hole has an item.
    pub no_holes: bool,
    /// The codec of files that have no codec of their own.
    pub compress: Option<Codec>,
    /// Whether to compress even files that are marked as incompressible, and data that looks
    /// incompressible.
    pub compress_force: bool,
    /// Size of the page cache, in bytes. Zero if a layer above caches data already.
    pub page_cache_bytes: u64,
    /// Whether the volume has a stripe tree, which gets items for written data.
    pub has_stripe_tree: bool,
    /// How much a reader reads at once when data is missing.
    pub read_batch: ReadBatch,
    /// Whether a file remembers which of its extents are not shared.
    pub nocow_check: NocowCheck,
    /// Whether read-ahead threads may be started.
    pub helpers: bool,
    /// Whether data is read without being compared with its checksums, for volumes that are only
    /// read (`rescue=ignoredatacsums`).
    pub ignore_csums: bool,
}

/// The writes in place that check whether their file alone refers to the extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NocowCheck {
    /// Every write in place.
    #[cfg(feature = "baselines")]
    Always,
    /// Writes to extents for which the file remembers no result of the check.
    #[default]
    Remembered,
}

impl NocowCheck {
    pub(crate) fn remembers(self) -> bool {
        self == Self::Remembered
    }
}

/// The parameters of all files of a mounted volume.
///
/// Plain data: none of it changes.
#[derive(Debug)]
pub(crate) struct Params {
    /// Bytes of a sector, a power of two.
    pub(crate) sector: u64,
    pub(crate) csum_type: CsumType,
    pub(crate) options: FilesOptions,
}

impl Params {
    /// The start of the sector that holds `offset`.
    pub(crate) fn floor(&self, offset: u64) -> u64 {
        offset & !(self.sector - 1)
    }

    /// The first sector boundary at or after `offset`.
    pub(crate) fn ceil(&self, offset: u64) -> u64 {
        offset.saturating_add(self.sector - 1) & !(self.sector - 1)
    }

    /// One checksum a sector, in order.
    pub(crate) fn sums(&self, slices: &[&[u8]]) -> Vec<u8> {
        let size = self.csum_type.size();
        let sector = self.sector as usize;
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut sums = Vec::with_capacity(bytes / sector * size);
        for part in slices.iter().flat_map(|slice| slice.chunks_exact(sector)) {
            sums.extend_from_slice(&self.csum_type.digest(part)[..size]);
        }
        sums
    }

    /// The cost of the items in the stripe tree for `parts` ranges of `len` bytes together.
    pub(crate) fn stripe_cost(&self, len: u64, parts: u32) -> Cost {
        if !self.options.has_stripe_tree {
            return Cost::default();
        }
        let ends = StripeItem::bytes_max(0) as u32;
        let bytes = (StripeItem::bytes_max(len) as u32).saturating_add(parts.saturating_mul(ends));
        Cost { items: 0, commit_items: parts.into(), bytes: bytes.into() }
    }

    /// The most bytes that a file's content takes in the tree if the file's length is `size`.
    pub(crate) fn inline_bytes(&self, meta: &Meta, size: u64) -> u32 {
        let max_inline = u64::from(self.options.max_inline);
        let packs = self.choice(meta.item.flags, meta.codec).is_some();
        let limit = if packs { self.sector } else { max_inline };
        if size <= limit { size.min(max_inline) as u32 } else { 0 }
    }

    /// The cost of `parts` extents in addition to the extents that the reservation of the pieces
    /// covers.
    pub(crate) fn cost_of_parts(&self, parts: usize) -> Cost {
        let holes = if self.options.no_holes { Cost::default() } else { HOLE_COST };
        EXTENT_COST.and(SPLIT_COST).and(holes).times(parts as u32)
    }

    /// Whether the whole file is one run that is small, or small after compression. Such a file is
    /// stored inline in the tree.
    pub(crate) fn fits_inline(&self, run: &Run, packed: &[Packed], size: u64, flags: u64) -> bool {
        let len = packed.first().map_or(size, |packed| packed.bytes.len() as u64);
        self.may_be_inline(run, size, flags) && len <= u64::from(self.options.max_inline)
    }

    /// Whether a run is the whole of a file that is shorter than a sector.
    pub(crate) fn may_be_inline(&self, run: &Run, size: u64, flags: u64) -> bool {
        run.offset == 0
            && run.len == self.sector
            && size > 0
            && size < self.sector
            && flags & InodeFlags::PREALLOC == 0
    }
}
