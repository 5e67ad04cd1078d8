//! Logs of fsync of any age: the inodes that a scan finds in them.
//!
//! # How
//!
//! The nodes of all logs state the same owner. A root of logs names the subvolume of each log, and
//! pointers lead from there to the leaves. So a leaf belongs to the subvolume from which pointers
//! lead to it. Roots of logs that were overwritten since are lost.
//!
//! # Invariants
//!
//! - **OL1** A leaf is used only if pointers lead to it from the log of exactly one subvolume. If
//!   no pointer leads to a leaf, it is used only where the volume has one subvolume. Nothing of any
//!   age may tell of another one then. A place may have had several nodes in one transaction. A
//!   pointer then leads to the last of them.
//! - **OL2** The items of an inode come from one log: the newest one that has its inode item. If
//!   logs of several moments lead to other items behind the first leaf, the rest counts as lost.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use buttress_format::{Generation, Ino, InodeItem, Key, Kind, Logical, RootItem, TreeId};
use buttress_tree::{Expect, Node, NodePtr};

use crate::names::parse_refs;
use crate::salvage::Salvage;
use crate::scan::{self, FoundNode};

/// The place of a node, which tells it from all others but those of the same transaction.
type At = (Logical, Generation);

/// Folders, and the names in them.
type Names = Vec<(Ino, Vec<u8>)>;

/// Items with their keys.
type Items = Vec<(Key, Vec<u8>)>;

/// The age of an inode in a log: the transaction, the time of its last change, and its sequence.
type Age = (Generation, i64, u32, u64);

/// The newest leaf of a log that has the item of an inode.
#[derive(Clone, Copy, Debug)]
struct Newest {
    age: Age,
    leaf: At,
}

/// An inode as a log has it.
pub(crate) struct Logged {
    pub(crate) generation: Generation,
    pub(crate) items: BTreeMap<Key, Vec<u8>>,
    /// Whether a leaf that may have further items cannot be read.
    pub(crate) is_cut: bool,
}

/// The inodes in logs of any age.
#[derive(Default)]
pub(crate) struct OldLogs {
    nodes: HashMap<At, FoundNode>,
    /// The roots of the logs of subvolumes.
    roots: HashSet<At>,
    /// The nodes with a pointer to a node.
    parents: HashMap<At, Vec<At>>,
    /// The newest of each transaction.
    inodes: BTreeMap<(TreeId, Ino), BTreeMap<Generation, Newest>>,
    /// The folders and names that logs state for inodes, of the newest leaf that has any.
    names: BTreeMap<(TreeId, Ino), (Generation, Names)>,
}

impl OldLogs {
    /// Looks through all logs. `is_wanted` says of which inodes to keep something. `only` is the
    /// subvolume if there is no other one, and never was.
    pub(crate) fn find(
        salvage: &Salvage,
        only: Option<TreeId>,
        is_wanted: &dyn Fn(TreeId, Ino) -> bool,
    ) -> Self {
        let mut logs = Self::default();
        for found in salvage.scan().each().filter(|node| node.owner == TreeId::TREE_LOG) {
            logs.nodes.insert((found.logical, found.generation), *found);
        }
        let subvolumes = logs.subvolumes(salvage);
        let is_only = |id: &TreeId| subvolumes.values().flatten().all(|other| other == id);
        let only = only.filter(is_only);
        let leaves = logs.nodes.iter().filter(|(_, node)| node.level == 0);
        let mut leaves: Vec<At> = leaves.map(|(at, _)| *at).collect();
        leaves.sort_unstable();
        for leaf in leaves {
            let of = subvolumes.get(&leaf).map(|all| all.iter().copied().collect::<Vec<_>>());
            let id = match of.as_deref() {
                Some([id]) => *id,
                Some(_) => continue,
                None => match only {
                    Some(id) => id,
                    None => continue,
                },
            };
            let Some(node) = logs.read(salvage, leaf) else { continue };
            for slot in 0..node.len() {
                let key = node.key(slot);
                let ino = Ino(key.objectid);
                let is_inode = (Ino::FIRST_FREE..=Ino::LAST_FREE).contains(&ino);
                if is_inode && is_wanted(id, ino) {
                    logs.take((id, ino), leaf, &key, node.item(slot));
                }
            }
        }
        logs
    }

    /// For each node the subvolumes with a log that leads to it. Fills the parents of nodes.
    fn subvolumes(&mut self, salvage: &Salvage) -> HashMap<At, BTreeSet<TreeId>> {
        let mut all: HashMap<At, BTreeSet<TreeId>> = HashMap::new();
        let mut order: Vec<At> = self.nodes.keys().copied().collect();
        order.sort_unstable_by_key(|at| {
            let level = self.nodes.get(at).map_or(0, |node| node.level);
            (std::cmp::Reverse(level), *at)
        });
        for at in order.iter().filter(|at| self.nodes.get(at).is_some_and(|n| n.level == 0)) {
            let Some(node) = self.read(salvage, *at) else { continue };
            for slot in 0..node.len() {
                let key = node.key(slot);
                if key.objectid == TreeId::TREE_LOG.0
                    && key.kind == Kind::ROOT_ITEM
                    && let Ok(item) = RootItem::parse(node.item(slot))
                {
                    let root = (item.bytenr, item.generation);
                    self.roots.insert(root);
                    all.entry(root).or_default().insert(TreeId(key.offset));
                }
            }
        }
        for at in order {
            if self.nodes.get(&at).is_none_or(|node| node.level == 0) {
                break;
            }
            let Some(node) = self.read(salvage, at) else { continue };
            let above = all.get(&at).cloned();
            for slot in 0..node.len() {
                let Some(child) = self.child(&node, slot) else { continue };
                self.parents.entry(child).or_default().push(at);
                if let Some(above) = &above {
                    all.entry(child).or_default().extend(above);
                }
            }
        }
        all
    }

    /// The child of a node, if it is on the devices and begins where the node says.
    fn child(&self, node: &Node, slot: usize) -> Option<At> {
        let ptr: NodePtr = node.child(slot);
        let child = self.nodes.get(&(ptr.logical, ptr.generation))?;
        let is_it = child.level == ptr.level && child.first == node.key(slot);
        is_it.then_some((ptr.logical, ptr.generation))
    }

    fn take(&mut self, id: (TreeId, Ino), leaf: At, key: &Key, bytes: &[u8]) {
        match key.kind {
            Kind::INODE_ITEM => {
                // Without a generation, an item says only that the inode exists.
                let Ok(item) = InodeItem::parse(bytes) else { return };
                if item.nlink == 0 || item.generation == Generation(0) {
                    return;
                }
                let age = (leaf.1, item.ctime.sec, item.ctime.nsec, item.sequence);
                let of_inode = self.inodes.entry(id).or_default();
                let newest = of_inode.entry(leaf.1).or_insert(Newest { age, leaf });
                if newest.age < age {
                    *newest = Newest { age, leaf };
                }
            }
            Kind::INODE_REF | Kind::INODE_EXTREF => {
                let names = parse_refs(*key, bytes).into_iter();
                let names: Vec<_> = names.map(|(dir, found)| (dir, found.name)).collect();
                let known = self.names.entry(id).or_insert((leaf.1, Vec::new()));
                if known.0 <= leaf.1 {
                    *known = (leaf.1, names);
                }
            }
            _ => {}
        }
    }

    /// The inodes that have an item in some log.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = (TreeId, Ino)> + '_ {
        self.inodes.keys().copied()
    }

    /// The folder and the name of an inode.
    pub(crate) fn name_of(&self, id: (TreeId, Ino)) -> Option<(Ino, Vec<u8>)> {
        self.names.get(&id)?.1.first().cloned()
    }

    /// The transactions with a log that has an inode, the newest first.
    pub(crate) fn generations(&self, id: (TreeId, Ino)) -> Vec<Generation> {
        let all = self.inodes.get(&id).into_iter().flatten();
        all.rev().map(|(generation, _)| *generation).collect()
    }

    /// All items that the newest log has of an inode (OL2).
    pub(crate) fn newest(&self, salvage: &Salvage, id: (TreeId, Ino)) -> Option<Logged> {
        let newest = *self.inodes.get(&id)?.last_key_value()?.0;
        self.logged(salvage, id, newest)
    }

    /// All items that the last log of a transaction has of an inode.
    pub(crate) fn logged(
        &self,
        salvage: &Salvage,
        id: (TreeId, Ino),
        generation: Generation,
    ) -> Option<Logged> {
        let newest = self.inodes.get(&id)?.get(&generation)?;
        let mut logged = Logged { generation: newest.age.0, items: BTreeMap::new(), is_cut: false };
        let mut next = Some(newest.leaf);
        let mut passed = BTreeSet::new();
        while let Some(leaf) = next.take().filter(|leaf| passed.insert(*leaf)) {
            let Some((items, is_last)) = self.items(salvage, leaf, id.1) else {
                logged.is_cut = true;
                break;
            };
            logged.items.extend(items);
            if is_last {
                match self.behind(salvage, leaf, id.1) {
                    Some(found) => next = found,
                    None => logged.is_cut = true,
                }
            }
        }
        Some(logged)
    }

    /// The items of an inode in a leaf, and whether they end the leaf.
    fn items(&self, salvage: &Salvage, leaf: At, ino: Ino) -> Option<(Items, bool)> {
        let node = self.read(salvage, leaf)?;
        let own = (0..node.len()).filter(|slot| node.key(*slot).objectid == ino.0);
        let items = own.map(|slot| (node.key(slot), node.item(slot).to_vec())).collect();
        let last = node.len().checked_sub(1).map(|slot| node.key(slot).objectid);
        Some((items, last == Some(ino.0)))
    }

    /// The leaf behind a leaf, if it has items of an inode. `None` if that leaf is lost, or if
    /// logs of several moments have other items of the inode there.
    fn behind(&self, salvage: &Salvage, leaf: At, ino: Ino) -> Option<Option<At>> {
        let mut found = BTreeSet::new();
        self.all_behind(salvage, leaf, ino, &mut found)?;
        let mut leaves = found.into_iter();
        let first = leaves.next()?;
        let items = |at: Option<At>| at.map(|at| self.items(salvage, at, ino));
        let expected = items(first);
        leaves.all(|other| items(other) == expected).then_some(first)
    }

    fn all_behind(
        &self,
        salvage: &Salvage,
        at: At,
        ino: Ino,
        found: &mut BTreeSet<Option<At>>,
    ) -> Option<()> {
        if self.roots.contains(&at) {
            found.insert(None);
        }
        for above in self.parents.get(&at).into_iter().flatten() {
            let node = self.read(salvage, *above)?;
            let slot = (0..node.len()).find(|slot| self.child(&node, *slot) == Some(at))?;
            if slot + 1 == node.len() {
                self.all_behind(salvage, *above, ino, found)?;
            } else if node.key(slot + 1).objectid != ino.0 {
                found.insert(None);
            } else {
                let mut down = self.child(&node, slot + 1)?;
                while self.nodes.get(&down)?.level > 0 {
                    down = self.child(&self.read(salvage, down)?, 0)?;
                }
                found.insert(Some(down));
            }
        }
        Some(())
    }

    fn read(&self, salvage: &Salvage, at: At) -> Option<Node> {
        let found = self.nodes.get(&at)?;
        let expect = Expect::root(found.ptr());
        scan::read_copy(&salvage.devices, &salvage.geometry, found, &expect)
    }
}
