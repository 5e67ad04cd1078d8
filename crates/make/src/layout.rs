//! The addresses of the first chunks of a new volume.
//!
//! # Invariants
//!
//! - **L1** No two stripes overlap. No stripe begins below the first mebibyte. Each stripe ends on
//!   its device.

use buttress_base::RangeSet;
use buttress_format::limits::{DEVICE_RESERVED, STRIPE_LEN};
use buttress_format::{BlockGroupFlags, Chunk, DeviceId, Logical, Profile, Stripe, TreeId};
use buttress_volume::place::{self, Limits, Room};

use super::error::MakeError;
use super::options::MakeOptions;

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

/// The first chunks.
pub(super) struct Layout {
    /// Bytes of each device that the volume uses, in the order of the devices' numbers.
    pub sizes: Vec<u64>,
    /// Bytes of a sector.
    pub sectorsize: u32,
    pub system: Placed,
    /// The chunk of the trees. In a mixed volume it also holds data.
    pub metadata: Placed,
    /// The data chunks. There are none in a mixed volume.
    pub data: Vec<Placed>,
}

/// A chunk, and the bytes that it takes on each device.
pub(super) struct Placed {
    pub chunk: Chunk,
    pub stripe_bytes: u64,
}

/// The profiles of a new volume: the requested profiles, or defaults for its devices.
pub(super) struct Profiles {
    pub metadata: Profile,
    pub data: Profile,
}

impl Profiles {
    pub(super) fn of(options: &MakeOptions, devices: usize) -> Result<Self, MakeError> {
        let usual = match (options.mixed, devices) {
            (true, _) => Profile::Single,
            (false, 1) => Profile::Dup,
            (false, _) => Profile::Raid1,
        };
        let (metadata, data) = if options.mixed {
            let either = options.metadata.or(options.data).unwrap_or(usual);
            (either, options.data.unwrap_or(either))
        } else {
            (options.metadata.unwrap_or(usual), options.data.unwrap_or(Profile::Single))
        };
        if options.mixed && metadata != data {
            return Err(MakeError::MixedProfiles);
        }
        for (profile, has_nodes) in [(metadata, true), (data, options.mixed)] {
            let spread = profile.spread();
            if spread.parity > 0 && has_nodes && options.mixed {
                return Err(MakeError::Parity { profile });
            }
            if spread.parity > 0 && options.features.raid_stripe_tree {
                return Err(MakeError::StripeTree { profile });
            }
            if spread.least > devices {
                return Err(MakeError::TooFewDevices { profile, needs: spread.least, devices });
            }
        }
        Ok(Self { metadata, data })
    }
}

impl Layout {
    /// Places the chunks on devices with these sizes and identifiers.
    pub(super) fn plan(
        sizes: &[u64],
        uuids: &[[u8; 16]],
        options: &MakeOptions,
    ) -> Result<Self, MakeError> {
        let profiles = Profiles::of(options, sizes.len())?;
        let smallest = sizes.iter().copied().min().unwrap_or(0);
        let (system_len, metadata_len, data_len) = lengths(smallest);
        let mut planner = Planner::new(sizes, uuids, options.sectorsize);
        let kinds = (BlockGroupFlags::SYSTEM, BlockGroupFlags::METADATA, BlockGroupFlags::DATA);
        let least = planner.least(&profiles, smallest, options.mixed);
        let mut place = |kind, profile, len| {
            planner.place(kind, profile, len).ok_or(MakeError::TooSmall { size: smallest, least })
        };
        let system = place(kinds.0, profiles.metadata, system_len)?;
        let (mut metadata, data) = if options.mixed {
            (place(kinds.1.with(kinds.2), profiles.metadata, metadata_len)?, None)
        } else {
            let data = place(kinds.2, profiles.data, data_len)?;
            (place(kinds.1, profiles.metadata, metadata_len)?, Some(data))
        };
        metadata.chunk.logical = Logical(system.chunk.logical.0 + system.chunk.len);
        let data = data.into_iter().map(|mut data| {
            data.chunk.logical = Logical(metadata.chunk.logical.0 + metadata.chunk.len);
            data
        });
        let data = data.collect();
        Ok(Self { sizes: sizes.to_vec(), sectorsize: options.sectorsize, system, metadata, data })
    }

    /// The chunks in logical order.
    pub(super) fn chunks(&self) -> Vec<&Placed> {
        [&self.system, &self.metadata].into_iter().chain(&self.data).collect()
    }

    /// Bytes of a device that chunks take.
    pub(super) fn device_bytes(&self, device: DeviceId) -> u64 {
        let on_it = |placed: &&Placed| {
            let stripes = placed.chunk.stripes.iter();
            stripes.filter(|stripe| stripe.device == device).count() as u64 * placed.stripe_bytes
        };
        self.chunks().iter().map(on_it).sum()
    }
}

/// Allocates space on the devices, from their starts.
struct Planner<'a> {
    free: Vec<RangeSet>,
    uuids: &'a [[u8; 16]],
    sectorsize: u32,
}

impl<'a> Planner<'a> {
    fn new(sizes: &[u64], uuids: &'a [[u8; 16]], sectorsize: u32) -> Self {
        let whole = |size: &u64| {
            let mut free = RangeSet::new();
            if *size > DEVICE_RESERVED {
                free.insert(DEVICE_RESERVED..*size);
            }
            free
        };
        Self { free: sizes.iter().map(whole).collect(), uuids, sectorsize }
    }

    /// A chunk with stripes of `len` bytes. Stripes are shorter if a profile spreads a chunk of
    /// trees over many devices, because trees are small. `None` if the chunk does not fit.
    fn place(&mut self, kind: BlockGroupFlags, profile: Profile, len: u64) -> Option<Placed> {
        let chunk_max = if kind.has(BlockGroupFlags::DATA) { u64::MAX / 2 } else { len };
        let rooms: Vec<Room<'_>> = (1..)
            .map(DeviceId)
            .zip(&self.free)
            .map(|(device, free)| Room { device, free })
            .collect();
        let limits = Limits { stripe: len, chunk: chunk_max };
        let places = place::place(profile, &rooms, limits)?;
        if places.len < len.min(chunk_max) {
            return None;
        }
        let mut stripes = Vec::with_capacity(places.stripes.len());
        for (device, offset) in places.stripes {
            let index = device.0 as usize - 1;
            self.free[index].remove(offset..offset + places.stripe_bytes);
            stripes.push(Stripe { device, offset, dev_uuid: self.uuids[index] });
        }
        let chunk = chunk(kind, profile, places.len, stripes, self.sectorsize);
        Some(Placed { chunk, stripe_bytes: places.stripe_bytes })
    }

    /// Bytes of the smallest sufficient device. The result is exact for one device.
    fn least(&self, profiles: &Profiles, smallest: u64, mixed: bool) -> u64 {
        let (system, metadata, data) = lengths(smallest);
        let (trees, files) = (profiles.metadata.spread(), profiles.data.spread());
        let data = if mixed { 0 } else { data * files.per_device as u64 };
        DEVICE_RESERVED + (system + metadata) * trees.per_device as u64 + data
    }
}

/// Lengths of the first system, metadata and data chunk. Metadata gets the length that Linux would
/// allocate on a volume of this size. One copy takes a twentieth of the volume, at least 32 MiB and
/// at most 256 MiB. On volumes above 50 GiB, it takes at most 1 GiB. On volumes below 109 MiB, it
/// takes 8 MiB.
fn lengths(size: u64) -> (u64, u64, u64) {
    if size < 109 * MIB {
        return (4 * MIB, 8 * MIB, 8 * MIB);
    }
    let most = if size > 50 * GIB { GIB } else { 256 * MIB };
    let twentieth = size / 20 / MIB * MIB;
    (8 * MIB, twentieth.clamp(32 * MIB, most), 8 * MIB)
}

/// A chunk at the lowest possible address.
pub(super) fn chunk(
    kind: BlockGroupFlags,
    profile: Profile,
    len: u64,
    stripes: Vec<Stripe>,
    sectorsize: u32,
) -> Chunk {
    let unit = u32::try_from(STRIPE_LEN).expect("64 KiB");
    Chunk {
        logical: Logical(DEVICE_RESERVED),
        len,
        owner: TreeId::EXTENT.0,
        stripe_len: STRIPE_LEN,
        flags: kind.with(profile.flags()),
        io_align: unit,
        io_width: unit,
        sector_size: sectorsize,
        sub_stripes: profile.sub_stripes(),
        stripes,
    }
}

impl Placed {
    /// Allocates addresses for `count` nodes from the start of the chunk. No node lies over a
    /// superblock (`make::K2`).
    pub(super) fn node_addresses(&self, nodesize: u32, count: usize) -> Vec<Logical> {
        let nodesize = u64::from(nodesize);
        let start = self.chunk.logical;
        let taken = self.chunk.superblock_stripes();
        let addresses: Vec<Logical> = (0..self.chunk.len / nodesize)
            .map(|index| start.end(index * nodesize))
            .filter(|at| {
                let node = buttress_format::Extent::new(*at, nodesize);
                !taken.iter().any(|stripe| stripe.overlaps(&node))
            })
            .take(count)
            .collect();
        assert!(addresses.len() == count, "make::K1: the first chunk holds the first nodes");
        addresses
    }

    /// Whether nodes of the chunk are written in rows with parity.
    pub(super) fn has_parity(&self) -> bool {
        Profile::of(self.chunk.flags).is_some_and(|profile| profile.spread().parity > 0)
    }

    /// Device and offset of every copy of the node at an address, in a chunk without parity. A node
    /// lies within one stripe unit.
    pub(super) fn places(&self, at: Logical) -> Vec<(DeviceId, u64)> {
        let within = at.distance(self.chunk.logical);
        let profile = Profile::of(self.chunk.flags).expect("a profile that was chosen");
        let (stripes, offset) = match profile {
            Profile::Raid0 | Profile::Raid10 => {
                let columns = self.chunk.data_stripes();
                let copies = profile.spread().copies;
                let unit = within / STRIPE_LEN;
                let first = (unit % columns) as usize * copies;
                let stripes = &self.chunk.stripes[first..first + copies];
                (stripes, unit / columns * STRIPE_LEN + within % STRIPE_LEN)
            }
            _ => (&self.chunk.stripes[..], within),
        };
        stripes.iter().map(|stripe| (stripe.device, stripe.offset + offset)).collect()
    }
}
