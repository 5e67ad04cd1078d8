//! Changes the content of nodes and superblocks, and makes their checksums fit. Checksums do not
//! show such damage.

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_block::Device;
use buttress_check::{NoProgress, Options, Report, Severity, check_devices};
use buttress_format::header::{HEADER_LEN, ITEM_LEN};
use buttress_format::limits::{SUPER_OFFSETS, SUPER_SIZE};
use buttress_format::{Key, Kind, RootItem, Superblock, TreeId};
use buttress_tree::{Expect, Geometry, Node, NodePtr, Store, boot};
use buttress_volume::{OpenOptions, Volume};

use crate::victim::Overlay;

/// The tree of logs. [`TreeId::TREE_LOG`] is the log of the first subvolume.
pub(crate) const LOGS: TreeId = TreeId(u64::MAX - 1000);

/// A volume that is being damaged.
pub(crate) struct Patch {
    pub(crate) device: Arc<Overlay>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) superblock: Superblock,
    geometry: Geometry,
}

/// Items of a leaf, taken apart.
pub(crate) type Items = Vec<(Key, Vec<u8>)>;

impl Patch {
    pub(crate) fn new(device: Arc<Overlay>) -> Self {
        let options = OpenOptions { writable: true, ..OpenOptions::default() };
        let part: Arc<dyn Device> = Arc::clone(&device) as Arc<dyn Device>;
        let (volume, superblock) = Volume::open(vec![part], options).expect("a volume");
        let volume = Arc::new(volume);
        let geometry = Geometry::of(&superblock);
        let patch = Self { device, volume, superblock, geometry };
        boot::load_chunks(&patch.store(), &patch.superblock).expect("chunks");
        patch
    }

    /// A store with an empty cache, so that it reads changed nodes again.
    fn store(&self) -> Store {
        Store::new(Arc::clone(&self.volume), self.geometry, 0)
    }

    pub(crate) fn root(&self, tree: TreeId) -> NodePtr {
        match tree {
            TreeId::ROOT => boot::root_tree_root(&self.superblock),
            TreeId::CHUNK => boot::chunk_root(&self.superblock),
            LOGS => NodePtr {
                logical: self.superblock.log_root,
                generation: self.superblock.generation.next(),
                level: self.superblock.log_root_level,
            },
            TreeId::TREE_LOG => {
                let log = |key: &Key, _: &[u8]| key.offset == TreeId::FS.0;
                let (_, bytes) = self.find(LOGS, log).expect("a log");
                let item = RootItem::parse(&bytes).expect("a root item");
                NodePtr { logical: item.bytenr, generation: item.generation, level: item.level }
            }
            _ => {
                let (_, bytes) = self
                    .find(TreeId::ROOT, |key, _| {
                        key.objectid == tree.0 && key.kind == Kind::ROOT_ITEM
                    })
                    .unwrap_or_else(|| panic!("no {tree}"));
                let item = RootItem::parse(&bytes).expect("a root item");
                NodePtr { logical: item.bytenr, generation: item.generation, level: item.level }
            }
        }
    }

    /// Every leaf of a tree.
    pub(crate) fn leaves(&self, tree: TreeId) -> Vec<Arc<Node>> {
        let store = self.store();
        let mut nodes = vec![store.root(tree, self.root(tree)).expect("a root")];
        while nodes[0].level() > 0 {
            nodes = nodes
                .iter()
                .flat_map(|node| (0..node.len()).map(|slot| node.expect_child(slot)))
                .map(|expect: Expect| {
                    buttress_tree::NodeSource::node(&store, tree, &expect).expect("a node")
                })
                .collect();
        }
        nodes
    }

    /// The first item that `sought` accepts.
    pub(crate) fn find(
        &self,
        tree: TreeId,
        sought: impl Fn(&Key, &[u8]) -> bool,
    ) -> Option<(Key, Vec<u8>)> {
        self.leaves(tree).iter().find_map(|leaf| {
            (0..leaf.len())
                .find(|slot| sought(&leaf.key(*slot), leaf.item(*slot)))
                .map(|slot| (leaf.key(slot), leaf.item(slot).to_vec()))
        })
    }

    /// Changes the leaf that holds a key, or into which the key falls.
    pub(crate) fn edit_leaf(&self, tree: TreeId, key: &Key, change: impl FnOnce(&mut Items)) {
        let leaves = self.leaves(tree);
        let index = leaves.partition_point(|leaf| !leaf.is_empty() && leaf.key(0) <= *key);
        let leaf = &leaves[index.saturating_sub(1)];
        let mut items: Items =
            (0..leaf.len()).map(|slot| (leaf.key(slot), leaf.item(slot).to_vec())).collect();
        change(&mut items);
        let mut bytes = leaf.bytes()[..HEADER_LEN].to_vec();
        bytes.resize(leaf.bytes().len(), 0);
        let mut end = bytes.len() - HEADER_LEN;
        assert!(items.iter().map(|(_, item)| ITEM_LEN + item.len()).sum::<usize>() <= end, "full");
        bytes[96..100].copy_from_slice(&(items.len() as u32).to_le_bytes());
        for (slot, (key, item)) in items.iter().enumerate() {
            let at = HEADER_LEN + slot * ITEM_LEN;
            end -= item.len();
            key.write_to(&mut bytes[at..]);
            bytes[at + 17..at + 21].copy_from_slice(&(end as u32).to_le_bytes());
            bytes[at + 21..at + 25].copy_from_slice(&(item.len() as u32).to_le_bytes());
            bytes[HEADER_LEN + end..HEADER_LEN + end + item.len()].copy_from_slice(item);
        }
        self.write_node(leaf.ptr(), bytes);
    }

    /// Writes every copy of a node, with a checksum that fits.
    pub(crate) fn write_node(&self, ptr: NodePtr, mut bytes: Vec<u8>) {
        let digest = self.geometry.csum.digest(&bytes[32..]);
        bytes[..32].copy_from_slice(&digest);
        self.volume.write(ptr.logical, &bytes).expect("a write");
    }

    /// Changes the bytes of a tree's root node.
    pub(crate) fn edit_root_node(&self, tree: TreeId, change: impl FnOnce(&mut [u8])) {
        let ptr = self.root(tree);
        let mut bytes = self.store().root(tree, ptr).expect("a root").bytes().to_vec();
        change(&mut bytes);
        self.write_node(ptr, bytes);
    }

    /// Changes the bytes of the first item that `sought` accepts.
    pub(crate) fn edit(
        &self,
        tree: TreeId,
        sought: impl Fn(&Key, &[u8]) -> bool,
        change: impl FnOnce(&mut Vec<u8>),
    ) {
        let (key, _) = self.find(tree, sought).expect("the item to change");
        self.edit_leaf(tree, &key, |items| {
            change(&mut items.iter_mut().find(|(other, _)| *other == key).expect("it").1);
        });
    }

    /// Changes the key of the first item that `sought` accepts. The key must stay between its
    /// neighbours.
    pub(crate) fn edit_key(
        &self,
        tree: TreeId,
        sought: impl Fn(&Key, &[u8]) -> bool,
        change: impl FnOnce(&mut Key),
    ) {
        let (key, _) = self.find(tree, sought).expect("the item to change");
        self.edit_leaf(tree, &key, |items| {
            change(&mut items.iter_mut().find(|(other, _)| *other == key).expect("it").0);
        });
    }

    /// Removes the first item that `sought` accepts.
    pub(crate) fn remove(&self, tree: TreeId, sought: impl Fn(&Key, &[u8]) -> bool) -> Key {
        let (key, _) = self.find(tree, sought).expect("the item to remove");
        self.edit_leaf(tree, &key, |items| items.retain(|(other, _)| *other != key));
        key
    }

    /// Removes the item with a key.
    pub(crate) fn remove_at(&self, tree: TreeId, key: &Key) {
        self.edit_leaf(tree, key, |items| items.retain(|(other, _)| other != key));
    }

    /// Adds an item.
    pub(crate) fn insert(&self, tree: TreeId, key: Key, bytes: Vec<u8>) {
        self.edit_leaf(tree, &key, |items| {
            let at = items.partition_point(|(other, _)| *other < key);
            items.insert(at, (key, bytes));
        });
    }

    /// Changes copies of the superblock, by number.
    pub(crate) fn edit_supers(&self, copies: &[usize], change: impl Fn(&mut [u8])) {
        for &copy in copies {
            let mut bytes = vec![0; SUPER_SIZE];
            self.device.read_at(SUPER_OFFSETS[copy], &mut bytes).expect("a read");
            change(&mut bytes);
            let digest = self.geometry.csum.digest(&bytes[32..]);
            bytes[..32].copy_from_slice(&digest);
            self.device.write_at(SUPER_OFFSETS[copy], &bytes).expect("a write");
        }
    }

    pub(crate) fn report(&self) -> Report {
        self.report_with(&Options::default())
    }

    pub(crate) fn report_with(&self, options: &Options) -> Report {
        let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&self.device) as Arc<dyn Device>];
        check_devices(devices, options, &NoProgress).expect("a check")
    }

    /// Panics unless the check finds these kinds of errors, and no others.
    #[track_caller]
    pub(crate) fn finds(&self, expected: &[&str]) {
        finds(&self.report(), expected);
    }

    /// Panics unless the check finds these kinds of issues. The check may find other issues that
    /// follow from the damage.
    #[track_caller]
    pub(crate) fn finds_among_others(&self, expected: &[&str]) {
        let report = self.report();
        for code in expected {
            assert!(report.has(code), "no {code} in\n{}", report.to_text());
        }
    }
}

#[track_caller]
pub(crate) fn finds(report: &Report, expected: &[&str]) {
    let errors = report.issues.iter().filter(|issue| issue.severity() == Severity::Error);
    let found: BTreeSet<&str> = errors.map(buttress_check::Issue::code).collect();
    let expected: BTreeSet<&str> = expected.iter().copied().collect();
    assert!(found == expected, "expected {expected:?}, found\n{}", report.to_text());
}

/// Writes a number into bytes.
pub(crate) fn put64(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

/// Reads a number from bytes.
pub(crate) fn get64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

/// Adds to a number in bytes.
pub(crate) fn add64(bytes: &mut [u8], at: usize, more: u64) {
    put64(bytes, at, get64(bytes, at).wrapping_add(more));
}
