//! The options and the progress of a scrub.

use std::collections::BTreeMap;

use buttress_format::{DeviceId, Logical};
use buttress_volume::Compared;

/// How to scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubOptions {
    /// Repair nothing.
    pub read_only: bool,
    /// Begin at this address, for example where an earlier scrub ended.
    pub from: Logical,
    /// Hold each block group read-only during its scrub, as Linux does, if other groups have space
    /// for its writers. In a held group the scrub can compare the copies of data without checksums.
    /// A write in place goes to newly allocated space meanwhile.
    pub hold_groups: bool,
}

/// The counts of one device, with the names of `btrfs scrub`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of btrfs-progs")]
pub struct DeviceCounts {
    /// Reads of data.
    pub data_extents_scrubbed: u64,
    pub tree_extents_scrubbed: u64,
    pub data_bytes_scrubbed: u64,
    pub tree_bytes_scrubbed: u64,
    pub read_errors: u64,
    pub csum_errors: u64,
    pub verify_errors: u64,
    pub no_csum: u64,
    pub super_errors: u64,
    pub uncorrectable_errors: u64,
    pub corrected_errors: u64,
    /// The address on the device that the scrub has reached.
    pub last_physical: u64,
}

impl DeviceCounts {
    /// Adds the counts of other work on the device. The address is the higher one.
    pub fn sum(&mut self, other: &Self) {
        self.data_extents_scrubbed += other.data_extents_scrubbed;
        self.tree_extents_scrubbed += other.tree_extents_scrubbed;
        self.data_bytes_scrubbed += other.data_bytes_scrubbed;
        self.tree_bytes_scrubbed += other.tree_bytes_scrubbed;
        self.read_errors += other.read_errors;
        self.csum_errors += other.csum_errors;
        self.verify_errors += other.verify_errors;
        self.no_csum += other.no_csum;
        self.super_errors += other.super_errors;
        self.uncorrectable_errors += other.uncorrectable_errors;
        self.corrected_errors += other.corrected_errors;
        self.last_physical = self.last_physical.max(other.last_physical);
    }
}

/// What was compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Nodes,
    Data,
    /// Data without checksums, in sectors of this length.
    Unsummed(u64),
}

/// The counts so far of checked space and of errors, with the names of `btrfs scrub`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Tree nodes with wrong contents.
    pub verify_errors: u64,
    /// Sectors without a checksum.
    pub no_csum: u64,
    /// Sectors without a checksum and with differing copies, counted only in held block groups
    /// without parity. No checksum shows which copy is right, so no copy is repaired. Preallocated
    /// space that was never written counts, too.
    pub no_csum_unlike: u64,
    /// Block groups that were held read-only.
    pub groups_held: u64,
    /// Superblocks that are damaged or outdated.
    pub super_errors: u64,
    /// Parity sectors that do not match their data.
    pub parity_errors: u64,
    pub uncorrectable_errors: u64,
    pub corrected_errors: u64,
    /// The scrub's position: everything before it was examined.
    pub position: Logical,
    /// Bytes in use that were examined, one copy counted.
    pub done: u64,
    /// Bytes in use at the beginning, one copy counted. At the end: the examined bytes.
    pub total: u64,
    /// As `total`, with every copy counted.
    pub total_copies: u64,
    /// The counts of each device.
    pub devices: BTreeMap<DeviceId, DeviceCounts>,
}

impl ScrubProgress {
    /// Whether anything was wrong.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        let copies = self.read_errors + self.csum_errors + self.verify_errors;
        copies + self.super_errors + self.parity_errors > 0
    }

    /// The counts of a device.
    pub(crate) fn on(&mut self, device: DeviceId) -> &mut DeviceCounts {
        self.devices.entry(device).or_default()
    }

    pub(crate) fn add(&mut self, found: &Compared, content: Content) {
        self.read_errors += found.read_errors;
        self.uncorrectable_errors += found.uncorrectable;
        self.corrected_errors += found.corrected;
        let is_data = content != Content::Nodes;
        if is_data {
            self.csum_errors += found.bad;
            self.data_bytes_scrubbed += found.bytes;
        } else {
            self.verify_errors += found.bad;
            self.tree_bytes_scrubbed += found.bytes;
        }
        for (device, found) in &found.devices {
            let device = self.on(*device);
            device.read_errors += found.read_errors;
            device.uncorrectable_errors += found.uncorrectable;
            device.corrected_errors += found.corrected;
            if is_data {
                device.csum_errors += found.bad;
                device.data_bytes_scrubbed += found.bytes;
                device.data_extents_scrubbed += u64::from(found.bytes > 0);
            } else {
                device.verify_errors += found.bad;
                device.tree_bytes_scrubbed += found.bytes;
                device.tree_extents_scrubbed += u64::from(found.bytes > 0);
            }
            if let Content::Unsummed(sector) = content {
                device.no_csum += found.bytes / sector;
            }
        }
    }

    /// Adds the counts of another thread; `position` and `total` stay unchanged.
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
        for (device, counts) in &other.devices {
            self.on(*device).sum(counts);
        }
    }
}
