//! Limits and sizes of the format.

/// The sector size that this program writes.
pub const SECTOR: u32 = 4096;
/// The offsets of the superblock and its copies on each device.
pub const SUPER_OFFSETS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// Bytes of a superblock.
pub const SUPER_SIZE: usize = 4096;
/// Smallest node.
pub const NODE_MIN: u32 = 4096;
/// Largest node.
pub const NODE_MAX: u32 = 65536;
/// Longest name.
pub const NAME_MAX: usize = 255;
/// The number of levels that a tree can have: levels 0 to 7.
pub const MAX_LEVEL: u8 = 8;
/// Bytes of the superblock's array of chunks.
pub const SYS_CHUNK_ARRAY: usize = 2048;
/// Bytes on one device before a chunk continues on the next device.
pub const STRIPE_LEN: u64 = 65536;
/// Largest data extent.
pub const MAX_EXTENT: u64 = 128 << 20;
/// Largest compressed extent, before compression.
pub const MAX_COMPRESSED: u64 = 128 << 10;
/// Front of each device that chunks never use.
pub const DEVICE_RESERVED: u64 = 1 << 20;
/// The most stripes of a chunk that the parser accepts, far above any real array.
pub const STRIPES_MAX: usize = 1024;

/// The largest payload of one checksum item, in bytes. Linux has the same limit, so this program
/// splits checksums into items as Linux does.
#[must_use]
pub fn csum_item_max(nodesize: u32, csum_size: usize) -> usize {
    let room = nodesize as usize - crate::header::HEADER_LEN;
    let count = (room - 2 * crate::header::ITEM_LEN) / csum_size - 1;
    count.min(4096) * csum_size
}
