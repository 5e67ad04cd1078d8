//! The state of a volume at one transaction: its trees, and the names of subvolumes.

use std::collections::BTreeMap;

use buttress_format::{Generation, Ino, Key, Kind, Logical, RootItem, RootRef, TreeId};
use buttress_tree::{NodePtr, boot};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::extents::Extents;
use crate::log::Log;
use crate::salvage::Salvage;
use crate::tree::Leaves;

/// The source of a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The root that the superblock names.
    Newest,
    /// One of the backup roots in the superblock.
    Backup,
    /// A node that a scan found.
    Scan,
    /// Without a root tree, the root of each tree was found in the scan.
    Nodes,
}

/// A root that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RootInfo {
    /// The transaction.
    pub generation: u64,
    /// Logical address of the root tree's root node.
    pub address: u64,
    /// Its level.
    pub level: u8,
    /// The source of the root.
    pub origin: Origin,
    /// Whether the node can be read.
    pub readable: bool,
    /// The number of subvolumes in the root tree, and the number of those with a readable root.
    pub subvolumes: (u64, u64),
}

/// A file tree or another tree, with its root item if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) root: NodePtr,
    pub(crate) item: Option<RootItem>,
}

/// The directory and name of a subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) parent: TreeId,
    pub(crate) dir: Ino,
    pub(crate) name: Vec<u8>,
}

/// One moment of a volume.
#[derive(Debug)]
pub struct State {
    /// The transaction.
    pub generation: Generation,
    /// The source of the root tree's root.
    pub origin: Origin,
    pub(crate) trees: BTreeMap<TreeId, Tree>,
    pub(crate) places: BTreeMap<TreeId, Place>,
    pub(crate) extents: Option<Extents>,
    /// What the log of fsync changes.
    pub(crate) log: Log,
    /// The problems of the root tree.
    pub notes: Vec<String>,
}

impl State {
    /// Lists the available roots, newest first. The devices are scanned for older roots.
    #[must_use]
    pub fn list(salvage: &Salvage) -> Vec<RootInfo> {
        let mut roots = named(salvage);
        let mut tops: BTreeMap<Generation, NodePtr> = BTreeMap::new();
        for node in salvage.scan().each().filter(|node| node.owner == TreeId::ROOT) {
            let top = tops.entry(node.generation).or_insert(node.ptr());
            if node.level > top.level {
                *top = node.ptr();
            }
        }
        let known: Vec<NodePtr> = roots.iter().map(|(ptr, _)| *ptr).collect();
        let scanned = tops.into_values().filter(|ptr| !known.contains(ptr));
        roots.extend(scanned.map(|ptr| (ptr, Origin::Scan)));
        roots.sort_by_key(|(ptr, origin)| (std::cmp::Reverse(ptr.generation), *origin as u8));
        roots.into_iter().map(|(ptr, origin)| info(salvage, ptr, origin)).collect()
    }

    /// The newest state that can be read.
    ///
    /// # Errors
    ///
    /// When no tree of files can be read at all.
    pub fn newest(salvage: &Salvage) -> Result<Self> {
        let newest = boot::root_tree_root(salvage.superblock());
        let state = Self::at(salvage, newest, Origin::Newest);
        if !state.is_without_root {
            return Ok(state.state);
        }
        // Even without the root tree, the trees of the superblock's transaction may still be on the
        // devices.
        let by_nodes = state.state;
        if by_nodes.trees.get(&TreeId::FS).is_some_and(|tree| can_read(salvage, TreeId::FS, tree)) {
            return Ok(by_nodes);
        }
        for (ptr, origin) in named(salvage).into_iter().skip(1) {
            let older = Self::at(salvage, ptr, origin);
            if !older.is_without_root && older.state.has_files(salvage) {
                return Ok(older.state);
            }
        }
        let mut scanned: Vec<RootInfo> = Self::list(salvage);
        scanned.retain(|root| root.readable && root.origin == Origin::Scan);
        for root in scanned {
            if let Ok(older) = Self::of(salvage, root.generation)
                && older.has_files(salvage)
            {
                return Ok(older);
            }
        }
        if by_nodes.has_files(salvage) { Ok(by_nodes) } else { Err(Error::NoFiles) }
    }

    /// The state of a generation, or of the root at an address.
    ///
    /// # Errors
    ///
    /// When there is no such root.
    pub fn of(salvage: &Salvage, number: u64) -> Result<Self> {
        let roots = Self::list(salvage);
        let of_generation = roots.iter().find(|root| root.generation == number);
        let root = of_generation.or_else(|| roots.iter().find(|root| root.address == number));
        let root = root.ok_or(Error::NoRoot(number))?;
        let ptr = NodePtr {
            logical: Logical(root.address),
            generation: Generation(root.generation),
            level: root.level,
        };
        Ok(Self::at(salvage, ptr, root.origin).state)
    }

    /// Uses the node at an address as the root of the tree that owns it, and returns that tree.
    ///
    /// # Errors
    ///
    /// When no valid node of a subvolume lies at the address.
    pub fn use_tree_at(&mut self, salvage: &Salvage, address: u64) -> Result<TreeId> {
        let found = salvage.scan().each().find(|node| node.logical == Logical(address));
        let node = found.filter(|node| node.owner.is_fs_tree()).ok_or(Error::NoTree(address))?;
        let (id, root) = (node.owner, node.ptr());
        let item = self.trees.get(&id).and_then(|tree| tree.item);
        self.trees.insert(id, Tree { root, item });
        Ok(id)
    }

    /// Replays the log of fsync in memory, as a mount for writing does on the devices. Only the
    /// newest state has a log. What was found is said in the notes.
    pub fn replay_log(&mut self, salvage: &Salvage) {
        let superblock = salvage.superblock();
        if superblock.log_root != Logical(0) && self.generation == superblock.generation {
            let walk = |id: TreeId| {
                let tree = self.trees.get(&id).filter(|_| id.is_fs_tree())?;
                Some(Leaves::walk(salvage, id, tree.root, self.extents.as_ref()))
            };
            self.log = Log::read(salvage, &walk);
            self.notes.append(&mut self.log.notes);
        }
    }

    fn has_files(&self, salvage: &Salvage) -> bool {
        let mut trees = self.trees.iter().filter(|(id, _)| id.is_fs_tree());
        trees.any(|(id, tree)| can_read(salvage, *id, tree))
    }

    /// Reads the root tree. Trees in lost parts are taken from the superblock's backup of the same
    /// transaction, or else from scanned nodes.
    fn at(salvage: &Salvage, root: NodePtr, origin: Origin) -> Found {
        let mut state = Self {
            generation: root.generation,
            origin,
            trees: BTreeMap::new(),
            places: BTreeMap::new(),
            extents: None,
            log: Log::default(),
            notes: Vec::new(),
        };
        let leaves = Leaves::walk(salvage, TreeId::ROOT, root, None);
        let mut gaps = state.read(salvage, &leaves);
        let is_without_root = state.trees.is_empty();
        if !gaps.is_empty() {
            state.use_backup(salvage);
            state.open_extents(salvage);
            if state.extents.is_some() {
                let leaves = Leaves::walk(salvage, TreeId::ROOT, root, state.extents.as_ref());
                gaps = state.read(salvage, &leaves);
            }
            for gap in &gaps {
                state.notes.push(format!("a part of the root tree is lost: {}", gap.why));
            }
            if !gaps.is_empty() {
                state.find_trees(salvage);
            }
            if is_without_root {
                state.origin = Origin::Nodes;
            }
        }
        if state.extents.is_none() {
            state.open_extents(salvage);
        }
        Found { state, is_without_root }
    }

    fn read(&mut self, salvage: &Salvage, leaves: &Leaves) -> crate::tree::Gaps {
        leaves.all(salvage, &mut |key, bytes| match key.kind {
            Kind::ROOT_ITEM => {
                let Ok(item) = RootItem::parse(bytes) else { return };
                let root = NodePtr {
                    logical: item.bytenr,
                    generation: item.generation,
                    level: item.level,
                };
                self.trees.insert(TreeId(key.objectid), Tree { root, item: Some(item) });
            }
            Kind::ROOT_REF => self.place(key.objectid, key.offset, bytes),
            Kind::ROOT_BACKREF => self.place(key.offset, key.objectid, bytes),
            _ => {}
        })
    }

    fn place(&mut self, parent: u64, child: u64, bytes: &[u8]) {
        if let Ok(found) = RootRef::parse(bytes) {
            let place = Place { parent: TreeId(parent), dir: found.dirid, name: found.name };
            self.places.insert(TreeId(child), place);
        }
    }

    /// Adds the trees of a superblock backup.
    fn use_backup(&mut self, salvage: &Salvage) {
        let backups = boot::backups(salvage.superblock());
        let Some(backup) = backups.iter().find(|backup| backup.tree_root_gen == self.generation)
        else {
            return;
        };
        let fields = [
            (TreeId::EXTENT, backup.extent_root, backup.extent_root_gen, backup.extent_root_level),
            (TreeId::FS, backup.fs_root, backup.fs_root_gen, backup.fs_root_level),
            (TreeId::DEV, backup.dev_root, backup.dev_root_gen, backup.dev_root_level),
            (TreeId::CSUM, backup.csum_root, backup.csum_root_gen, backup.csum_root_level),
        ];
        for (id, logical, generation, level) in fields {
            if logical.0 != 0 {
                let root = NodePtr { logical, generation, level };
                self.trees.entry(id).or_insert(Tree { root, item: None });
            }
        }
    }

    fn open_extents(&mut self, salvage: &Salvage) {
        self.extents = self.trees.get(&TreeId::EXTENT).and_then(|tree| {
            can_read(salvage, TreeId::EXTENT, tree).then(|| Extents::new(salvage, tree.root))
        });
    }

    /// Searches the scanned nodes for roots of trees in use.
    fn find_trees(&mut self, salvage: &Salvage) {
        let mut tops: BTreeMap<TreeId, NodePtr> = BTreeMap::new();
        for node in salvage.scan().each().filter(|node| node.generation <= self.generation) {
            let is_wanted = node.owner.is_fs_tree() || node.owner == TreeId::CSUM;
            if !is_wanted || self.trees.contains_key(&node.owner) {
                continue;
            }
            // A deleted subvolume may have nodes on the devices, too, but none of them is in use.
            if let Some(extents) = &self.extents
                && extents.block(salvage, node.logical) != Some(node.generation)
            {
                continue;
            }
            let top = tops.entry(node.owner).or_insert(node.ptr());
            let better = match self.extents {
                Some(_) => (node.level, node.generation) > (top.level, top.generation),
                None => (node.generation, node.level) > (top.generation, top.level),
            };
            if better {
                *top = node.ptr();
            }
        }
        for (id, root) in tops {
            self.notes.push(format!("the root of tree {id} was found by its nodes"));
            self.trees.insert(id, Tree { root, item: None });
        }
    }
}

struct Found {
    state: State,
    /// Whether no part of the root tree could be read.
    is_without_root: bool,
}

/// The root that the superblock names, and its backups.
fn named(salvage: &Salvage) -> Vec<(NodePtr, Origin)> {
    let superblock = salvage.superblock();
    let mut roots = vec![(boot::root_tree_root(superblock), Origin::Newest)];
    for backup in boot::backups(superblock) {
        let ptr = NodePtr {
            logical: backup.tree_root,
            generation: backup.tree_root_gen,
            level: backup.tree_root_level,
        };
        if roots.iter().all(|(known, _)| *known != ptr) {
            roots.push((ptr, Origin::Backup));
        }
    }
    roots
}

fn can_read(salvage: &Salvage, id: TreeId, tree: &Tree) -> bool {
    salvage.node(id, &buttress_tree::Expect::root(tree.root)).is_ok()
}

fn info(salvage: &Salvage, ptr: NodePtr, origin: Origin) -> RootInfo {
    let leaves = Leaves::walk(salvage, TreeId::ROOT, ptr, None);
    let mut subvolumes = BTreeMap::new();
    let gaps = leaves.all(salvage, &mut |key: Key, bytes| {
        if key.kind == Kind::ROOT_ITEM
            && TreeId(key.objectid).is_fs_tree()
            && let Ok(item) = RootItem::parse(bytes)
        {
            let root =
                NodePtr { logical: item.bytenr, generation: item.generation, level: item.level };
            subvolumes.insert(TreeId(key.objectid), Tree { root, item: Some(item) });
        }
    });
    let good = subvolumes.iter().filter(|(id, tree)| can_read(salvage, **id, tree)).count();
    RootInfo {
        generation: ptr.generation.0,
        address: ptr.logical.0,
        level: ptr.level,
        origin,
        readable: gaps.is_empty() || !subvolumes.is_empty(),
        subvolumes: (subvolumes.len() as u64, good as u64),
    }
}
