//! The places of nodes and data on an undamaged volume, and the nodes and sectors that each file
//! needs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_format::{
    Body, Extent, FileExtent, Key, Kind, Logical, RootItem, Superblock, TreeId, ids,
};
use buttress_tree::{Expect, Geometry, NodePtr, NodeSource, Store, boot};
use buttress_volume::{OpenOptions, Volume};

/// A place on a device: its index, and the first byte.
pub(crate) type Place = (usize, u64);

/// One node of a tree.
#[derive(Clone, Debug)]
pub(crate) struct NodeFacts {
    pub(crate) tree: TreeId,
    pub(crate) level: u8,
    pub(crate) is_root: bool,
    pub(crate) copies: Vec<Place>,
}

/// A function that is called with each item of a tree and the address of its leaf.
type Visit<'v> = &'v mut dyn FnMut(Key, &[u8], Logical, &mut Facts);

/// The nodes and data that one file needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileFacts {
    /// Leaves with its items and its checksums.
    pub(crate) leaves: BTreeSet<Logical>,
    /// Its data, by address.
    pub(crate) data: Vec<Extent>,
}

/// All facts of a volume.
pub(crate) struct Facts {
    pub(crate) superblock: Superblock,
    pub(crate) nodes: BTreeMap<Logical, NodeFacts>,
    pub(crate) files: BTreeMap<(u64, u64), FileFacts>,
    volume: Arc<Volume>,
}

impl Facts {
    pub(crate) fn of(devices: &[Arc<MemoryDevice>]) -> Self {
        let list = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
        let (volume, superblock) = Volume::open(list, OpenOptions::default()).expect("a volume");
        let volume = Arc::new(volume);
        let store = Store::new(Arc::clone(&volume), Geometry::of(&superblock), 64 << 20);
        boot::load_chunks(&store, &superblock).expect("chunks");
        let mut facts = Self { superblock, nodes: BTreeMap::new(), files: BTreeMap::new(), volume };
        let mut roots = vec![
            (TreeId::ROOT, boot::root_tree_root(&facts.superblock)),
            (TreeId::CHUNK, boot::chunk_root(&facts.superblock)),
        ];
        let mut sums: Vec<(Extent, Logical)> = Vec::new();
        while let Some((tree, root)) = roots.pop() {
            facts.walk(&store, tree, root, &mut |key, bytes, leaf, facts| {
                if key.kind == Kind::ROOT_ITEM {
                    let item = RootItem::parse(bytes).expect("a root");
                    let (logical, generation) = (item.bytenr, item.generation);
                    roots.push((
                        TreeId(key.objectid),
                        NodePtr { logical, generation, level: item.level },
                    ));
                }
                if key.objectid == ids::EXTENT_CSUM && key.kind == Kind::EXTENT_CSUM {
                    let count = bytes.len() / facts.superblock.csum_type.size();
                    sums.push((Extent::new(Logical(key.offset), count as u64 * 4096), leaf));
                }
                if tree.is_fs_tree() && key.objectid >= 256 && key.objectid < ids::FREE_INO {
                    facts.item(tree, key, bytes, leaf);
                }
            });
        }
        for file in facts.files.values_mut() {
            for data in &file.data {
                let over = sums.iter().filter(|(sum, _)| sum.overlaps(data));
                file.leaves.extend(over.map(|(_, leaf)| *leaf));
            }
        }
        facts
    }

    fn item(&mut self, tree: TreeId, key: Key, bytes: &[u8], leaf: Logical) {
        let own = [Kind::INODE_ITEM, Kind::INODE_REF, Kind::XATTR_ITEM, Kind::EXTENT_DATA];
        if !own.contains(&key.kind) {
            return;
        }
        let file = self.files.entry((tree.0, key.objectid)).or_default();
        file.leaves.insert(leaf);
        if key.kind == Kind::EXTENT_DATA
            && let Body::Regular(region) = FileExtent::parse(bytes).expect("an extent").body
            && !region.is_hole()
        {
            file.data.push(region.extent());
        }
    }

    fn walk(&mut self, store: &Store, tree: TreeId, root: NodePtr, visit: Visit<'_>) {
        let mut stack = vec![Expect::root(root)];
        while let Some(expect) = stack.pop() {
            let at = expect.ptr.logical;
            let node = store.node(tree, &expect).expect("a node");
            let is_root = at == root.logical;
            let copies = self.places(at);
            let facts = NodeFacts { tree, level: node.level(), is_root, copies };
            self.nodes.entry(at).or_insert(facts);
            for slot in 0..node.len() {
                if node.level() > 0 {
                    stack.push(node.expect_child(slot));
                } else {
                    visit(node.key(slot), node.item(slot), at, self);
                }
            }
        }
    }

    /// Where all copies of an address lie. No chunk here is striped.
    pub(crate) fn places(&self, at: Logical) -> Vec<Place> {
        let chunk = self.volume.chunk_at(at).expect("a chunk");
        let within = at.distance(chunk.logical);
        let place = |stripe: &buttress_format::Stripe| {
            (stripe.device.0 as usize - 1, stripe.offset + within)
        };
        chunk.stripes.iter().map(place).collect()
    }
}
