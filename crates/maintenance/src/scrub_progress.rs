//! What a scrub is told, and what it tells.

use buttress_format::Logical;
use buttress_volume::Compared;

/// How to scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubOptions {
    /// Mend nothing.
    pub read_only: bool,
    /// Begin at this address: where an earlier one ended.
    pub from: Logical,
    /// Hold each block group read-only while it is looked at, where the others have room for its
    /// writers, as Linux does. Tells whether the copies of data without checksums are alike. What
    /// is written in place is copied meanwhile. Nothing else needs it.
    pub hold_groups: bool,
}

/// What has been looked at so far, and what was found, in the words of `btrfs scrub`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of btrfs-progs")]
pub struct ScrubProgress {
    pub data_extents_scrubbed: u64,
    pub tree_extents_scrubbed: u64,
    /// Every copy counted.
    pub data_bytes_scrubbed: u64,
    /// Every copy counted.
    pub tree_bytes_scrubbed: u64,
    pub read_errors: u64,
    pub csum_errors: u64,
    /// Tree nodes that are not what they should be.
    pub verify_errors: u64,
    /// Sectors without a checksum.
    pub no_csum: u64,
    /// Of these, sectors with copies that differ; counted where the block group is held, and not
    /// where there is parity. Nothing says which copy is right, so none is mended; what was set
    /// aside and never written counts too.
    pub no_csum_unlike: u64,
    /// Block groups that were held.
    pub groups_held: u64,
    /// Superblocks that are damaged or old.
    pub super_errors: u64,
    /// Sectors of parity that are not that of their data.
    pub parity_errors: u64,
    pub uncorrectable_errors: u64,
    pub corrected_errors: u64,
    /// Where it is: everything before was looked at.
    pub position: Logical,
    /// Bytes in use, one copy counted, that were looked at.
    pub done: u64,
    /// Bytes in use when it began, one copy counted; what was looked at, once it came to the end.
    pub total: u64,
}

impl ScrubProgress {
    /// Whether anything was wrong.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        let copies = self.read_errors + self.csum_errors + self.verify_errors;
        copies + self.super_errors + self.parity_errors > 0
    }

    pub(crate) fn add(&mut self, found: &Compared) {
        self.read_errors += found.read_errors;
        self.uncorrectable_errors += found.uncorrectable;
        self.corrected_errors += found.corrected;
    }

    /// Adds what another thread found; where it is and how much there is stays as it was.
    pub(crate) fn sum(&mut self, other: &Self) {
        self.tree_extents_scrubbed += other.tree_extents_scrubbed;
        self.data_bytes_scrubbed += other.data_bytes_scrubbed;
        self.tree_bytes_scrubbed += other.tree_bytes_scrubbed;
        self.read_errors += other.read_errors;
        self.csum_errors += other.csum_errors;
        self.verify_errors += other.verify_errors;
        self.no_csum += other.no_csum;
        self.no_csum_unlike += other.no_csum_unlike;
        self.uncorrectable_errors += other.uncorrectable_errors;
        self.corrected_errors += other.corrected_errors;
    }
}
