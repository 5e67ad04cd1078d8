//! Reading a log of fsync that was found at opening, and claiming what it uses.
//!
//! # Invariants
//!
//! - **J2** Nothing that a log found at opening names is overwritten before the commit that makes
//!   its content part of the trees is durable. Its nodes and data are claimed before anything is
//!   allocated.
//!
//! # Failure
//!
//! Replay puts everything into one transaction. A crash before its superblock is durable leaves the
//! log as it was, to be replayed again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::sync::Mutex;
use buttress_format::{Extent, Generation, Key, Kind, Logical, RootItem, Superblock, TreeId};
use buttress_space::{Outcome, SpaceKind};
use buttress_tree::{Cursor, Expect, NodePtr, NodeSource, Payload, Store};

use crate::{Engine, Error, Result, View};

/// The log of one subvolume.
#[derive(Clone, Debug)]
pub struct SubvolumeLog {
    /// The subvolume, which may be gone.
    pub tree: TreeId,
    /// Every item.
    pub items: BTreeMap<Key, Payload>,
}

/// A whole log.
pub(crate) struct Found {
    pub(crate) logs: Vec<SubvolumeLog>,
    pub(crate) nodes: Vec<Logical>,
}

/// Reads the log that a superblock names.
pub(crate) fn read(store: &Store, sb: &Superblock) -> Result<Found> {
    let mut nodes = Vec::new();
    let root = NodePtr {
        logical: sb.log_root,
        generation: sb.generation.next(),
        level: sb.log_root_level,
    };
    let mut roots = BTreeMap::new();
    walk(store, &Expect::root(root), &mut nodes, &mut roots)?;
    let mut logs = Vec::new();
    for (key, item) in roots {
        if key.objectid != TreeId::TREE_LOG.0 || key.kind != Kind::ROOT_ITEM {
            continue;
        }
        let item = RootItem::parse(&item).map_err(|source| Error::Item {
            tree: TreeId::TREE_LOG,
            key,
            source,
        })?;
        let root = NodePtr { logical: item.bytenr, generation: item.generation, level: item.level };
        let mut items = BTreeMap::new();
        walk(store, &Expect::root(root), &mut nodes, &mut items)?;
        logs.push(SubvolumeLog { tree: TreeId(key.offset), items });
    }
    Ok(Found { logs, nodes })
}

/// Every item under a node. Ends on a damaged log too: levels fall, and no two children have the same keys.
fn walk(
    store: &Store,
    at: &Expect,
    nodes: &mut Vec<Logical>,
    items: &mut BTreeMap<Key, Payload>,
) -> Result<()> {
    let node = store.node(TreeId::TREE_LOG, at)?;
    nodes.push(node.logical());
    for slot in 0..node.len() {
        if node.level() == 0 {
            items.insert(node.key(slot), node.item(slot).into());
        } else {
            walk(store, &node.expect_child_below(slot, at.below), nodes, items)?;
        }
    }
    Ok(())
}

/// A log that was found at opening, until it is taken to be replayed.
#[derive(Debug, Default)]
pub(crate) struct FoundLog {
    waits: AtomicBool,
    /// Unranked: nothing else is taken under it, and it is used twice in a session.
    logs: Mutex<Option<Vec<SubvolumeLog>>>,
}

impl FoundLog {
    /// Whether there is one that was not taken yet.
    pub(crate) fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    fn put(&self, logs: Vec<SubvolumeLog>) {
        self.waits.store(true, Ordering::Relaxed);
        *self.logs.lock() = Some(logs);
    }

    fn take(&self) -> Option<Vec<SubvolumeLog>> {
        let found = self.logs.lock().take();
        self.waits.store(false, Ordering::Relaxed);
        found
    }
}

impl Engine {
    /// Takes the log that was found when the volume was opened. The caller puts its content into
    /// the running transaction and commits, with no other work: until then no other commit may be
    /// made.
    #[must_use]
    pub fn take_log(&self) -> Option<Vec<SubvolumeLog>> {
        self.found_log.take()
    }

    /// Claims the nodes of a log, so that the commit which ends it does not write over them (J2).
    pub(crate) fn claim_log(&self, found: Found) -> Result<()> {
        let len = u64::from(self.store.geometry().nodesize);
        for start in found.nodes {
            let extent = Extent { start, len };
            self.claim(SpaceKind::Metadata, extent)?;
            self.log_space.add(extent);
        }
        self.found_log.put(found.logs);
        Ok(())
    }

    fn claim(&self, kind: SpaceKind, extent: Extent) -> Result<()> {
        loop {
            match self.space.claim(kind, extent)? {
                Outcome::NeedsLoading(group) => self.load_group(&group)?,
                Outcome::Got(_) | Outcome::Full { .. } => return Ok(()),
            }
        }
    }

    /// Sees to it that a data extent which a log names can be referenced: one that the trees do not know is
    /// taken from free space (J2).
    ///
    /// # Errors
    ///
    /// When it overlaps what is in use.
    pub fn claim_logged(&self, view: &View, extent: Extent) -> Result<()> {
        if let Some(same) = view.running().refs.look(extent.start, |to| to.extent == extent) {
            let what = "a log names a part of an extent";
            return if same { Ok(()) } else { Err(Error::Extents { at: extent.start, what }) };
        }
        let root = view
            .committed_root(TreeId::EXTENT)?
            .ok_or_else(|| Error::Malformed("there is no extent tree".into()))?;
        let key = Key::new(extent.start.0, Kind::EXTENT_ITEM, extent.len);
        if Cursor::find(&**view.store(), TreeId::EXTENT, root, &key)?.is_some() {
            return Ok(());
        }
        self.claim(SpaceKind::Data, extent)?;
        self.unborn.insert(extent.start);
        Ok(())
    }
}

/// Whether a superblock names a log.
pub(crate) fn has_log(sb: &Superblock) -> bool {
    sb.log_root != Logical(0)
}

/// Takes a log out of a superblock.
pub(crate) fn without_log(sb: &mut Superblock) {
    sb.log_root = Logical(0);
    sb.log_root_level = 0;
    sb.log_root_transid = Generation(0).0;
}
