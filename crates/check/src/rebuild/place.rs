//! Decides how many nodes each new tree has, and where they lie.
//!
//! # Invariants
//!
//! - **PL1** The new nodes have items in the new extent tree, which may need further nodes. So
//!   nodes are added until their number is enough for all items.
//! - **PL2** Places are taken from gaps in metadata chunks, each at a multiple of the node size.

use buttress_format::{
    CompatRo, ExtentItem, Generation, Incompat, Key, Logical, RootItem, Superblock, TreeId,
};
use buttress_sorter::spool::{Item, Sizes};
use buttress_tree::Geometry;

use super::collect::Collected;
use super::free;
use super::pack::{Builder, Shape};
use super::sums::Sums;
use crate::error::{Error, Result};

/// The trees that are written anew.
pub(crate) fn anew(with_sums: bool) -> Vec<TreeId> {
    let mut trees = vec![TreeId::EXTENT, TreeId::ROOT, TreeId::BLOCK_GROUP, TreeId::FREE_SPACE];
    trees.extend(with_sums.then_some(TreeId::CSUM));
    trees
}

/// The number of rounds after which the shapes must have as many nodes as the round assumed. Each
/// round adds nodes, and few rounds are needed.
const ROUNDS_MAX: u32 = 64;

/// The bytes of a block group's item.
const GROUP_ITEM_LEN: usize = 24;

/// A tree that is written anew.
pub(crate) struct NewTree {
    pub(crate) owner: TreeId,
    pub(crate) shape: Shape,
    /// The places of its nodes: leaves first, the root last.
    pub(crate) places: Vec<Logical>,
}

impl NewTree {
    pub(crate) fn root(&self) -> Logical {
        self.places.last().copied().unwrap_or_default()
    }

    /// Builds this tree from items of `bytes` bytes.
    pub(crate) fn builder<'b>(
        &'b self,
        geometry: &'b Geometry,
        generation: Generation,
        bytes: u64,
    ) -> Builder<'b> {
        let Self { owner, shape, places } = self;
        Builder { geometry, generation, owner: *owner, shape, places, bytes }
    }
}

/// The new trees and their places.
pub(crate) struct Room {
    pub(crate) trees: Vec<NewTree>,
    /// All places, ascending.
    pub(crate) places: Vec<Logical>,
}

impl Room {
    /// Finds places for all new trees.
    pub(crate) fn find(
        collected: &Collected,
        root_items: &[Item],
        sums: Option<&Sums>,
        geometry: &Geometry,
        superblock: &Superblock,
    ) -> Result<Self> {
        let shapes = shapes(collected, root_items, sums, geometry, superblock)?;
        let count: u64 = shapes.iter().map(|(_, shape)| shape.nodes()).sum();
        let places = places(collected, u64::from(superblock.nodesize), count);
        if (places.len() as u64) < count {
            return Err(Error::Rebuild(format!(
                "{count} new nodes are needed, and there is free space for {} of them",
                places.len()
            )));
        }
        let mut rest = &places[..];
        let trees = shapes.into_iter().map(|(owner, shape)| {
            let (mine, others) = rest.split_at(shape.nodes() as usize);
            rest = others;
            NewTree { owner, shape, places: mine.to_vec() }
        });
        let trees = trees.collect();
        Ok(Self { trees, places })
    }

    pub(crate) fn tree(&self, id: TreeId) -> Option<&NewTree> {
        self.trees.iter().find(|tree| tree.owner == id)
    }
}

/// Bytes of the item of a new node.
pub(crate) fn own_item_len(superblock: &Superblock) -> usize {
    let tree_block = (!superblock.incompat.has(Incompat::SKINNY_METADATA)).then_some((Key::MIN, 0));
    let item = ExtentItem {
        refs: 1,
        generation: superblock.generation,
        flags: 0,
        tree_block,
        inline: vec![buttress_format::BackRef::TreeBlock { root: TreeId::EXTENT }],
    };
    item.byte_len()
}

/// The shapes of all new trees (PL1).
fn shapes(
    collected: &Collected,
    root_items: &[Item],
    sums: Option<&Sums>,
    geometry: &Geometry,
    superblock: &Superblock,
) -> Result<Vec<(TreeId, Shape)>> {
    let has = |flag| superblock.compat_ro.has(flag);
    let sector = u64::from(superblock.sectorsize);
    let groups = collected.groups.len() as u64;
    let mut roots = Sizes::default();
    // Missing root items are added.
    roots.add(anew(true).len() as u64, RootItem::LEN);
    root_items.iter().for_each(|(_, bytes)| roots.add(1, bytes.len()));
    let mut count = 0;
    for _ in 0..ROUNDS_MAX {
        let mut extents = collected.items.sizes();
        extents.add(count, own_item_len(superblock));
        let mut sizes = vec![(TreeId::ROOT, roots)];
        if has(CompatRo::BLOCK_GROUP_TREE) {
            let mut of_groups = Sizes::default();
            of_groups.add(groups, GROUP_ITEM_LEN);
            sizes.push((TreeId::BLOCK_GROUP, of_groups));
        } else {
            extents.add(groups, GROUP_ITEM_LEN);
        }
        sizes.push((TreeId::EXTENT, extents));
        sizes.extend(sums.map(|sums| (TreeId::CSUM, sums.items.sizes())));
        if has(CompatRo::FREE_SPACE_TREE) {
            // A new node can cut a free range in two.
            sizes.push((TreeId::FREE_SPACE, free::bound(&collected.groups, sector, count)));
        }
        let shapes: Option<Vec<(TreeId, Shape)>> = sizes
            .iter()
            .map(|(id, sizes)| Shape::of(sizes, geometry).map(|shape| (*id, shape)))
            .collect();
        let shapes = shapes.ok_or_else(|| {
            Error::Rebuild("an item is too large for the nodes of this volume".to_owned())
        })?;
        let sum = shapes.iter().map(|(_, shape)| shape.nodes()).sum();
        if sum == count {
            return Ok(shapes);
        }
        count = sum;
    }
    Err(Error::Rebuild("the size of the extent tree has no end".to_owned()))
}

/// Up to `count` places in the gaps (PL2).
fn places(collected: &Collected, nodesize: u64, count: u64) -> Vec<Logical> {
    let in_gap = |gap: &buttress_format::Extent| {
        let first = gap.start.0.next_multiple_of(nodesize);
        let end = gap.end().0;
        (first..end).step_by(nodesize as usize).filter(move |at| end - at >= nodesize)
    };
    collected.gaps.iter().flat_map(in_gap).take(count as usize).map(Logical).collect()
}
