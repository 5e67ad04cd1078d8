//! A small tree in memory, for tests of changes to its items.

use std::sync::Arc;

use buttress_format::{CsumType, Generation, Key, Logical, TreeId};
use buttress_tree::{
    Expect, Geometry, LeafBuilder, Node, NodePtr, NodeSource, NodeStamp, PtrBuilder,
};

pub(crate) const SECTOR: u64 = 4096;
/// The number of sectors of the models that trees are compared with.
pub(crate) const SECTORS: u64 = 96;
/// The address of the first sector.
pub(crate) const BASE: u64 = 1 << 20;

pub(crate) fn geometry() -> Geometry {
    Geometry {
        nodesize: 4096,
        sectorsize: SECTOR as u32,
        csum: CsumType::Crc32c,
        fsid: [1; 16],
        seeds: Default::default(),
        chunk_tree_uuid: [2; 16],
    }
}

pub(crate) fn address(sector: u64) -> Logical {
    Logical(BASE + sector * SECTOR)
}

/// A tree of one root and leaves.
pub(crate) struct Tree(Vec<Arc<Node>>);

impl NodeSource for Tree {
    fn node(&self, _: TreeId, expect: &Expect) -> buttress_tree::Result<Arc<Node>> {
        Ok(Arc::clone(&self.0[expect.ptr.logical.0 as usize / 4096]))
    }
}

impl Tree {
    /// A tree of ascending items, `per_leaf` of them in each leaf.
    pub(crate) fn new(owner: TreeId, items: &[(Key, Vec<u8>)], per_leaf: usize) -> (Self, NodePtr) {
        let geometry = geometry();
        let stamp = |at: usize| NodeStamp {
            logical: Logical(at as u64 * 4096),
            generation: Generation(7),
            owner,
        };
        let ptr = |at: usize, level| NodePtr {
            logical: stamp(at).logical,
            generation: Generation(7),
            level,
        };
        let leaf = |at: usize, items: &[(Key, Vec<u8>)]| {
            let mut leaf = LeafBuilder::new(&geometry);
            items.iter().for_each(|(key, bytes)| leaf.push(key, bytes));
            Arc::new(leaf.finish(&geometry, &stamp(at)))
        };
        let groups: Vec<_> = items.chunks(per_leaf).collect();
        if groups.len() < 2 {
            return (Self(vec![leaf(0, items)]), ptr(0, 0));
        }
        let mut top = PtrBuilder::new(&geometry);
        let mut nodes = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            top.push(&group[0].0, &ptr(index, 0));
            nodes.push(leaf(index, group));
        }
        nodes.push(Arc::new(top.finish(&geometry, &stamp(groups.len()), 1)));
        (Self(nodes), ptr(groups.len(), 1))
    }
}
