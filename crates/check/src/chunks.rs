//! Chunks, the devices they lie on, and the block groups over them.
//!
//! # Invariants
//!
//! - **C1** Each stripe of each chunk has one device extent, and there are no other device extents.
//! - **C2** Each chunk has one block group of the same range and flags, and there are no other
//!   groups.
//! - **C3** The used bytes in a device's item equal the sum of its device extents.

use std::collections::BTreeMap;
use std::io;

use buttress_format::{
    BlockGroupFlags, Chunk, DevExtent, DeviceId, DeviceItem, Extent, Kind, Logical, TreeId, ids,
};
use buttress_sorter::{Sorter, Writer};
use buttress_tree::boot;
use buttress_volume::{Error as VolumeError, Volume};

use crate::context::{Context, Tree};
use crate::facts::Group;
use crate::walk::each_leaf;
use buttress_issue::Issue;

/// Words of a record: device, offset, 0 for a stripe and 1 for an extent, chunk, length.
const PART_WORDS: usize = 5;

/// Reads the chunk tree and adds every chunk to the volume. Compares the chunks with the devices
/// and their superblocks. Returns the devices of the chunk tree.
pub(crate) fn load(context: &Context<'_>) -> BTreeMap<DeviceId, DeviceItem> {
    let mut devices = BTreeMap::new();
    let mut chunks: Vec<Chunk> = Vec::new();
    let tree = Tree::new(TreeId::CHUNK, boot::chunk_root(context.superblock));
    each_leaf(context, &tree, &mut |leaf| {
        for slot in 0..leaf.len() {
            let (key, bytes) = (leaf.key(slot), leaf.item(slot));
            let outcome = match key.kind {
                Kind::DEV_ITEM => DeviceItem::parse(bytes).map(|item| {
                    devices.insert(DeviceId(key.offset), item);
                }),
                Kind::CHUNK_ITEM => {
                    if key.objectid != ids::FIRST_CHUNK_TREE {
                        // Opening a volume skips this chunk, so nothing can read the range that the
                        // chunk maps.
                        let why = format!("a chunk's object is {}", ids::FIRST_CHUNK_TREE);
                        let (tree, logical) = (TreeId::CHUNK, leaf.logical());
                        context.add(Issue::ItemMalformed { tree, logical, key, why });
                    }
                    Chunk::parse(&key, bytes).map(|chunk| chunks.push(chunk))
                }
                _ => Ok(()),
            };
            if let Err(error) = outcome {
                let (tree, logical, why) = (TreeId::CHUNK, leaf.logical(), error.to_string());
                context.add(Issue::ItemMalformed { tree, logical, key, why });
            }
        }
    });
    check_system_chunks(context, &chunks);
    for chunk in chunks.iter().filter(|c| c.sector_size != context.superblock.sectorsize) {
        let why = format!("its sectors have {} bytes", chunk.sector_size);
        context.add(Issue::ChunkInvalid { chunk: chunk.logical, why });
    }
    let known = |chunk: &Chunk| {
        context.volume.chunk_at(chunk.logical).is_some_and(|known| *known == *chunk)
    };
    let missing: Vec<Chunk> = chunks.into_iter().filter(|chunk| !known(chunk)).collect();
    // Adding all chunks at once is much faster. Adding them one by one finds the bad chunk.
    if context.volume.add_chunks(missing.clone()).is_err() {
        for chunk in missing {
            let at = chunk.logical;
            if let Err(error) = context.volume.add_chunk(chunk) {
                let issue = match error {
                    VolumeError::MissingStripe { device, .. } => Issue::DeviceMissing { device },
                    error => Issue::ChunkInvalid { chunk: at, why: error.to_string() },
                };
                context.add(issue);
            }
        }
    }
    check_devices(context, &devices);
    devices
}

/// Checks that the superblock lists exactly the system chunks of the chunk tree, with the same
/// content.
fn check_system_chunks(context: &Context<'_>, chunks: &[Chunk]) {
    let listed = &context.superblock.sys_chunks;
    for (_, chunk) in listed {
        let at = chunk.logical;
        let found = chunks.binary_search_by_key(&at, |chunk| chunk.logical);
        match found.ok().and_then(|index| chunks.get(index)) {
            None => context.add(Issue::SuperChunk { chunk: at, why: "is not in the chunk tree" }),
            Some(found) if found != chunk => {
                context.add(Issue::SuperChunk { chunk: at, why: "differs from the chunk tree's" });
            }
            Some(_) => {}
        }
    }
    let is_system = |chunk: &&Chunk| chunk.flags.has(BlockGroupFlags::SYSTEM);
    for chunk in chunks.iter().filter(is_system) {
        if !listed.iter().any(|(_, known)| known.logical == chunk.logical) {
            let why = "is a system chunk that it does not list";
            context.add(Issue::SuperChunk { chunk: chunk.logical, why });
        }
    }
}

fn check_devices(context: &Context<'_>, items: &BTreeMap<DeviceId, DeviceItem>) {
    let superblock = context.superblock;
    let field = |field, found, expected| {
        if found != expected {
            context.add(Issue::SuperField { field, found, expected });
        }
    };
    let total = items.values().fold(0_u64, |sum, item| sum.saturating_add(item.total_bytes));
    field("num_devices", superblock.num_devices, items.len() as u64);
    field("total_bytes", superblock.total_bytes, total);
    for (&device, item) in items {
        let Some(part) = context.volume.device(device) else {
            context.add(Issue::DeviceMissing { device });
            continue;
        };
        let own = part.item;
        let differs = |field, found, expected| {
            if found != expected {
                context.add(Issue::DeviceField { device, field, found, expected });
            }
        };
        differs("devid", item.devid.0, device.0);
        differs("total_bytes", item.total_bytes, own.total_bytes);
        // Reports the two halves of a uuid separately, because a field value has only 64 bits.
        let half = |bytes: [u8; 16], from: usize| {
            u64::from_le_bytes(std::array::from_fn(|at| bytes[from + at]))
        };
        for from in [0, 8] {
            differs("uuid", half(item.uuid, from), half(own.uuid, from));
            differs("fsid", half(item.fsid, from), half(own.fsid, from));
        }
    }
    for part in context.volume.devices().iter() {
        if !items.contains_key(&part.id) {
            context.add(Issue::DeviceUnknown { device: part.id });
        }
    }
}

/// Compares stripes with device extents (C1), and device extents with the devices (C3).
pub(crate) fn check_dev_extents(
    context: &Context<'_>,
    tree: &Tree,
    devices: &BTreeMap<DeviceId, DeviceItem>,
) -> io::Result<()> {
    let parts = Sorter::<PART_WORDS>::new(context.sort_bytes() / 4, 1);
    let mut writer = parts.writer();
    put_stripes(context.volume, &mut writer)?;
    let mut outcome = Ok(());
    each_leaf(context, tree, &mut |leaf| {
        for slot in 0..leaf.len() {
            let key = leaf.key(slot);
            if key.kind != Kind::DEV_EXTENT || outcome.is_err() {
                continue;
            }
            match DevExtent::parse(leaf.item(slot)) {
                Ok(extent) => {
                    let chunk = extent.chunk_offset.0;
                    outcome = writer.put([key.objectid, key.offset, 1, chunk, extent.length]);
                }
                Err(error) => {
                    let (tree, logical, why) = (TreeId::DEV, leaf.logical(), error.to_string());
                    context.add(Issue::ItemMalformed { tree, logical, key, why });
                }
            }
        }
    });
    outcome?;
    writer.finish();

    let mut sorted = parts.merge()?;
    let mut used: BTreeMap<DeviceId, u64> = BTreeMap::new();
    let mut stripe: Option<[u64; PART_WORDS]> = None;
    let mut reached = (DeviceId(0), 0);
    loop {
        let next = sorted.next_record()?;
        if let Some(waiting) = stripe
            && next.is_none_or(|next| next[..2] != waiting[..2] || next[2] == 0)
        {
            let [device, offset, _, chunk, _] = waiting;
            let (device, chunk) = (DeviceId(device), Logical(chunk));
            context.add(Issue::DevExtentMissing { device, offset, chunk });
            stripe = None;
        }
        let Some(part) = next else { break };
        if part[2] == 0 {
            stripe = Some(part);
            continue;
        }
        let [device, offset, _, chunk, len] = part;
        let device = DeviceId(device);
        *used.entry(device).or_default() = used.get(&device).unwrap_or(&0).saturating_add(len);
        if reached.0 == device && offset < reached.1 {
            context.add(Issue::DevExtentOverlap { device, offset });
        }
        let end = offset.saturating_add(len);
        reached = (device, end);
        if let Some(item) = devices.get(&device).filter(|item| end > item.total_bytes) {
            let device_end = item.total_bytes;
            context.add(Issue::DevExtentPastEnd { device, offset, end, device_end });
        }
        match stripe.take() {
            Some([_, _, _, its_chunk, expected]) if its_chunk == chunk => {
                if len != expected {
                    context.add(Issue::DevExtentLength { device, offset, found: len, expected });
                }
            }
            _ => {
                let chunk = Logical(chunk);
                context.add(Issue::DevExtentUnused { device, offset, chunk });
            }
        }
    }
    for (&device, item) in devices {
        let expected = used.get(&device).copied().unwrap_or(0);
        if item.bytes_used != expected {
            let found = item.bytes_used;
            context.add(Issue::DeviceUsed { device, found, expected });
        }
    }
    Ok(())
}

fn put_stripes(volume: &Volume, writer: &mut Writer<'_, PART_WORDS>) -> io::Result<()> {
    for chunk in volume.chunks().iter() {
        for stripe in &chunk.stripes {
            let at = chunk.logical.0;
            writer.put([stripe.device.0, stripe.offset, 0, at, chunk.stripe_bytes()])?;
        }
    }
    Ok(())
}

/// Finds every block group and compares it with the chunks (C2). The result is ascending, without
/// overlap. The walk of the extent tree has already found the groups of that tree.
pub(crate) fn load_groups(context: &Context<'_>, trees: &[Tree]) -> Vec<Group> {
    if let Some(tree) = trees.iter().find(|tree| tree.id == TreeId::BLOCK_GROUP) {
        each_leaf(context, tree, &mut |leaf| {
            for slot in 0..leaf.len() {
                let (key, bytes) = (leaf.key(slot), leaf.item(slot));
                if key.kind == Kind::BLOCK_GROUP_ITEM {
                    context.add_group(tree.id, key, bytes, leaf.logical());
                }
            }
        });
    }
    let mut groups = std::mem::take(&mut *context.groups.lock());
    groups.sort_by_key(|group| group.extent.start);
    check_groups(context, &mut groups);
    groups
}

fn check_groups(context: &Context<'_>, groups: &mut Vec<Group>) {
    let chunks = context.volume.chunks();
    for chunk in chunks.iter() {
        if groups.binary_search_by_key(&chunk.logical, |group| group.extent.start).is_err() {
            let chunk = Extent::new(chunk.logical, chunk.len);
            context.add(Issue::BlockGroupMissing { chunk });
        }
    }
    let mut before = None;
    groups.retain_mut(|group| {
        let at = group.extent.start;
        let found = chunks.binary_search_by_key(&at, |chunk| chunk.logical);
        let Some(chunk) = found.ok().and_then(|index| chunks.get(index)) else {
            context.add(Issue::ChunkMissing { group: group.extent });
            return false;
        };
        // Checks every item, also a second item at the same address. Two such items differ in their
        // lengths, so at least one item is reported.
        let differs = |field, found, expected| {
            if found != expected {
                let group = at;
                context.add(Issue::BlockGroupMismatch { group, field, found, expected });
            }
        };
        differs("length", group.extent.len, chunk.len);
        differs("flags", group.flags.0, chunk.flags.0);
        // Limits the group to its chunk. Chunks do not overlap, so the groups then do not overlap
        // either.
        group.extent.len = chunk.len;
        before.replace(at) != Some(at)
    });
}
