//! Changes items of trees where they lie: a leaf keeps its address and its generation.
//!
//! # Invariants
//!
//! - **ED1** A changed leaf is valid: its keys ascend, its items fit, and the parents name its
//!   first key. An edit that would break this is not made.
//! - **ED2** No edit frees a node. An edit that allocates a node also adds its extent record
//!   (`split`). So the extent tree stays as right as it was.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use buttress_block::Device;
use buttress_format::header::{HEADER_LEN, ITEM_LEN, PTR_LEN};
use buttress_format::{DirEntry, Key, Kind, Logical, RootItem, Superblock, TreeId};
use buttress_tree::{Cursor, Geometry, Node, NodePtr, NodeSource, Store, boot};
use buttress_volume::patch::write_superblocks;
use buttress_volume::{OpenOptions, Volume, VolumeDevice};

use crate::error::Result;
use crate::mend::extents::Record;
use crate::mend::listing::{self, Kept};
use crate::options::Options;

/// Items with their keys.
pub(super) type Items = Vec<(Key, Vec<u8>)>;

/// One repair: a sentence that describes it, and its edits.
#[derive(Clone, Debug)]
pub(super) struct Fix {
    pub(super) says: String,
    pub(super) edits: Vec<Edit>,
}

/// One change of a tree.
#[derive(Clone, Debug)]
pub(super) enum Edit {
    /// An item gets these bytes. It is added if it does not exist.
    Put(TreeId, Key, Vec<u8>),
    /// An item is removed.
    Remove(TreeId, Key),
    /// A node gets these bytes, with a checksum that fits.
    Node(NodePtr, Vec<u8>),
    /// Superblocks of the device with this number get bytes at an offset. Zero means all devices.
    Super(u64, usize, Vec<u8>),
}

/// A volume that is being mended, on trial devices.
pub(super) struct Editor {
    pub(super) devices: Vec<Arc<dyn Device>>,
    pub(super) volume: Arc<Volume>,
    pub(super) superblock: Superblock,
    pub(super) geometry: Geometry,
    /// The records that `extents` read from the extent tree. No fix of a round changes these
    /// records.
    pub(super) records: OnceCell<Option<Rc<[Record]>>>,
    pub(super) options: Options,
    /// The directory that was listed last.
    pub(super) listing: RefCell<Kept>,
    /// Places for new nodes, the best last. `None` until the first new node needs a place.
    pub(super) places: RefCell<Option<Vec<Logical>>>,
}

impl Editor {
    pub(super) fn open(devices: &[Arc<dyn Device>], check: &Options) -> Result<Self> {
        // A superblock may count more devices than the volume has. The caller made sure that no
        // device is missing.
        let options =
            OpenOptions { writable: true, repairs: true, degraded: true, ..OpenOptions::default() };
        let (volume, superblock) = Volume::open(devices.to_vec(), options)?;
        let volume = Arc::new(volume);
        let geometry = Geometry::of(&superblock);
        let store = Store::new(Arc::clone(&volume), geometry, 0);
        boot::load_chunks(&store, &superblock)?;
        let (devices, records) = (devices.to_vec(), OnceCell::new());
        let (options, places) = (check.clone(), RefCell::new(None));
        let listing = RefCell::new(None);
        Ok(Self { devices, volume, superblock, geometry, records, options, listing, places })
    }

    /// Whether every copy of every node can be written: the volume is not read-only, no metadata
    /// has parity, and each device takes writes and missed none before. A copy that stays as it was
    /// would have a right checksum, and would undo a repair when it is read.
    pub(super) fn can_write(&self) -> bool {
        let takes_all = |one: &Arc<VolumeDevice>| {
            one.device.writable() && one.trust().has_all() && !one.is_seed()
        };
        if !self.volume.devices().iter().all(takes_all) {
            return false;
        }
        self.volume.read_only_reason().is_none() && !self.volume.has_nodes_with_parity()
    }

    /// A store that keeps no nodes in memory, because edits change nodes where they lie.
    pub(super) fn store(&self) -> Store {
        Store::new(Arc::clone(&self.volume), self.geometry, 0)
    }

    /// The root of a tree, as the superblock or its root item names it.
    pub(super) fn root(&self, tree: TreeId) -> Result<NodePtr> {
        match tree {
            TreeId::ROOT => Ok(boot::root_tree_root(&self.superblock)),
            TreeId::CHUNK => Ok(boot::chunk_root(&self.superblock)),
            _ => {
                let missing = buttress_tree::Error::NoTree(tree);
                let (_, bytes) = self.root_item(tree)?.ok_or(missing)?;
                let missing = buttress_tree::Error::NoTree(tree);
                let item = RootItem::parse(&bytes).map_err(|_| missing)?;
                let (logical, generation, level) = (item.bytenr, item.generation, item.level);
                Ok(NodePtr { logical, generation, level })
            }
        }
    }

    /// The root item of a tree, with its key.
    pub(super) fn root_item(&self, tree: TreeId) -> Result<Option<(Key, Vec<u8>)>> {
        let items = self.items(TreeId::ROOT, tree.0, Kind::ROOT_ITEM)?;
        Ok(items.into_iter().next())
    }

    pub(super) fn get(&self, tree: TreeId, key: &Key) -> Result<Option<Vec<u8>>> {
        let found = Cursor::find(&self.store(), tree, self.root(tree)?, key)?;
        Ok(found.map(|(node, slot)| node.item(slot).to_vec()))
    }

    /// Every item of an object with this kind.
    pub(super) fn items(&self, tree: TreeId, object: u64, kind: Kind) -> Result<Items> {
        let first = Key::new(object, kind, 0);
        self.items_from(tree, first, |key| key.objectid == object && key.kind == kind)
    }

    /// Items from a key on, as long as `is_in` accepts their keys.
    pub(super) fn items_from(
        &self,
        tree: TreeId,
        first: Key,
        is_in: impl Fn(&Key) -> bool,
    ) -> Result<Items> {
        let mut items = Vec::new();
        let store = self.store();
        let mut cursor = Cursor::seek(&store, tree, self.root(tree)?, &first)?;
        while let Some((key, bytes)) = cursor.key().zip(cursor.item()) {
            if !is_in(&key) {
                break;
            }
            items.push((key, bytes.to_vec()));
            cursor.advance()?;
        }
        Ok(items)
    }

    /// The last key of a tree that is below `key`.
    pub(super) fn last_below(&self, tree: TreeId, key: &Key) -> Result<Option<Key>> {
        let store = self.store();
        let cursor = Cursor::seek_before(&store, tree, self.root(tree)?, key)?;
        Ok(cursor.key())
    }

    pub(super) fn entries(&self, tree: TreeId, key: &Key) -> Result<Vec<DirEntry>> {
        let bytes = self.get(tree, key)?.unwrap_or_default();
        Ok(DirEntry::parse_all(&bytes).unwrap_or_default())
    }

    /// A node below a pointer, with the checks of the tree's readers.
    pub(super) fn node(&self, tree: TreeId, expect: &buttress_tree::Expect) -> Option<Arc<Node>> {
        self.store().node(tree, expect).ok()
    }

    /// Makes edits until an edit cannot be made. Returns whether all edits were made. If not, the
    /// caller undoes the edits that were made.
    pub(super) fn make(&self, edits: &[Edit]) -> Result<bool> {
        let outcome = self.make_each(edits);
        if !matches!(outcome, Ok(true)) {
            *self.listing.borrow_mut() = None;
        }
        outcome
    }

    fn make_each(&self, edits: &[Edit]) -> Result<bool> {
        for edit in edits {
            let is_made = match edit {
                Edit::Put(tree, key, bytes) => self.edit_leaf(*tree, key, |items| {
                    match items.binary_search_by(|(other, _)| other.cmp(key)) {
                        Ok(at) => items[at].1.clone_from(bytes),
                        Err(at) => items.insert(at, (*key, bytes.clone())),
                    }
                })?,
                Edit::Remove(tree, key) => {
                    self.edit_leaf(*tree, key, |items| items.retain(|(other, _)| other != key))?
                }
                Edit::Node(ptr, bytes) => {
                    self.write_node(*ptr, bytes.clone())?;
                    true
                }
                Edit::Super(id, at, bytes) => {
                    for device in &self.devices {
                        let own = Volume::read_superblock(&**device)?.dev_item.devid.0;
                        if *id == 0 || *id == own {
                            let change = [(*at, bytes.clone())];
                            write_superblocks(&**device, &change)?;
                        }
                    }
                    true
                }
            };
            if !is_made {
                return Ok(false);
            }
            listing::follow(&mut self.listing.borrow_mut(), edit);
        }
        Ok(true)
    }

    /// Changes the leaf to which a key belongs. Returns whether the leaf, or the leaf and a new
    /// one, can hold the result.
    pub(super) fn edit_leaf(
        &self,
        tree: TreeId,
        key: &Key,
        change: impl FnOnce(&mut Items),
    ) -> Result<bool> {
        let mut path: Vec<(Arc<Node>, usize)> = Vec::new();
        let store = self.store();
        let mut node = store.root(tree, self.root(tree)?)?;
        while node.level() > 0 {
            let slot = node.child_slot(key);
            let child = store.node(tree, &node.expect_child(slot))?;
            path.push((node, slot));
            node = child;
        }
        let mut items: Items =
            (0..node.len()).map(|slot| (node.key(slot), node.item(slot).to_vec())).collect();
        change(&mut items);
        if items.is_empty() && !path.is_empty() {
            return Ok(false);
        }
        // The parents come first: a split reads them again.
        if let Some((first, _)) = items.first() {
            self.name_first(&path, first)?;
        }
        match leaf_of(node.bytes(), &items) {
            Some(bytes) => self.write_node(node.ptr(), bytes).map(|()| true),
            None => self.split_leaf(tree, &node, &items),
        }
    }

    /// Makes the parents on a path name the first key of the leaf below (ED1).
    fn name_first(&self, path: &[(Arc<Node>, usize)], first: &Key) -> Result<()> {
        for (parent, slot) in path.iter().rev() {
            if parent.key(*slot) == *first {
                break;
            }
            let mut bytes = parent.bytes().to_vec();
            first.write_to(&mut bytes[HEADER_LEN + slot * PTR_LEN..]);
            self.write_node(parent.ptr(), bytes)?;
            if *slot > 0 {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn write_node(&self, ptr: NodePtr, mut bytes: Vec<u8>) -> Result<()> {
        let digest = self.geometry.csum.digest(&bytes[32..]);
        bytes[..32].copy_from_slice(&digest);
        Ok(self.volume.write(ptr.logical, &bytes)?)
    }
}

/// The bytes of a leaf with the header of `old` and these items. `None` if they do not fit.
pub(super) fn leaf_of(old: &[u8], items: &Items) -> Option<Vec<u8>> {
    let mut bytes = old[..HEADER_LEN].to_vec();
    bytes.resize(old.len(), 0);
    let mut end = bytes.len() - HEADER_LEN;
    if items.iter().map(|(_, item)| ITEM_LEN + item.len()).sum::<usize>() > end {
        return None;
    }
    bytes[96..100].copy_from_slice(&(items.len() as u32).to_le_bytes());
    for (slot, (key, item)) in items.iter().enumerate() {
        let at = HEADER_LEN + slot * ITEM_LEN;
        end -= item.len();
        key.write_to(&mut bytes[at..]);
        bytes[at + 17..at + 21].copy_from_slice(&(end as u32).to_le_bytes());
        bytes[at + 21..at + 25].copy_from_slice(&(item.len() as u32).to_le_bytes());
        bytes[HEADER_LEN + end..HEADER_LEN + end + item.len()].copy_from_slice(item);
    }
    Some(bytes)
}
