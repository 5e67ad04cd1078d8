//! One function for each kind of input from outside. No bytes may cause a panic.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use buttress_base::AlignedBuf;
use buttress_block::{Device, MemoryDevice};
use buttress_format::{
    BackRef, BlockGroupItem, Chunk, CsumType, DevExtent, DevStats, DeviceItem, DirEntry,
    ExtentItem, FileExtent, FreeSpaceInfo, Header, InodeExtrefs, InodeItem, InodeRefs, Key, Kind,
    Logical, ReplaceItem, RootItem, RootRef, StripeItem, Superblock, UuidItem, VerityDescriptor,
    VerityItem,
};
use buttress_fs::MakeOptions;
use buttress_nbd::transmission::Transmission;
use buttress_nbd::{Export, handshake};
use buttress_tree::{Expect, Geometry, Node, NodePtr};
use buttress_volume::{OpenOptions, Volume};

use crate::dice::Dice;
use crate::exercise::{exercise, exercise_as};
use crate::image::{Image, SUPERBLOCK_LEN, SUPERBLOCKS};
use crate::mutate;

/// Bytes of the volumes that targets use.
pub const IMAGE_LEN: u64 = 128 << 20;

/// A small volume with small nodes that no test changes, made once.
///
/// # Panics
///
/// If the volume cannot be made.
pub fn fresh_small() -> &'static MemoryDevice {
    static MADE: OnceLock<MemoryDevice> = OnceLock::new();
    MADE.get_or_init(|| {
        let device = MemoryDevice::new(IMAGE_LEN);
        let options = MakeOptions { seed: Some(1), nodesize: 4096, ..MakeOptions::default() };
        buttress_fs::make::make(&device, &options).expect("a new volume");
        device
    })
}

/// A volume that no test changes, made once.
///
/// # Panics
///
/// If the volume cannot be made.
pub fn fresh() -> &'static MemoryDevice {
    static MADE: OnceLock<MemoryDevice> = OnceLock::new();
    MADE.get_or_init(|| {
        let device = MemoryDevice::new(IMAGE_LEN);
        let options = MakeOptions { seed: Some(1), ..MakeOptions::default() };
        buttress_fs::make::make(&device, &options).expect("a new volume");
        device
    })
}

fn fresh_superblock() -> Vec<u8> {
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    fresh().read_at(SUPERBLOCKS[0], &mut bytes).expect("within the device");
    bytes
}

/// A superblock is parsed as it is, and with its checksum corrected. Then a volume with this
/// superblock is opened.
///
/// # Panics
///
/// If there is a bug.
pub fn superblock(data: &[u8]) {
    let _ = Superblock::parse(data, SUPERBLOCKS[0]);
    let mut bytes = data.to_vec();
    bytes.resize(SUPERBLOCK_LEN, 0);
    let csum = CsumType::from_disk(u16::from_le_bytes([bytes[0xc4], bytes[0xc5]]));
    mutate::seal(&mut bytes, csum.unwrap_or(CsumType::Crc32c));
    if let Ok(parsed) = Superblock::parse(&bytes, SUPERBLOCKS[0]) {
        let again = Superblock::parse(&parsed.to_bytes(SUPERBLOCKS[0]), SUPERBLOCKS[0]);
        assert_eq!(again.as_ref(), Ok(&parsed), "what is written is what was read");
    }
    let device = MemoryDevice::new(IMAGE_LEN);
    device.write_at(SUPERBLOCKS[0], &bytes).expect("within the device");
    if let Ok((volume, _)) = Volume::open(vec![Arc::new(device)], OpenOptions::default()) {
        ask(&volume);
    }
}

/// Chunks, one after the other: eight bytes of address, two bytes of length, and the payload.
///
/// # Panics
///
/// If there is a bug.
pub fn chunk_map(data: &[u8]) {
    let superblock = Superblock::parse(&fresh_superblock(), SUPERBLOCKS[0]).expect("a good one");
    let device: Arc<dyn Device> = Arc::new(fresh().fork().read_only());
    let volume = Volume::new_for_make(device, &superblock).expect("a good volume");
    let mut rest = data;
    while let Some((head, payload)) = rest.split_first_chunk::<10>() {
        let logical = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
        let len = usize::from(u16::from_le_bytes([head[8], head[9]])).min(payload.len());
        let (payload, after) = payload.split_at(len);
        rest = after;
        if let Ok(chunk) = Chunk::parse(&Key::new(256, Kind::CHUNK_ITEM, logical), payload) {
            let _ = chunk.superblock_stripes();
            let _ = (chunk.data_stripes(), chunk.stripe_bytes());
            let again = Chunk::parse(&Key::new(256, Kind::CHUNK_ITEM, logical), &chunk.to_bytes());
            assert_eq!(again.as_ref(), Ok(&chunk), "what is written is what was read");
            let _ = volume.add_chunk(chunk);
        }
    }
    ask(&volume);
}

/// Reads at the beginning and the end of all chunks of a volume, and beyond.
fn ask(volume: &Volume) {
    let mut buf = [0; 8192];
    for chunk in volume.chunks().iter().take(64) {
        let (start, len) = (chunk.logical.0, chunk.len);
        for at in [start, start + len / 2, (start + len).saturating_sub(4096), start + len] {
            for mirror in 0..volume.mirrors(Logical(at)).min(8) {
                let _ = volume.read_mirror(Logical(at), &mut buf, mirror);
            }
            let _ = volume.read_verified(Logical(at), &mut buf, |_| Err("no"));
        }
    }
}

/// A node. Every node that passes the checks can be searched, copied and sealed.
///
/// # Panics
///
/// If there is a bug.
pub fn node(data: &[u8]) {
    let nodesize = 4096_u32;
    let mut buf = AlignedBuf::zeroed(nodesize as usize);
    let len = data.len().min(buf.len());
    buf[..len].copy_from_slice(&data[..len]);
    let Ok(header) = Header::parse(&buf) else { return };
    let geometry = Geometry {
        nodesize,
        sectorsize: 4096,
        csum: CsumType::Crc32c,
        fsid: header.fsid,
        seeds: buttress_volume::SeedIds::NONE,
        chunk_tree_uuid: header.chunk_tree_uuid,
    };
    let Header { bytenr: logical, generation, level, .. } = header;
    let expect = Expect::root(NodePtr { logical, generation, level });
    let Ok(node) = Node::verify(buf, &geometry, &expect, false) else { return };
    for slot in 0..node.len() {
        let key = node.key(slot);
        assert_eq!(node.search(&key), Ok(slot));
        if node.level() == 0 {
            parse(&key, node.item(slot));
        } else {
            let _ = (node.child(slot), node.expect_child(slot));
            assert_eq!(node.child_slot(&key), slot);
        }
    }
    for key in [Key::MIN, Key::MAX] {
        let _ = node.search(&key);
    }
    assert!(node.used_bytes() <= nodesize as usize);
    node.seal(&geometry).expect("what passes can be sealed");
}

/// An item: seventeen bytes of key, then the payload, which every parser gets.
///
/// # Panics
///
/// If there is a bug.
pub fn item(data: &[u8]) {
    if let Ok(key) = Key::parse(data) {
        assert_eq!(key.to_bytes()[..], data[..Key::LEN]);
        let _ = key.next();
        parse(&key, &data[Key::LEN..]);
    }
}

/// Compares the value that a parser returns with the output of its writer.
macro_rules! inverse {
    ($parsed:expr, $encode:expr, $parse:expr) => {
        if let Ok(parsed) = $parsed {
            // After one write and parse, the value does not change any more.
            let ours = $parse(&$encode(&parsed)).expect("what is written can be read");
            assert_eq!($parse(&$encode(&ours)).as_ref(), Ok(&ours), "what is written is read");
        }
    };
}

fn parse(key: &Key, payload: &[u8]) {
    inverse!(InodeItem::parse(payload), InodeItem::to_bytes, InodeItem::parse);
    inverse!(InodeRefs::parse(payload), |refs: &Vec<_>| InodeRefs::encode(refs), InodeRefs::parse);
    inverse!(
        InodeExtrefs::parse(payload),
        |refs: &Vec<_>| InodeExtrefs::encode(refs),
        InodeExtrefs::parse
    );
    inverse!(
        DirEntry::parse_all(payload),
        |entries: &Vec<_>| DirEntry::encode_all(entries),
        DirEntry::parse_all
    );
    inverse!(FileExtent::parse(payload), FileExtent::to_bytes, FileExtent::parse);
    if let Ok(extent) = FileExtent::parse(payload) {
        let _ = (extent.file_len(), extent.region().map(|region| region.is_hole()));
    }
    inverse!(RootItem::parse(payload), RootItem::to_bytes, RootItem::parse);
    inverse!(RootRef::parse(payload), RootRef::to_bytes, RootRef::parse);
    inverse!(BlockGroupItem::parse(payload), BlockGroupItem::to_bytes, BlockGroupItem::parse);
    inverse!(FreeSpaceInfo::parse(payload), FreeSpaceInfo::to_bytes, FreeSpaceInfo::parse);
    inverse!(DeviceItem::parse(payload), DeviceItem::to_bytes, DeviceItem::parse);
    inverse!(DevExtent::parse(payload), DevExtent::to_bytes, DevExtent::parse);
    inverse!(DevStats::parse(payload), DevStats::to_bytes, DevStats::parse);
    inverse!(ReplaceItem::parse(payload), ReplaceItem::to_bytes, ReplaceItem::parse);
    inverse!(UuidItem::parse(payload), UuidItem::to_bytes, UuidItem::parse);
    inverse!(StripeItem::parse(payload), StripeItem::to_bytes, StripeItem::parse);
    inverse!(VerityItem::parse(payload), VerityItem::to_bytes, VerityItem::parse);
    inverse!(VerityDescriptor::parse(payload), VerityDescriptor::to_bytes, VerityDescriptor::parse);
    if let Ok(descriptor) = VerityDescriptor::parse(payload) {
        let shape = descriptor.shape();
        let _ = (shape.bytes(), shape.block_at(0, u64::MAX), shape.hash_at(u64::MAX));
    }
    if let Ok(extent) = ExtentItem::parse(key, payload) {
        assert_eq!(extent.byte_len(), extent.to_bytes().len());
    }
    if let Ok(back_ref) = BackRef::keyed_parse(key, payload) {
        let _ = (back_ref.kind(), back_ref.hash(), back_ref.count(), back_ref.inline_len());
        let _ = back_ref.keyed(Logical(key.objectid));
    }
    let _ = Chunk::parse(key, payload);
}

/// One of several volumes is damaged as the bytes say, and then exercised. Half of the cases only
/// read, and the other half also write. Half of the cases read all block groups first, and the
/// other half read the block groups after the opening.
///
/// # Panics
///
/// If there is a bug.
pub fn image(bases: &[Image], data: &[u8]) {
    let first = data.first().copied().unwrap_or_default();
    image_as(bases, data, (usize::from(first >> 1) / bases.len()) % 2 == 1);
}

/// Damages and exercises a volume as [`image`] does. `behind` says whether block groups are read
/// after the opening, or first.
///
/// # Panics
///
/// If there is a bug.
pub fn image_as(bases: &[Image], data: &[u8], behind: bool) {
    let first = data.first().copied().unwrap_or_default();
    let (writes, base) = (first & 1 == 1, &bases[usize::from(first >> 1) % bases.len()]);
    let device = mutate::damaged(base, data.get(1..).unwrap_or_default());
    let _ = exercise_as(device, writes, behind);
}

/// A volume with a log, which is damaged as the bytes say. The mount replays the log.
///
/// # Panics
///
/// If there is a bug.
pub fn log(base: &Image, data: &[u8]) {
    let _ = exercise(mutate::damaged(base, data), true);
}

/// A client of the NBD server, from its first byte on.
///
/// # Panics
///
/// If there is a bug.
pub fn nbd(data: &[u8]) {
    let device = Arc::new(MemoryDevice::new(1 << 20));
    let export = Export::new(device, "disk", false).expect("a short name");
    let (mut input, mut said) = (data, Vec::new());
    if let Ok(terms) = handshake::negotiate(&mut input, &mut said, &export) {
        let stopping = AtomicBool::new(false);
        let output = Sink { left: 64 << 20 };
        let _ = Transmission::new((input, output), &export, terms, 2, &stopping).serve(&|| {});
    }
}

/// Takes the server's output, up to a limit.
struct Sink {
    left: usize,
}

impl std::io::Write for Sink {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let taken = buf.len().min(self.left);
        self.left -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A good input with a few edits, so that it still resembles an input of the target.
#[must_use]
pub fn edited(good: &[u8], choices: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    let mut dice = Dice::new(choices);
    while !dice.is_empty() && !bytes.is_empty() {
        let at = dice.below(bytes.len());
        match dice.below(6) {
            0 => bytes[at] ^= 1 << dice.below(8),
            1 => bytes[at] = *dice.one(&[0, 1, 0x7f, 0x80, 0xff]),
            2 => bytes.truncate(at),
            3 => {
                let word = dice.word().to_le_bytes();
                let end = bytes.len().min(at + 8);
                bytes[at..end].copy_from_slice(&word[..end - at]);
            }
            4 => bytes.insert(at, dice.below(256) as u8),
            _ => drop(bytes.remove(at)),
        }
    }
    bytes
}
