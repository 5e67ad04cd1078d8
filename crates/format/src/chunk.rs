//! Chunks: the mapping of logical ranges to devices.

use std::fmt;

use crate::{
    DeviceId, Extent, Key, Logical, Result,
    bytes::{Reader, Writer},
    limits::{STRIPE_LEN, STRIPES_MAX, SUPER_OFFSETS},
};

/// Kind and profile of a chunk and of its block group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct BlockGroupFlags(pub u64);

#[allow(missing_docs, reason = "the names are the format's own")]
impl BlockGroupFlags {
    pub const DATA: Self = Self(1);
    pub const SYSTEM: Self = Self(2);
    pub const METADATA: Self = Self(4);
    pub const RAID0: Self = Self(8);
    pub const RAID1: Self = Self(16);
    pub const DUP: Self = Self(32);
    pub const RAID10: Self = Self(64);
    pub const RAID5: Self = Self(128);
    pub const RAID6: Self = Self(256);
    pub const RAID1C3: Self = Self(512);
    pub const RAID1C4: Self = Self(1024);
    pub const KIND_MASK: Self = Self(7);
    pub const PROFILE_MASK: Self = Self(0x7F8);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the flags with the bits of `other` added.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The kind alone: data, system, metadata, or data and metadata mixed.
    #[must_use]
    pub fn kind(self) -> Self {
        Self(self.0 & Self::KIND_MASK.0)
    }

    /// The profile alone; zero is `single`.
    #[must_use]
    pub fn profile(self) -> Self {
        Self(self.0 & Self::PROFILE_MASK.0)
    }

    /// The name of the profile that mkfs accepts, in lower case.
    #[must_use]
    pub fn profile_name(self) -> &'static str {
        match self.profile() {
            Self(0) => "single",
            Self::RAID0 => "raid0",
            Self::RAID1 => "raid1",
            Self::DUP => "dup",
            Self::RAID10 => "raid10",
            Self::RAID5 => "raid5",
            Self::RAID6 => "raid6",
            Self::RAID1C3 => "raid1c3",
            Self::RAID1C4 => "raid1c4",
            _ => "unknown",
        }
    }

    /// The name of the kind in the output of `btrfs filesystem df`.
    #[must_use]
    pub fn kind_name(self) -> &'static str {
        match self.kind() {
            Self::DATA => "Data",
            Self::SYSTEM => "System",
            Self::METADATA => "Metadata",
            Self(5) => "Data+Metadata",
            _ => "unknown",
        }
    }

    /// Whether data here has items in the stripe tree, if the volume has that tree: data in copies
    /// or in stripes, without parity. Mixed groups have no such items.
    #[must_use]
    pub fn has_stripe_items(self) -> bool {
        let profiles =
            [Self::DUP, Self::RAID0, Self::RAID1, Self::RAID1C3, Self::RAID1C4, Self::RAID10];
        self.kind() == Self::DATA && profiles.contains(&self.profile())
    }

    /// The number of whole copies of each byte.
    #[must_use]
    pub fn copies(self) -> u32 {
        match self.profile() {
            Self::RAID1 | Self::DUP | Self::RAID10 => 2,
            Self::RAID1C3 => 3,
            Self::RAID1C4 => 4,
            _ => 1,
        }
    }
}

impl fmt::Display for BlockGroupFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.kind_name(), self.profile_name())
    }
}

/// One device's part of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// The device.
    pub device: DeviceId,
    /// Offset on the device, in bytes.
    pub offset: u64,
    /// The device's uuid.
    pub dev_uuid: [u8; 16],
}

/// A chunk: a range of logical space and its places on devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The first byte of the chunk; the key's offset.
    pub logical: Logical,
    /// The length of the chunk in bytes of logical space.
    pub len: u64,
    /// The tree of the chunk's block group: 2, the extent tree.
    pub owner: u64,
    /// Bytes on one device before the next device follows.
    pub stripe_len: u64,
    /// Kind and profile.
    pub flags: BlockGroupFlags,
    /// Alignment of I/O, informational.
    pub io_align: u32,
    /// Width of I/O, informational.
    pub io_width: u32,
    /// Bytes of a sector.
    pub sector_size: u32,
    /// RAID10: the number of devices that hold the same stripe.
    pub sub_stripes: u16,
    /// The parts of the chunk.
    pub stripes: Vec<Stripe>,
}

impl Chunk {
    /// Reads a chunk item.
    ///
    /// # Errors
    ///
    /// When a field is impossible: an empty or wrapping range, a stripe length other than 64 KiB,
    /// too few stripes for the profile.
    pub fn parse(key: &Key, bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("chunk item", bytes);
        let chunk = Self::read(key, &mut r)?;
        r.end()?;
        Ok(chunk)
    }

    pub(crate) fn read(key: &Key, r: &mut Reader<'_>) -> Result<Self> {
        let len = r.u64()?;
        let owner = r.u64()?;
        let stripe_len = r.u64()?;
        let flags = BlockGroupFlags(r.u64()?);
        let (io_align, io_width, sector_size) = (r.u32()?, r.u32()?, r.u32()?);
        let count = r.u16()?;
        let sub_stripes = r.u16()?;
        if count == 0 || usize::from(count) > STRIPES_MAX {
            return Err(r.field("num_stripes", count.into()));
        }
        let mut stripes = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let (device, offset) = (DeviceId(r.u64()?), r.u64()?);
            stripes.push(Stripe { device, offset, dev_uuid: r.array()? });
        }
        let chunk = Self {
            logical: Logical(key.offset),
            len,
            owner,
            stripe_len,
            flags,
            io_align,
            io_width,
            sector_size,
            sub_stripes,
            stripes,
        };
        chunk.check(r)?;
        Ok(chunk)
    }

    fn check(&self, r: &Reader<'_>) -> Result<()> {
        if self.len == 0 || self.logical.checked_add(self.len).is_none() {
            return Err(r.field("length", self.len));
        }
        if !self.len.is_multiple_of(4096) || !self.logical.0.is_multiple_of(4096) {
            return Err(r.field("alignment of length", self.len));
        }
        if self.stripe_len != STRIPE_LEN {
            return Err(r.field("stripe_len", self.stripe_len));
        }
        if self.flags.kind().0 == 0 {
            return Err(r.field("type", self.flags.0));
        }
        let count = self.stripes.len();
        let fits = match self.flags.profile() {
            BlockGroupFlags(0) => count == 1,
            BlockGroupFlags::DUP | BlockGroupFlags::RAID1 => count == 2,
            BlockGroupFlags::RAID1C3 => count == 3,
            BlockGroupFlags::RAID1C4 => count == 4,
            BlockGroupFlags::RAID0 => count >= 1,
            BlockGroupFlags::RAID10 => {
                self.sub_stripes == 2 && count >= 2 && count.is_multiple_of(2)
            }
            BlockGroupFlags::RAID5 => count >= 2,
            BlockGroupFlags::RAID6 => count >= 3,
            _ => return Err(r.field("profile", self.flags.0)),
        };
        if !fits {
            return Err(r.field("num_stripes", count as u64));
        }
        let per_stripe = self.stripe_bytes();
        for stripe in &self.stripes {
            if stripe.offset.checked_add(per_stripe).is_none() {
                return Err(r.field("stripe offset", stripe.offset));
            }
        }
        Ok(())
    }

    /// The number of stripes with distinct data, without copies and parity.
    #[must_use]
    pub fn data_stripes(&self) -> u64 {
        let count = self.stripes.len() as u64;
        match self.flags.profile() {
            BlockGroupFlags::RAID0 => count,
            BlockGroupFlags::RAID10 => count / 2,
            BlockGroupFlags::RAID5 => count.saturating_sub(1).max(1),
            BlockGroupFlags::RAID6 => count.saturating_sub(2).max(1),
            _ => 1,
        }
    }

    /// Bytes that the chunk takes on each of its devices.
    #[must_use]
    pub fn stripe_bytes(&self) -> u64 {
        self.len.div_ceil(self.data_stripes())
    }

    /// The logical ranges in which nothing may be allocated, because a superblock lies in one of
    /// their stripe units. With mirrors, a superblock in one copy is enough. With parity, the range
    /// is all data of the row. The result is sorted and has no duplicates.
    #[must_use]
    pub fn superblock_stripes(&self) -> Vec<Extent> {
        let mut found = Vec::new();
        let (per_device, columns) = (self.stripe_bytes(), self.data_stripes());
        let copies = u64::from(self.flags.copies()).max(1);
        for (index, stripe) in self.stripes.iter().enumerate() {
            for at in SUPER_OFFSETS {
                if at < stripe.offset || at - stripe.offset >= per_device {
                    continue;
                }
                let row = (at - stripe.offset) / STRIPE_LEN;
                let (first, units) = match self.flags.profile() {
                    BlockGroupFlags::RAID0 | BlockGroupFlags::RAID10 => {
                        (row * columns + index as u64 / copies, 1)
                    }
                    BlockGroupFlags::RAID5 | BlockGroupFlags::RAID6 => (row * columns, columns),
                    _ => (row, 1),
                };
                let within = first * STRIPE_LEN;
                if within < self.len {
                    let len = (units * STRIPE_LEN).min(self.len - within);
                    found.push(Extent { start: self.logical.end(within), len });
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(48 + 32 * self.stripes.len());
        w.u64(self.len).u64(self.owner).u64(self.stripe_len).u64(self.flags.0);
        w.u32(self.io_align).u32(self.io_width).u32(self.sector_size);
        w.u16(self.stripes.len() as u16).u16(self.sub_stripes);
        for stripe in &self.stripes {
            w.u64(stripe.device.0).u64(stripe.offset).bytes(&stripe.dev_uuid);
        }
        w.0
    }
}
