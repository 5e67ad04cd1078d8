//! The map of chunks of a volume with a broken chunk tree, from the nodes that a scan found.
//!
//! # Invariants
//!
//! - **CH1** Newer items are read first. Of two chunks that claim the same addresses, or the same
//!   bytes of a device, the chunk read first stays.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_block::Device;
use buttress_format::{
    BlockGroupFlags, BlockGroupItem, Chunk, DevExtent, DeviceId, DeviceItem, Extent, Key, Kind,
    Logical, Profile, Stripe, TreeId, ids, limits,
};
use buttress_tree::{Expect, Geometry, Node};

use crate::scan::{self, FoundNode, Scan};
use crate::striped::{self, Unordered};

/// The chunks and devices that nodes of any age describe.
#[derive(Debug)]
pub(crate) struct Facts {
    /// Chunks, best first.
    pub(crate) chunks: Vec<Chunk>,
    /// Chunks with known places, but with stripes in any order.
    pub(crate) unordered: Vec<Unordered>,
    /// Items of devices, newest first.
    pub(crate) devices: Vec<DeviceItem>,
}

/// Reads chunks and devices from nodes. The chunks in `known` are certain, and a chunk that
/// overlaps one of them is refused. `items` are the items of devices with a superblock.
pub(crate) fn gather(
    devices: &[Arc<dyn Device>],
    geometry: &Geometry,
    found: &Scan,
    known: &[Chunk],
    items: Vec<DeviceItem>,
) -> Facts {
    let mut facts = Facts { chunks: Vec::new(), unordered: Vec::new(), devices: items };
    let mut taken = Taken::default();
    for chunk in known {
        taken.add(chunk.clone());
    }
    let mut groups: BTreeMap<Extent, BlockGroupItem> = BTreeMap::new();
    let mut extents: BTreeMap<Logical, Vec<(DeviceId, u64, u64)>> = BTreeMap::new();
    let each = |wanted: &[TreeId], visit: &mut dyn FnMut(Key, &[u8])| {
        for leaf in newest_first(found, wanted) {
            let expect = Expect::root(leaf.ptr());
            let Some(node) = scan::read_copy(devices, geometry, &leaf, &expect) else { continue };
            visit_node(&node, &mut |key, item| visit(key, item));
        }
    };
    each(&[TreeId::CHUNK], &mut |key, bytes| match key.kind {
        Kind::CHUNK_ITEM if key.objectid == ids::FIRST_CHUNK_TREE => {
            if let Ok(chunk) = Chunk::parse(&key, bytes) {
                taken.add(chunk);
            }
        }
        Kind::DEV_ITEM => {
            if let Ok(item) = DeviceItem::parse(bytes)
                && facts.devices.iter().all(|known| known.devid != item.devid)
            {
                facts.devices.push(item);
            }
        }
        _ => {}
    });
    each(&[TreeId::EXTENT, TreeId::BLOCK_GROUP], &mut |key, bytes| {
        if key.kind == Kind::BLOCK_GROUP_ITEM
            && let Ok(item) = BlockGroupItem::parse(bytes)
        {
            let extent = Extent::new(Logical(key.objectid), key.offset);
            groups.entry(extent).or_insert(item);
        }
    });
    each(&[TreeId::DEV], &mut |key, bytes| {
        if key.kind == Kind::DEV_EXTENT
            && let Ok(item) = DevExtent::parse(bytes)
        {
            // Stripes of one chunk may lie in leaves of different generations, so the items of all
            // leaves are used. `derived` refuses a chunk with the wrong number of stripes.
            let list = extents.entry(item.chunk_offset).or_default();
            let place = (DeviceId(key.objectid), key.offset, item.length);
            if !list.contains(&place) {
                list.push(place);
            }
        }
    });
    for (extent, group) in groups {
        let Some(places) = extents.get(&extent.start) else { continue };
        let chunk = derived(extent, group.flags, places, &facts.devices, geometry.sectorsize);
        let Some(chunk) = chunk else { continue };
        if striped::has_order(&chunk) {
            if taken.claim(&chunk) {
                facts.unordered.push(Unordered { chunk, is_empty: group.used == 0 });
            }
        } else {
            taken.add(chunk);
        }
    }
    facts.chunks = taken.chunks;
    facts
}

/// Leaves of some trees, each once, newest first.
pub(crate) fn newest_first(found: &Scan, wanted: &[TreeId]) -> Vec<FoundNode> {
    let leaves = found.each().filter(|node| node.level == 0 && wanted.contains(&node.owner));
    let mut leaves: Vec<FoundNode> = leaves.copied().collect();
    leaves.sort_by_key(|leaf| std::cmp::Reverse(leaf.generation));
    leaves
}

fn visit_node(node: &Node, visit: &mut dyn FnMut(Key, &[u8])) {
    for slot in 0..node.len() {
        visit(node.key(slot), node.item(slot));
    }
}

/// Derives a chunk from its block group and its device extents. Device extents do not record the
/// order of the stripes.
fn derived(
    extent: Extent,
    flags: BlockGroupFlags,
    places: &[(DeviceId, u64, u64)],
    devices: &[DeviceItem],
    sector: u32,
) -> Option<Chunk> {
    let stripes = places.iter().map(|&(device, offset, _)| {
        let item = devices.iter().find(|item| item.devid == device);
        Stripe { device, offset, dev_uuid: item.map_or([0; 16], |item| item.uuid) }
    });
    let chunk = Chunk {
        logical: extent.start,
        len: extent.len,
        owner: TreeId::EXTENT.0,
        stripe_len: limits::STRIPE_LEN,
        flags,
        io_align: 65536,
        io_width: 65536,
        sector_size: sector,
        sub_stripes: Profile::of(flags)?.sub_stripes(),
        stripes: stripes.collect(),
    };
    let bytes = chunk.stripe_bytes();
    if places.iter().any(|place| place.2 != bytes) {
        return None;
    }
    // The chunk is used only if it passes the checks of a chunk item that was read from a disk.
    let key = Key::new(ids::FIRST_CHUNK_TREE, Kind::CHUNK_ITEM, chunk.logical.0);
    Chunk::parse(&key, &chunk.to_bytes()).ok()
}

/// Chunks that overlap neither in logical addresses nor on a device (CH1).
#[derive(Default)]
struct Taken {
    chunks: Vec<Chunk>,
    logical: BTreeMap<u64, u64>,
    physical: BTreeMap<(DeviceId, u64), u64>,
}

impl Taken {
    fn add(&mut self, chunk: Chunk) {
        if self.claim(&chunk) {
            self.chunks.push(chunk);
        }
    }

    /// Takes the addresses and places of a chunk, if all of them are free.
    fn claim(&mut self, chunk: &Chunk) -> bool {
        let (start, end) = (chunk.logical.0, chunk.logical.end(chunk.len).0);
        let before = self.logical.range(..end).next_back();
        if before.is_some_and(|(_, there)| *there > start) {
            return false;
        }
        let bytes = chunk.stripe_bytes();
        let is_free = |stripe: &Stripe| {
            let end = (stripe.device, stripe.offset.saturating_add(bytes));
            let before = self.physical.range(..end).next_back();
            !before.is_some_and(|((device, _), there)| {
                *device == stripe.device && *there > stripe.offset
            })
        };
        if !chunk.stripes.iter().all(is_free) {
            return false;
        }
        self.logical.insert(start, end);
        for stripe in &chunk.stripes {
            let end = stripe.offset.saturating_add(bytes);
            self.physical.insert((stripe.device, stripe.offset), end);
        }
        true
    }
}

/// Guesses the number of a device without a superblock. For each node on the device, the function
/// looks for the stripe that maps the node's address to the node's offset. The device number of
/// that stripe gets a vote, and the number with the most votes wins.
pub(crate) fn number_of(
    index: u32,
    found: &Scan,
    chunks: &[Chunk],
) -> Option<(DeviceId, [u8; 16])> {
    let mut votes: BTreeMap<(DeviceId, [u8; 16]), u32> = BTreeMap::new();
    // No two chunks have an address in common (CH1).
    let starts: BTreeMap<Logical, &Chunk> =
        chunks.iter().map(|chunk| (chunk.logical, chunk)).collect();
    for node in found.nodes.iter().filter(|node| node.device == index) {
        let around = |chunk: &&Chunk| {
            Extent::new(chunk.logical, chunk.len).contains(node.logical)
                && chunk.data_stripes() == 1
        };
        let chunk = starts.range(..=node.logical).next_back().map(|(_, chunk)| *chunk);
        let Some(chunk) = chunk.filter(around) else { continue };
        let within = node.logical.distance(chunk.logical);
        for stripe in &chunk.stripes {
            if stripe.offset.checked_add(within) == Some(node.physical) {
                *votes.entry((stripe.device, stripe.dev_uuid)).or_default() += 1;
            }
        }
    }
    votes.into_iter().max_by_key(|(_, count)| *count).map(|(device, _)| device)
}
