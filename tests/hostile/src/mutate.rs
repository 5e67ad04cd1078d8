//! Damage that knows the format: one field is wrong, and everything around it is right, including
//! checksums.
//!
//! Checksums catch bytes that flip at random. Only deliberate damage reaches the code behind them,
//! so this module makes such damage: nodes with items in order and within bounds, but with values
//! that no program ever wrote.

use buttress_block::{Device, MemoryDevice};
use buttress_format::header::{HEADER_LEN, ITEM_LEN, PTR_LEN};
use buttress_format::{CsumType, Key, TreeId};

use crate::dice::Dice;
use crate::image::{
    BYTENR, GENERATION, Image, LEVEL, NRITEMS, Place, ROOT_ITEM, SUPERBLOCK_LEN, SUPERBLOCKS,
};

/// Kinds of items.
const KINDS: [u8; 34] = [
    1, 12, 13, 24, 36, 48, 60, 72, 84, 96, 108, 128, 132, 144, 156, 168, 169, 172, 176, 178, 180,
    182, 184, 192, 198, 199, 200, 204, 216, 228, 230, 240, 248, 249,
];

/// Numbers that often cause faults in programs.
pub(crate) const NUMBERS: [u64; 24] = [
    0,
    1,
    2,
    3,
    5,
    17,
    127,
    255,
    256,
    4095,
    4096,
    16384,
    65535,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 40,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 4095,
    u64::MAX - 1,
    u64::MAX,
];

/// An item of a leaf: the bytes of its key, and its payload.
#[derive(Clone, Debug)]
struct Item {
    key: [u8; 17],
    payload: Vec<u8>,
}

impl Item {
    fn sort_key(&self) -> (u64, u8, u64) {
        let word = |at: usize| crate::image::word(&self.key, at);
        (word(0), self.key[8], word(9))
    }
}

/// A copy of a volume, damaged in one to four places by `choices`.
#[must_use]
pub fn damaged(image: &Image, choices: &[u8]) -> MemoryDevice {
    let copy = image.device.fork();
    let mut dice = Dice::new(choices);
    let mut nodes = image.nodes.clone();
    for _ in 0..=dice.below(4) {
        if dice.below(12) == 0 {
            damage_superblock(&copy, image.csum, &nodes, &mut dice);
            continue;
        }
        let at = dice.below(nodes.len());
        let mut place = nodes[at].clone();
        if place.level() == 0 && dice.below(10) > 0 {
            damage_leaf(&mut place, &nodes, &mut dice);
        } else if place.level() > 0 && dice.below(10) > 0 {
            damage_inner(&mut place, &nodes, &mut dice);
        } else {
            damage_header(&mut place.bytes, &mut dice);
        }
        seal(&mut place.bytes, image.csum);
        for offset in &place.offsets {
            copy.write_at(*offset, &place.bytes).expect("within the device");
        }
        nodes[at] = place;
    }
    copy
}

/// An item of a leaf, to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafItem {
    /// Its key.
    pub key: Key,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// A copy of a volume with leaves that `edit` changes. `edit` gets the owner and the items of each
/// leaf.
#[must_use]
pub fn edited(image: &Image, mut edit: impl FnMut(TreeId, &mut Vec<LeafItem>)) -> MemoryDevice {
    let copy = image.device.fork();
    for place in image.nodes.iter().filter(|place| place.level() == 0) {
        let mut bytes = place.bytes.clone();
        let parsed = |item: Item| {
            let key = Key::parse(&item.key).expect("seventeen bytes");
            LeafItem { key, payload: item.payload }
        };
        let before: Vec<LeafItem> = items(&bytes).into_iter().map(parsed).collect();
        let mut after = before.clone();
        edit(TreeId(crate::image::word(&bytes, 88)), &mut after);
        if after == before {
            continue;
        }
        let raw = |item: LeafItem| Item { key: item.key.to_bytes(), payload: item.payload };
        write_items(&mut bytes, &after.into_iter().map(raw).collect::<Vec<_>>());
        seal(&mut bytes, image.csum);
        for offset in &place.offsets {
            copy.write_at(*offset, &bytes).expect("within the device");
        }
    }
    copy
}

/// Writes the right checksum into a node or superblock.
pub fn seal(bytes: &mut [u8], csum: CsumType) {
    let digest = csum.digest(&bytes[32..]);
    bytes[..32].copy_from_slice(&digest);
}

/// Writes a number of `width` bytes.
fn put(bytes: &mut [u8], at: usize, width: usize, number: u64) {
    bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
}

/// A number to write into a field, near the old number or far from it.
fn number(old: u64, nodes: &[Place], dice: &mut Dice<'_>) -> u64 {
    match dice.below(6) {
        0 => old.wrapping_add(1 + dice.below(8) as u64),
        1 => old.wrapping_sub(1 + dice.below(8) as u64),
        2 => old ^ (1 << dice.below(64)),
        3 => dice.one(nodes).bytenr,
        4 => dice.word(),
        _ => *dice.one(&NUMBERS),
    }
}

fn damage_superblock(copy: &MemoryDevice, csum: CsumType, nodes: &[Place], dice: &mut Dice<'_>) {
    /// Offsets and lengths of the superblock's fields, including the table of system chunks and the
    /// backups.
    const FIELDS: [(usize, usize); 26] = [
        (0x30, 8),
        (0x38, 8),
        (0x48, 8),
        (0x50, 8),
        (0x58, 8),
        (0x60, 8),
        (0x70, 8),
        (0x78, 8),
        (0x80, 8),
        (0x88, 8),
        (0x90, 4),
        (0x94, 4),
        (0x98, 4),
        (0x9c, 4),
        (0xa0, 4),
        (0xa4, 8),
        (0xac, 8),
        (0xb4, 8),
        (0xbc, 8),
        (0xc4, 2),
        (0xc6, 1),
        (0xc7, 1),
        (0xc8, 1),
        (0xc9, 8),
        (0xd1, 8),
        (0xd9, 8),
    ];
    let mut bytes = vec![0; SUPERBLOCK_LEN];
    copy.read_at(SUPERBLOCKS[0], &mut bytes).expect("within the device");
    let (at, width) = match dice.below(3) {
        0 => (0x32b + dice.below(200), *dice.one(&[1, 2, 4, 8])),
        _ => *dice.one(&FIELDS),
    };
    let mut old = [0; 8];
    old[..width].copy_from_slice(&bytes[at..at + width]);
    let new = number(u64::from_le_bytes(old), nodes, dice);
    put(&mut bytes, at, width, new);
    seal(&mut bytes, csum);
    for offset in SUPERBLOCKS {
        if offset + SUPERBLOCK_LEN as u64 <= copy.len() {
            if at != 0x30 {
                put(&mut bytes, 0x30, 8, offset);
                seal(&mut bytes, csum);
            }
            copy.write_at(offset, &bytes).expect("within the device");
        }
    }
}

fn damage_header(bytes: &mut [u8], dice: &mut Dice<'_>) {
    const FIELDS: [(usize, usize); 6] =
        [(BYTENR, 8), (56, 8), (GENERATION, 8), (88, 8), (NRITEMS, 4), (LEVEL, 1)];
    let (at, width) = *dice.one(&FIELDS);
    put(bytes, at, width, *dice.one(&NUMBERS));
}

/// Makes pointers lead to wrong places: with another key, generation or address, or to a good node
/// that belongs elsewhere.
fn damage_inner(place: &mut Place, nodes: &[Place], dice: &mut Dice<'_>) {
    // Earlier damage may have changed the number of pointers.
    let room = (place.bytes.len() - HEADER_LEN) / PTR_LEN;
    let count = crate::image::word(&place.bytes, NRITEMS) as u32 as usize;
    let at = HEADER_LEN + dice.below(count.min(room)) * PTR_LEN;
    let below: Vec<&Place> =
        nodes.iter().filter(|to| to.level().checked_add(1) == Some(place.level())).collect();
    match dice.below(4) {
        0 if !below.is_empty() => {
            let to = *dice.one(&below);
            put(&mut place.bytes, at + 17, 8, to.bytenr);
            put(&mut place.bytes, at + 25, 8, to.generation());
            if dice.below(2) == 0 {
                let key = to.bytes[HEADER_LEN..HEADER_LEN + 17].to_vec();
                place.bytes[at..at + 17].copy_from_slice(&key);
            }
        }
        1 => {
            let to = dice.one(nodes);
            put(&mut place.bytes, at + 17, 8, to.bytenr);
            put(&mut place.bytes, at + 25, 8, to.generation());
        }
        _ => {
            let (field, width) = *dice.one(&[(0, 8), (8, 1), (9, 8), (17, 8), (25, 8)]);
            let mut old = [0; 8];
            old[..width].copy_from_slice(&place.bytes[at + field..at + field + width]);
            let new = number(u64::from_le_bytes(old), nodes, dice);
            put(&mut place.bytes, at + field, width, new);
        }
    }
}

fn damage_leaf(place: &mut Place, nodes: &[Place], dice: &mut Dice<'_>) {
    let mut items = items(&place.bytes);
    if items.is_empty() {
        return;
    }
    let slot = dice.below(items.len());
    match dice.below(12) {
        0 => {
            let old = crate::image::word(&items[slot].key, 0);
            let new = number(old, nodes, dice);
            put(&mut items[slot].key, 0, 8, new);
        }
        1 => items[slot].key[8] = *dice.one(&KINDS),
        2 => {
            let old = crate::image::word(&items[slot].key, 9);
            let new = number(old, nodes, dice);
            put(&mut items[slot].key, 9, 8, new);
        }
        3 => drop(items.remove(slot)),
        4 => {
            let mut twin = items[slot].clone();
            let offset = crate::image::word(&twin.key, 9);
            put(&mut twin.key, 9, 8, offset.wrapping_add(*dice.one(&[1, 4096, 65536])));
            items.push(twin);
        }
        5 => {
            let len = dice.below(items[slot].payload.len() + 1);
            items[slot].payload.truncate(len);
        }
        6 => {
            let more = 1 + dice.below(300);
            let fill = dice.word() as u8;
            let len = items[slot].payload.len() + more;
            items[slot].payload.resize(len, fill);
        }
        7 => {
            // Puts the good root of another tree in the wrong place.
            let root = items.iter_mut().find(|item| item.key[8] == ROOT_ITEM);
            if let Some(item) = root.filter(|item| item.payload.len() >= 239) {
                let to = dice.one(nodes);
                put(&mut item.payload, 176, 8, to.bytenr);
                put(&mut item.payload, 160, 8, to.generation());
                item.payload[238] = to.level();
            }
        }
        8 => {
            let other = dice.one(nodes);
            let theirs = if other.level() == 0 { self::items(&other.bytes) } else { Vec::new() };
            if !theirs.is_empty() {
                items.push(dice.one(&theirs).clone());
            }
        }
        _ => {
            // One or two fields are changed. One wrong field is noticed at once, but two wrong
            // fields may agree with each other.
            for _ in 0..=dice.below(2) {
                let payload = &mut items[slot].payload;
                let width = *dice.one(&[1, 2, 4, 8]);
                if payload.len() >= width {
                    let at = dice.below(payload.len() - width + 1);
                    let mut old = [0; 8];
                    old[..width].copy_from_slice(&payload[at..at + width]);
                    let new = number(u64::from_le_bytes(old), nodes, dice);
                    put(payload, at, width, new);
                }
            }
        }
    }
    if dice.below(16) > 0 {
        items.sort_by_key(Item::sort_key);
        items.dedup_by_key(|item| item.sort_key());
    }
    write_items(&mut place.bytes, &items);
}

/// A node of another size, with as much of a good node as fits.
///
/// # Panics
///
/// If the size has no room for a header.
#[must_use]
pub fn small(node: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    bytes[..HEADER_LEN].copy_from_slice(&node[..HEADER_LEN]);
    if node[LEVEL] == 0 {
        write_items(&mut bytes, &items(node));
    } else {
        let count = crate::image::word(node, NRITEMS) as u32 as usize;
        let count = count.min((size - HEADER_LEN) / PTR_LEN);
        let end = HEADER_LEN + count * PTR_LEN;
        bytes[HEADER_LEN..end].copy_from_slice(&node[HEADER_LEN..end]);
        put(&mut bytes, NRITEMS, 4, count as u64);
    }
    bytes
}

/// Keys and payloads of a good leaf, one after the other. Empty for a node that is no leaf.
#[must_use]
pub fn leaf_items(node: &[u8]) -> Vec<Vec<u8>> {
    if node[LEVEL] > 0 {
        return Vec::new();
    }
    items(node).into_iter().map(|item| [&item.key[..], &item.payload].concat()).collect()
}

fn items(bytes: &[u8]) -> Vec<Item> {
    let count = crate::image::word(bytes, NRITEMS) as u32 as usize;
    let room = (bytes.len() - HEADER_LEN) / ITEM_LEN;
    let item = |slot: usize| {
        let at = HEADER_LEN + slot * ITEM_LEN;
        let start = HEADER_LEN + crate::image::word(bytes, at + 17) as u32 as usize;
        let len = (crate::image::word(bytes, at + 17) >> 32) as usize;
        let payload = bytes.get(start..start.checked_add(len)?)?.to_vec();
        Some(Item { key: bytes[at..at + 17].try_into().ok()?, payload })
    };
    (0..count.min(room)).filter_map(item).collect()
}

/// Lays items out as in a good leaf, as many as fit.
fn write_items(bytes: &mut [u8], items: &[Item]) {
    let mut end = bytes.len();
    let mut count = 0;
    for item in items {
        let at = HEADER_LEN + count * ITEM_LEN;
        if at + ITEM_LEN + item.payload.len() > end {
            break;
        }
        end -= item.payload.len();
        bytes[end..end + item.payload.len()].copy_from_slice(&item.payload);
        bytes[at..at + 17].copy_from_slice(&item.key);
        put(bytes, at + 17, 4, (end - HEADER_LEN) as u64);
        put(bytes, at + 21, 4, item.payload.len() as u64);
        count += 1;
    }
    put(bytes, NRITEMS, 4, count as u64);
}
