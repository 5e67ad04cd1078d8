//! The identity of a cache's origin: its length and the identifier at its front.
//!
//! # Place
//!
//! Linux's format does not tie a cache to its origin. Draining a cache into another device would
//! destroy that device, so the cache records an identity. The identifier belongs to the filesystem,
//! container or partition table on the origin. It lies at known places in the first [`WINDOW`]
//! bytes. Each place is within one sector, so the identifier changes in one step.
//!
//! # Failure
//!
//! An origin without a known identifier is identified by its length alone. The identifier may
//! change while the cache is not in use, for example by mkfs on the bare origin. Opening the cache
//! then fails on purpose, because its blocks are useless.

use buttress_block::Device;

/// The number of bytes at the front of the origin that the identity is made from.
pub(crate) const WINDOW: u64 = 128 << 10;

/// A known format: the offsets of its magic and of its identifier.
struct Known {
    magic_at: usize,
    magic: &'static [u8],
    id_at: usize,
    id_len: usize,
}

const KNOWN: &[Known] = &[
    // btrfs: fsid.
    Known { magic_at: 0x1_0040, magic: b"_BHRfS_M", id_at: 0x1_0020, id_len: 16 },
    // LUKS: uuid as text.
    Known { magic_at: 0, magic: b"LUKS\xba\xbe", id_at: 168, id_len: 40 },
    // LVM: uuid of the physical volume.
    Known { magic_at: 512, magic: b"LABELONE", id_at: 544, id_len: 32 },
    // xfs: uuid.
    Known { magic_at: 0, magic: b"XFSB", id_at: 32, id_len: 16 },
    // ext2, ext3, ext4: uuid.
    Known { magic_at: 1080, magic: b"\x53\xef", id_at: 1128, id_len: 16 },
    // f2fs: uuid.
    Known { magic_at: 1024, magic: b"\x10\x20\xf5\xf2", id_at: 1132, id_len: 16 },
    // A partition table (GPT): uuid of the disk.
    Known { magic_at: 512, magic: b"EFI PART", id_at: 568, id_len: 16 },
];

/// The identity of an origin.
pub(crate) fn of_device(origin: &dyn Device) -> Result<u64, buttress_block::Error> {
    Ok(of_window(origin.len(), &read_window(origin)?))
}

/// Reads the bytes that the identity is made from.
pub(crate) fn read_window(origin: &dyn Device) -> Result<Vec<u8>, buttress_block::Error> {
    let mut window = vec![0; WINDOW.min(origin.len()) as usize];
    origin.read_at(0, &mut window)?;
    Ok(window)
}

/// The identity of an origin of `len` bytes that begins with `window`.
pub(crate) fn of_window(len: u64, window: &[u8]) -> u64 {
    let field = |at: usize, len: usize| window.get(at..at + len);
    let id = KNOWN.iter().find_map(|known| {
        let is_there = field(known.magic_at, known.magic.len()) == Some(known.magic);
        is_there.then(|| field(known.id_at, known.id_len)).flatten()
    });
    xxhash_rust::xxh64::xxh64(id.unwrap_or_default(), len)
}
