//! Writes the chunk tree anew, from chunks that nodes describe.
//!
//! # Invariants
//!
//! - **CR1** The new tree has exactly the chunks that the newest device tree has places for. A
//!   chunk with a stripe that may be anywhere is not written.

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_block::Device;
use buttress_format::{BlockGroupItem, Chunk, Generation, Key, Kind, Logical, TreeId, header, ids};
use buttress_tree::{LeafBuilder, NodeStamp, boot};

use crate::chunks;
use crate::error::{Error, Result};
use crate::mend::{Fix, copies, places};
use crate::progress::Progress;
use crate::salvage::{Salvage, SalvageOptions};
use crate::state::State;
use crate::striped::{Evidence, Order};
use crate::tree::Leaves;

/// The one write of the repair; none if the chunk tree can be read.
pub(crate) fn chunk_recover(
    devices: &[Arc<dyn Device>],
    options: SalvageOptions,
    progress: Arc<dyn Progress + Send>,
) -> Result<Vec<Fix>> {
    let salvage = Salvage::open(devices.to_vec(), options, progress)?;
    let superblock = salvage.superblock();
    let root = boot::chunk_root(superblock);
    let tree = Leaves::walk(&salvage, TreeId::CHUNK, root, None);
    if tree.all(&salvage, &mut |_, _| {}).is_empty() {
        return Ok(Vec::new());
    }
    if root.level > 0 {
        return Err(Error::NotRepairable(
            "the chunk tree had several nodes: restore gets the files",
        ));
    }
    let mut items: Vec<(Key, Vec<u8>)> = Vec::new();
    let mut known = Vec::new();
    for device in devices {
        let newest =
            copies(&**device).into_iter().max_by_key(|(_, copy)| copy.superblock.generation);
        let Some((_, copy)) = newest else {
            return Err(Error::NotRepairable("a device has no superblock"));
        };
        let item = copy.superblock.dev_item;
        known.push(item);
        items.push((Key::new(ids::DEV_ITEMS, Kind::DEV_ITEM, item.devid.0), item.to_bytes()));
    }
    if items.len() as u64 != superblock.num_devices {
        return Err(Error::NotRepairable("a device is missing"));
    }
    let numbers = known.iter().map(|item| Some(item.devid)).collect();
    let system: Vec<Chunk> = superblock.sys_chunks.iter().map(|(_, chunk)| chunk.clone()).collect();
    let mut facts = chunks::gather(devices, &salvage.geometry, salvage.scan(), &system, known);
    // Old nodes may still describe chunks that were removed. A chunk still exists only if the
    // newest device tree has device extents of it.
    let state = State::newest(&salvage)?;
    let empty = empty_groups(&salvage, &state);
    for it in &mut facts.unordered {
        it.is_empty = empty.contains(&it.chunk.logical);
    }
    let (geometry, found) = (&salvage.geometry, salvage.scan());
    let has_log = superblock.log_root.0 != 0;
    let evidence = Evidence { devices, numbers, geometry, found, has_log };
    facts.chunks.extend(evidence.order(&facts.unordered).into_iter().filter_map(Order::known));
    let dev_root = state.trees.get(&TreeId::DEV).map(|tree| tree.root);
    let dev_root = dev_root.ok_or(Error::NotRepairable("the device tree is lost"))?;
    let mut taken = BTreeSet::new();
    let dev_tree = Leaves::walk(&salvage, TreeId::DEV, dev_root, state.extents.as_ref());
    let gaps = dev_tree.all(&salvage, &mut |key, bytes| {
        if key.kind == Kind::DEV_EXTENT
            && let Ok(item) = buttress_format::DevExtent::parse(bytes)
        {
            taken.insert(item.chunk_offset);
        }
    });
    if !gaps.is_empty() || !taken.iter().all(|at| facts.chunks.iter().any(|c| c.logical == *at)) {
        return Err(Error::NotRepairable("not every chunk is found: restore gets the files"));
    }
    for chunk in facts.chunks.iter().filter(|chunk| taken.contains(&chunk.logical)) {
        let key = Key::new(ids::FIRST_CHUNK_TREE, Kind::CHUNK_ITEM, chunk.logical.0);
        items.push((key, chunk.to_bytes()));
    }
    items.sort();
    items.dedup_by(|one, other| one.0 == other.0);
    let len: usize = items.iter().map(|(_, bytes)| bytes.len() + header::ITEM_LEN).sum();
    if len > salvage.geometry.leaf_room() {
        return Err(Error::NotRepairable("the chunks need several nodes: restore gets the files"));
    }
    let around = |chunk: &&Chunk| {
        root.logical >= chunk.logical && root.logical.distance(chunk.logical) < chunk.len
    };
    let chunk = facts.chunks.iter().find(around);
    let chunk = chunk.ok_or(Error::NotRepairable("the chunk of the chunk tree is not found"))?;
    let places = places(devices, chunk, root.logical);
    let places = places
        .ok_or(Error::NotRepairable("the chunk tree is striped, or on a device that is missing"))?;
    let mut geometry = salvage.geometry;
    geometry.chunk_tree_uuid = salvage.chunk_tree_uuid().ok_or(Error::NothingFound)?;
    let mut leaf = LeafBuilder::new(&geometry);
    for (key, bytes) in &items {
        leaf.push(key, bytes);
    }
    let generation: Generation = root.generation;
    let stamp = NodeStamp { logical: root.logical, generation, owner: TreeId::CHUNK };
    let node = leaf.finish(&geometry, &stamp).into_sealed(&geometry);
    let node = node.map_err(|_| Error::NotRepairable("the new node is not right"))?;
    let writes = places.into_iter().map(|(index, at)| (index, at, node.bytes().to_vec()));
    let what = format!(
        "the chunk tree at {} is written with {} devices and {} chunks",
        root.logical,
        devices.len(),
        items.len() - devices.len()
    );
    Ok(vec![Fix { what, writes: writes.collect() }])
}

/// The block groups that are empty now. Only the newest tree counts: an older leaf may call a group
/// empty that has data since then. If a part of the tree is lost, no group is taken for empty.
fn empty_groups(salvage: &Salvage, state: &State) -> BTreeSet<Logical> {
    let mut empty = BTreeSet::new();
    let trees = [TreeId::BLOCK_GROUP, TreeId::EXTENT].into_iter();
    let mut roots = trees.filter_map(|id| Some((id, state.trees.get(&id)?.root)));
    let Some((id, root)) = roots.next() else { return empty };
    let tree = Leaves::walk(salvage, id, root, state.extents.as_ref());
    let gaps = tree.all(salvage, &mut |key, bytes| {
        if key.kind == Kind::BLOCK_GROUP_ITEM
            && let Ok(item) = BlockGroupItem::parse(bytes)
            && item.used == 0
        {
            empty.insert(Logical(key.objectid));
        }
    });
    if gaps.is_empty() { empty } else { BTreeSet::new() }
}
