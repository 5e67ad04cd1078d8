//! The layout of the cache device: dm-writecache's format, version 1.
//!
//! # On disk
//!
//! ```text
//! offset      size  field                  all numbers little endian; offsets from start_sector * 512
//!      0         4  magic                  0x23489321
//!      4         4  version                1
//!      8         4  block_size             bytes, a power of two
//!     12         4  padding                0
//!     16         8  n_blocks               slots
//!     24         8  seq_count              the open epoch: lower ones are committed
//!     32         4  stamp: tag             "BTRW"; Linux never reads bytes 32-63, and keeps them
//!     36         4  stamp: crc32c          of bytes 40-63
//!     40         8  stamp: origin          identity of the origin
//!     48         8  stamp: next            its identity after a running write; else as above
//!     56         8  stamp: cut             see `Cut`
//!  64+16i        8  entry i: sector        of the origin, in units of 512 bytes
//!  72+16i        8  entry i: seq_count     the epoch that wrote it; all ones: free
//!      D            data                   D: end of the entries, rounded up to a block
//! ```
//!
//! An entry never crosses the end of a sector. A disk writes whole sectors, so an entry is never a
//! mixture of old and new bytes.
//!
//! Persistent memory writes eight bytes whole. On such memory, an entry's sector changes only while
//! its epoch is all ones. So a crash leaves the old entry, the new entry, or an entry that is not
//! committed.
//!
//! # Invariants
//!
//! - **L1** A [`Geometry`] fits the device it was checked against: no arithmetic on the geometry
//!   overflows.

use crate::error::Error;
use crate::units::{Epoch, Slot};

/// The largest valid `seq_count`. Commits raise the epoch, and it must never become all ones, which
/// marks a free slot.
const EPOCH_MAX: u64 = u64::MAX - (1 << 32);

const MAGIC: u32 = 0x2348_9321;
const VERSION: u32 = 1;
/// Bytes before the first entry.
pub const HEADER_LEN: usize = 64;
/// Bytes of an entry.
pub const ENTRY_LEN: usize = 16;
/// Bytes of a sector, the unit of addresses in the format.
pub const SECTOR: u64 = 512;
const STAMP_TAG: &[u8; 4] = b"BTRW";

/// The places of all parts of one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    block_shift: u32,
    slots: u32,
}

impl Geometry {
    /// Checks sizes from a superblock against the device that holds it.
    ///
    /// # Errors
    ///
    /// [`Error::BlockSize`], [`Error::TooManyBlocks`], [`Error::Truncated`], [`Error::TooSmall`].
    pub fn checked(
        block_size: u32,
        slots: u64,
        device: &str,
        device_len: u64,
    ) -> Result<Self, Error> {
        let block_shift = block_shift(block_size)?;
        if slots == 0 {
            return Err(Error::TooSmall { device: device.to_owned(), len: device_len });
        }
        let few = u32::try_from(slots).ok().filter(|&few| few < u32::MAX);
        let Some(few) = few else { return Err(Error::TooManyBlocks { found: slots }) };
        let geometry = Self { block_shift, slots: few };
        let needed = u128::from(geometry.data_start()) + (u128::from(few) << geometry.block_shift);
        if needed > u128::from(device_len) {
            return Err(Error::Truncated { device: device.to_owned(), len: device_len, needed });
        }
        Ok(geometry)
    }

    /// The largest cache with blocks of `block_size` that a device can hold.
    ///
    /// # Errors
    ///
    /// [`Error::BlockSize`], [`Error::TooManyBlocks`], [`Error::TooSmall`].
    pub fn largest(block_size: u32, device: &str, device_len: u64) -> Result<Self, Error> {
        let block_shift = block_shift(block_size)?;
        let mut slots = device_len / (u64::from(block_size) + ENTRY_LEN as u64);
        while slots > 0 {
            let entries_end = HEADER_LEN as u64 + slots * ENTRY_LEN as u64;
            let data_start = entries_end.next_multiple_of(u64::from(block_size));
            if data_start + (slots << block_shift) <= device_len {
                break;
            }
            slots -= 1;
        }
        Self::checked(block_size, slots, device, device_len)
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u64 {
        1 << self.block_shift
    }

    /// The base-2 logarithm of the block size.
    #[must_use]
    pub fn block_shift(&self) -> u32 {
        self.block_shift
    }

    /// How many slots there are.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Where the data area begins.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        self.entries_end().next_multiple_of(self.block_size())
    }

    /// Where the last entry ends.
    #[must_use]
    pub fn entries_end(&self) -> u64 {
        HEADER_LEN as u64 + u64::from(self.slots) * ENTRY_LEN as u64
    }

    /// Where the data of a slot lies.
    #[must_use]
    pub fn slot_offset(&self, slot: Slot) -> u64 {
        debug_assert!(slot.0 < self.slots, "L1");
        self.data_start() + (u64::from(slot.0) << self.block_shift)
    }
}

fn block_shift(block_size: u32) -> Result<u32, Error> {
    if !block_size.is_power_of_two() || !(512..=65536).contains(&block_size) {
        return Err(Error::BlockSize { found: block_size });
    }
    Ok(block_size.trailing_zeros())
}

/// Whether the origin alone, without its cache, is in a consistent state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cut {
    /// Not consistent: without its cache the origin holds data of several epochs.
    #[default]
    None,
    /// The origin alone is exactly the state committed before this epoch.
    Whole(Epoch),
    /// A sweep towards this epoch has begun to write. Until it is complete, the cached blocks are
    /// the redo log that makes the origin whole again.
    Towards(Epoch),
}

impl Cut {
    fn to_disk(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Whole(epoch) => (epoch.0 << 2) | 1,
            Self::Towards(epoch) => (epoch.0 << 2) | 2,
        }
    }

    fn from_disk(word: u64) -> Self {
        match word & 3 {
            1 => Self::Whole(Epoch(word >> 2)),
            2 => Self::Towards(Epoch(word >> 2)),
            _ => Self::None,
        }
    }
}

/// Fields of this program in bytes that Linux leaves unused: the identities of the origin, and its
/// cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Identity of the origin.
    pub origin: u64,
    /// The identity that the origin has after the running write; equal to `origin` if no write
    /// runs.
    pub next: u64,
    /// How consistent the origin is without the cache.
    pub cut: Cut,
}

/// The first 64 bytes, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Sizes and places.
    pub geometry: Geometry,
    /// The open epoch.
    pub epoch: Epoch,
    /// The stamp of this program, if there is one.
    pub stamp: Option<Stamp>,
}

impl Superblock {
    /// Checks the bytes at the front of a cache.
    ///
    /// # Errors
    ///
    /// [`Error::Blank`], [`Error::NotACache`], [`Error::Version`], [`Error::Sequence`] and those of
    /// [`Geometry::checked`].
    pub fn parse(bytes: &[u8; HEADER_LEN], device: &str, device_len: u64) -> Result<Self, Error> {
        let magic = u32_at(bytes, 0);
        let version = u32_at(bytes, 4);
        if magic == 0 && version == 0 {
            return Err(Error::Blank { device: device.to_owned() });
        }
        if magic != MAGIC {
            return Err(Error::NotACache { device: device.to_owned(), found: magic });
        }
        if version != VERSION {
            return Err(Error::Version { device: device.to_owned(), found: version });
        }
        let geometry = Geometry::checked(u32_at(bytes, 8), u64_at(bytes, 16), device, device_len)?;
        let epoch = u64_at(bytes, 24);
        if epoch > EPOCH_MAX {
            return Err(Error::Sequence { found: epoch });
        }
        let is_ours =
            bytes[32..36] == *STAMP_TAG && u32_at(bytes, 36) == crc_fast::crc32_iscsi(&bytes[40..]);
        let stamp = is_ours.then(|| Stamp {
            origin: u64_at(bytes, 40),
            next: u64_at(bytes, 48),
            cut: Cut::from_disk(u64_at(bytes, 56)),
        });
        Ok(Self { geometry, epoch: Epoch(epoch), stamp })
    }

    /// Returns the bytes as they lie on disk.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let block_size = 1_u32 << self.geometry.block_shift;
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..12].copy_from_slice(&block_size.to_le_bytes());
        bytes[16..24].copy_from_slice(&u64::from(self.geometry.slots).to_le_bytes());
        bytes[24..32].copy_from_slice(&self.epoch.0.to_le_bytes());
        if let Some(stamp) = &self.stamp {
            bytes[32..36].copy_from_slice(STAMP_TAG);
            bytes[40..48].copy_from_slice(&stamp.origin.to_le_bytes());
            bytes[48..56].copy_from_slice(&stamp.next.to_le_bytes());
            bytes[56..64].copy_from_slice(&stamp.cut.to_disk().to_le_bytes());
            let crc = crc_fast::crc32_iscsi(&bytes[40..]);
            bytes[36..40].copy_from_slice(&crc.to_le_bytes());
        }
        bytes
    }
}

/// One entry as it lies on disk. [`crate::recover`] interprets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEntry {
    /// Sector of the origin.
    pub sector: u64,
    /// The epoch that wrote the entry.
    pub epoch: Epoch,
}

impl RawEntry {
    /// A free slot.
    pub const FREE: Self = Self { sector: u64::MAX, epoch: Epoch::FREE };

    /// Reads an entry.
    #[must_use]
    pub fn parse(bytes: &[u8; ENTRY_LEN]) -> Self {
        Self { sector: u64_at(bytes, 0), epoch: Epoch(u64_at(bytes, 8)) }
    }

    /// Returns the bytes as they lie on disk.
    #[must_use]
    pub fn to_bytes(self) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        bytes[..8].copy_from_slice(&self.sector.to_le_bytes());
        bytes[8..].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The geometry for a device of 16 MiB is the one that Linux chose.
    #[test]
    fn agrees_with_linux_on_sizes() {
        let geometry = Geometry::largest(4096, "cache", 16 << 20).expect("it fits");
        assert_eq!((geometry.slots(), geometry.data_start()), (4080, 65536));
        let geometry = Geometry::largest(4096, "cache", 1 << 20).expect("it fits");
        assert_eq!((geometry.slots(), geometry.data_start()), (0xfe, 8192));
    }

    /// A superblock reads back as written, with a stamp and without.
    #[test]
    fn superblocks_read_back() {
        let geometry = Geometry::largest(512, "cache", 1 << 20).expect("it fits");
        let cut = Cut::Towards(Epoch(77));
        for stamp in [None, Some(Stamp { origin: 5, next: 6, cut })] {
            let superblock = Superblock { geometry, epoch: Epoch(78), stamp };
            let found = Superblock::parse(&superblock.to_bytes(), "cache", 1 << 20);
            assert_eq!(found.expect("it is right"), superblock);
        }
    }

    /// With any flipped bit in the fields of Linux, parsing returns an error or a valid value, and
    /// does not panic. With a flipped bit in the stamp, there is no stamp.
    #[test]
    fn flipped_bits_are_errors_or_values() {
        let geometry = Geometry::largest(4096, "cache", 1 << 20).expect("it fits");
        let stamp = Some(Stamp { origin: 5, next: 5, cut: Cut::Whole(Epoch(9)) });
        let bytes = Superblock { geometry, epoch: Epoch(78), stamp }.to_bytes();
        for bit in 0..512 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let found = Superblock::parse(&flipped, "cache", 1 << 20);
            match bit / 8 {
                0..12 => assert!(found.is_err(), "bit {bit}"),
                32..64 => assert_eq!(found.expect("Linux takes it").stamp, None, "bit {bit}"),
                _ => {}
            }
        }
    }
}
