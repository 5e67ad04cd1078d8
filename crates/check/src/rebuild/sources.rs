//! The items of each new tree, in key order. They can be read several times.
//!
//! # Invariants
//!
//! - **SO1** The extent tree has the collected items and an item for each new node. It has the
//!   block groups, too, if they have no tree of their own.

use std::io;

use buttress_format::{
    BackRef, BlockGroupItem, CompatRo, Extent, ExtentFlags, ExtentItem, Generation, Incompat, Key,
    Kind, Logical, Superblock, TreeId, header::ITEM_LEN, ids,
};
use buttress_sorter::spool::{Item, Spool, merged};

use super::collect::Collected;
use super::free::FreeItems;
use super::place::{NewTree, Room};
use super::sums::Sums;
use crate::error::Result;

/// The items of all new trees.
pub(crate) struct Sources {
    extents: Spool,
    groups: Vec<Item>,
    has_group_tree: bool,
    free: Option<Spool>,
    sums: Option<Spool>,
    roots: Vec<Item>,
}

impl Sources {
    pub(crate) fn new(
        collected: Collected,
        roots: Vec<Item>,
        sums: Option<Sums>,
        room: &Room,
        superblock: &Superblock,
    ) -> Result<Self> {
        let Collected { items: mut extents, groups, .. } = collected;
        let nodesize = u64::from(superblock.nodesize);
        let mut free = None;
        if room.tree(TreeId::FREE_SPACE).is_some() {
            let mut items = FreeItems::new(&groups, u64::from(superblock.sectorsize))?;
            let mut places = room.places.iter().copied().peekable();
            for item in extents.items()? {
                let (key, _) = item?;
                let Some(extent) = extent_of(&key, nodesize) else { continue };
                while let Some(place) = places.next_if(|place| *place < extent.start) {
                    items.used(Extent::new(place, nodesize))?;
                }
                items.used(extent)?;
            }
            for place in places {
                items.used(Extent::new(place, nodesize))?;
            }
            free = Some(items.finish()?);
        }
        let group_item = |group: &super::collect::GroupUse| {
            let chunk = &group.chunk;
            let key = Key::new(chunk.logical.0, Kind::BLOCK_GROUP_ITEM, chunk.len);
            let chunk_objectid = ids::FIRST_CHUNK_TREE;
            let item = BlockGroupItem { used: group.used, chunk_objectid, flags: chunk.flags };
            (key, item.to_bytes())
        };
        let groups = groups.iter().map(group_item).collect();
        let has_group_tree = superblock.compat_ro.has(CompatRo::BLOCK_GROUP_TREE);
        let sums = sums.map(|sums| sums.items);
        Ok(Self { extents, groups, has_group_tree, free, sums, roots })
    }

    /// Bytes of all items of a tree, their heads included.
    pub(crate) fn bytes(&self, tree: &NewTree, own: &[Item]) -> u64 {
        let sum = |items: &[Item]| -> u64 {
            items.iter().map(|(_, payload)| (payload.len() + ITEM_LEN) as u64).sum()
        };
        match tree.owner {
            TreeId::ROOT => sum(&self.roots),
            TreeId::BLOCK_GROUP => sum(&self.groups),
            TreeId::FREE_SPACE => self.free.as_ref().map_or(0, |free| free.sizes().bytes),
            TreeId::CSUM => self.sums.as_ref().map_or(0, |sums| sums.sizes().bytes),
            _ => {
                let groups = if self.has_group_tree { 0 } else { sum(&self.groups) };
                self.extents.sizes().bytes + sum(own) + groups
            }
        }
    }

    /// The items of a tree. `own` are the items of the new nodes.
    pub(crate) fn items<'s>(
        &'s mut self,
        tree: &NewTree,
        own: &'s [Item],
    ) -> io::Result<Box<dyn Iterator<Item = io::Result<Item>> + 's>> {
        let spooled = match tree.owner {
            TreeId::FREE_SPACE => self.free.as_mut(),
            TreeId::CSUM => self.sums.as_mut(),
            _ => None,
        };
        Ok(match (tree.owner, spooled) {
            (_, Some(spool)) => Box::new(spool.items()?),
            (TreeId::ROOT, _) => Box::new(listed(&self.roots)),
            (TreeId::BLOCK_GROUP, _) => Box::new(listed(&self.groups)),
            _ => {
                let groups = if self.has_group_tree { &[] } else { &self.groups[..] };
                let extents = merged(self.extents.items()?, listed(own));
                Box::new(merged(extents, listed(groups)))
            }
        })
    }
}

fn listed(items: &[Item]) -> impl Iterator<Item = io::Result<Item>> + '_ {
    items.iter().cloned().map(Ok)
}

/// The extent that a key of the extent tree records. `None` for keys of references.
fn extent_of(key: &Key, nodesize: u64) -> Option<Extent> {
    match key.kind {
        Kind::EXTENT_ITEM => Some(Extent::new(Logical(key.objectid), key.offset)),
        Kind::METADATA_ITEM => Some(Extent::new(Logical(key.objectid), nodesize)),
        _ => None,
    }
}

/// The items of all new nodes, ascending. `firsts` are the first keys of the nodes, in the order of
/// their trees and places. Skinny items do not need these keys.
pub(crate) fn own_items(
    room: &Room,
    superblock: &Superblock,
    generation: Generation,
    firsts: &[Key],
) -> Vec<Item> {
    let is_skinny = superblock.incompat.has(Incompat::SKINNY_METADATA);
    let mut firsts = firsts.iter().copied();
    let mut items = Vec::with_capacity(room.places.len());
    for tree in &room.trees {
        for (&place, level) in tree.places.iter().zip(tree.shape.node_levels()) {
            let first = firsts.next().unwrap_or(Key::MIN);
            let item = ExtentItem {
                refs: 1,
                generation,
                flags: ExtentFlags::TREE_BLOCK,
                tree_block: (!is_skinny).then_some((first, level)),
                inline: vec![BackRef::TreeBlock { root: tree.owner }],
            };
            let key = match is_skinny {
                true => Key::new(place.0, Kind::METADATA_ITEM, u64::from(level)),
                false => Key::new(place.0, Kind::EXTENT_ITEM, u64::from(superblock.nodesize)),
            };
            items.push((key, item.to_bytes()));
        }
    }
    items
}
