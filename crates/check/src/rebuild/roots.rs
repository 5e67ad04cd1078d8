//! The new root tree, and the fields of superblocks for the new trees.
//!
//! # Invariants
//!
//! - **RR1** A root item keeps all bytes except the fields that say where its tree lies.

use buttress_format::{
    CompatRo, Generation, InodeItem, Key, Kind, Logical, RootBackup, RootItem, Superblock, TreeId,
};
use buttress_sorter::spool::Item;
use buttress_tree::{Expect, boot};

use super::place::{NewTree, Room};
use crate::context::{Context, Tree};
use crate::error::{Error, Result};
use crate::roots::Roots;
use crate::walk::each_leaf;

/// Where fields lie in a root item.
const GENERATION_AT: usize = 160;
const BYTENR_AT: usize = 176;
const BYTES_USED_AT: usize = 192;
const LEVEL_AT: usize = 238;
const GENERATION_V2_AT: usize = 239;

/// All items of the root tree, and the id of the chunk tree from node headers.
pub(crate) fn items(context: &Context<'_>) -> Result<(Vec<Item>, [u8; 16])> {
    let root = boot::root_tree_root(context.superblock);
    let node = context.source.read_quietly(&Expect::root(root), false).map_err(Error::Rebuild)?;
    let mut items = Vec::new();
    each_leaf(context, &Tree::new(TreeId::ROOT, root), &mut |leaf| {
        items.extend((0..leaf.len()).map(|slot| (leaf.key(slot), leaf.item(slot).to_vec())));
    });
    Ok((items, node.header().chunk_tree_uuid))
}

/// The items with the new places of trees. Root items that are missing are added.
pub(crate) fn patched(
    mut items: Vec<Item>,
    room: &Room,
    generation: Generation,
    nodesize: u32,
) -> Vec<Item> {
    for tree in room.trees.iter().filter(|tree| tree.owner != TreeId::ROOT) {
        let key = Key::new(tree.owner.0, Kind::ROOT_ITEM, 0);
        let at = items.partition_point(|(other, _)| *other < key);
        let is_usable = |(other, bytes): &&Item| *other == key && bytes.len() > LEVEL_AT;
        if items.get(at).as_ref().is_none_or(|item| !is_usable(item)) {
            let inode = InodeItem { size: 3, nlink: 1, mode: 0o40755, ..InodeItem::default() };
            let fresh = RootItem { inode, refs: 1, ..RootItem::default() };
            match items.get_mut(at).filter(|(other, _)| *other == key) {
                Some((_, bytes)) => *bytes = fresh.to_bytes(),
                None => items.insert(at, (key, fresh.to_bytes())),
            }
        }
        patch(&mut items[at].1, tree, generation, nodesize);
    }
    items
}

fn patch(bytes: &mut [u8], tree: &NewTree, generation: Generation, nodesize: u32) {
    let mut put = |at: usize, number: u64| {
        if let Some(place) = bytes.get_mut(at..at + 8) {
            place.copy_from_slice(&number.to_le_bytes());
        }
    };
    put(GENERATION_AT, generation.0);
    put(BYTENR_AT, tree.root().0);
    put(BYTES_USED_AT, tree.shape.nodes() * u64::from(nodesize));
    put(GENERATION_V2_AT, generation.0);
    bytes[LEVEL_AT] = tree.shape.root_level();
}

/// The superblock of the new trees.
pub(crate) fn superblock(
    old: &Superblock,
    room: &Room,
    roots: &Roots,
    bytes_used: u64,
) -> Superblock {
    let mut new = old.clone();
    new.generation = old.generation.next();
    new.bytes_used = bytes_used;
    (new.log_root, new.log_root_level) = (Logical(0), 0);
    if let Some(tree) = room.tree(TreeId::ROOT) {
        (new.root, new.root_level) = (tree.root(), tree.shape.root_level());
    }
    if room.tree(TreeId::FREE_SPACE).is_some() {
        new.compat_ro = new.compat_ro.with(CompatRo::FREE_SPACE_TREE_VALID);
    }
    if old.uuid_tree_generation == old.generation.0 {
        new.uuid_tree_generation = new.generation.0;
    }
    let newest = old.backups.iter().enumerate().max_by_key(|(_, backup)| backup.tree_root_gen);
    let slot = newest.map_or(0, |(index, _)| (index + 1) % old.backups.len());
    new.backups[slot] = backup(&new, room, roots);
    new
}

fn backup(superblock: &Superblock, room: &Room, roots: &Roots) -> RootBackup {
    let place = |id| match (room.tree(id), roots.root_of(id)) {
        (Some(tree), _) => (tree.root(), superblock.generation, tree.shape.root_level()),
        (None, Some(root)) => (root.logical, root.generation, root.level),
        (None, None) => (Logical(0), Generation(0), 0),
    };
    let (extent, fs) = (place(TreeId::EXTENT), place(TreeId::FS));
    let (dev, csum) = (place(TreeId::DEV), place(TreeId::CSUM));
    RootBackup {
        tree_root: superblock.root,
        tree_root_gen: superblock.generation,
        tree_root_level: superblock.root_level,
        chunk_root: superblock.chunk_root,
        chunk_root_gen: superblock.chunk_root_generation,
        chunk_root_level: superblock.chunk_root_level,
        extent_root: extent.0,
        extent_root_gen: extent.1,
        extent_root_level: extent.2,
        fs_root: fs.0,
        fs_root_gen: fs.1,
        fs_root_level: fs.2,
        dev_root: dev.0,
        dev_root_gen: dev.1,
        dev_root_level: dev.2,
        csum_root: csum.0,
        csum_root_gen: csum.1,
        csum_root_level: csum.2,
        total_bytes: superblock.total_bytes,
        bytes_used: superblock.bytes_used,
        num_devices: superblock.num_devices,
    }
}
