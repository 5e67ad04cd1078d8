//! Where the first chunks of a new volume lie.
//!
//! # Invariants
//!
//! - **L1** No two stripes overlap, none begins below the first mebibyte, all end on the device.

use buttress_format::limits::{DEVICE_RESERVED, STRIPE_LEN, SUPER_OFFSETS, SUPER_SIZE};
use buttress_format::{BlockGroupFlags, Logical};

use super::{Copies, MakeError, MakeOptions};

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

/// The three first chunks.
pub(super) struct Layout {
    /// Bytes of the device that the volume uses.
    pub size: u64,
    pub system: Placed,
    pub metadata: Placed,
    pub data: Placed,
}

/// A chunk and where its copies begin on the device.
pub(super) struct Placed {
    pub flags: BlockGroupFlags,
    pub logical: Logical,
    pub len: u64,
    pub stripes: Vec<u64>,
}

impl Layout {
    /// Places the chunks on a volume of `size` bytes.
    pub(super) fn plan(size: u64, options: &MakeOptions) -> Result<Self, MakeError> {
        if options.data != Copies::Single {
            return Err(MakeError::DataProfile);
        }
        let (system_len, metadata_len, data_len) = lengths(size);
        let copies = match options.metadata {
            Copies::Single => 1,
            Copies::Dup => 2,
        };
        let least = DEVICE_RESERVED + copies * (system_len + metadata_len) + data_len;
        if size < least {
            return Err(MakeError::TooSmall { size, least });
        }
        let mut physical = DEVICE_RESERVED;
        let mut place = |len: u64, copies: u64| {
            (0..copies)
                .map(|_| {
                    let at = physical;
                    physical += len;
                    at
                })
                .collect::<Vec<_>>()
        };
        let dup = if copies == 2 { BlockGroupFlags::DUP.0 } else { 0 };
        let system = Placed {
            flags: BlockGroupFlags(BlockGroupFlags::SYSTEM.0 | dup),
            logical: Logical(DEVICE_RESERVED),
            len: system_len,
            stripes: place(system_len, copies),
        };
        let data_stripes = place(data_len, 1);
        let metadata = Placed {
            flags: BlockGroupFlags(BlockGroupFlags::METADATA.0 | dup),
            logical: Logical(system.logical.0 + system.len),
            len: metadata_len,
            stripes: place(metadata_len, copies),
        };
        let data = Placed {
            flags: BlockGroupFlags::DATA,
            logical: Logical(metadata.logical.0 + metadata.len),
            len: data_len,
            stripes: data_stripes,
        };
        assert!(physical == least, "L1: stripes lie end to end");
        Ok(Self { size, system, metadata, data })
    }

    /// The chunks in logical order.
    pub(super) fn chunks(&self) -> [&Placed; 3] {
        [&self.system, &self.metadata, &self.data]
    }

    /// Bytes of the device that chunks take, all copies counted.
    pub(super) fn device_bytes(&self) -> u64 {
        self.chunks().iter().map(|chunk| chunk.len * chunk.stripes.len() as u64).sum()
    }
}

/// Lengths of the first system, metadata and data chunk: what Linux would allocate for metadata
/// on a volume of this size, within a tenth of it for both copies, and less on tiny volumes.
fn lengths(size: u64) -> (u64, u64, u64) {
    if size < 109 * MIB {
        return (4 * MIB, 8 * MIB, 8 * MIB);
    }
    let most = if size > 50 * GIB { GIB } else { 256 * MIB };
    let tenth = size / 20 / STRIPE_LEN * STRIPE_LEN;
    (8 * MIB, tenth.clamp(32 * MIB, most), 8 * MIB)
}

impl Placed {
    /// Hands out `count` addresses of nodes from the front, none over a superblock (K2).
    pub(super) fn node_addresses(&self, nodesize: u32, count: usize) -> Vec<Logical> {
        let nodesize = u64::from(nodesize);
        let addresses: Vec<Logical> = (0..self.len / nodesize)
            .map(|index| index * nodesize)
            .filter(|&within| !self.covers_superblock(within, nodesize))
            .map(|within| Logical(self.logical.0 + within))
            .take(count)
            .collect();
        assert!(addresses.len() == count, "K1: the first chunk holds the first nodes");
        addresses
    }

    /// Whether a copy of the `len` bytes at `within` touches a stripe that holds a superblock.
    fn covers_superblock(&self, within: u64, len: u64) -> bool {
        self.stripes.iter().any(|stripe| {
            let start = stripe + within;
            SUPER_OFFSETS.iter().any(|&offset| {
                let stripe_start = offset / STRIPE_LEN * STRIPE_LEN;
                let stripe_end = stripe_start + STRIPE_LEN.max(SUPER_SIZE as u64);
                start < stripe_end && stripe_start < start + len
            })
        })
    }
}
