//! Reads a log of fsync that was found at opening, and claims its nodes and data.
//!
//! # Invariants
//!
//! - **J2** A log that was found at the opening names nodes and data. No part of these nodes and
//!   data is overwritten before the commit with the log's content is durable. For this, the nodes
//!   and the data are claimed before anything is allocated.
//!
//! # Failure
//!
//! Replay puts everything into one transaction. A crash before the superblock of that transaction
//! is durable leaves the log as it was, to be replayed again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::sync::Mutex;
use buttress_format::{Generation, Key, Kind, Logical, RootItem, Superblock, TreeId};
use buttress_tree::{Expect, NodePtr, NodeSource, Payload, Store};

use crate::{Error, Result};

/// The log of one subvolume.
#[derive(Clone, Debug)]
pub struct SubvolumeLog {
    /// The subvolume, which may be gone.
    pub tree: TreeId,
    /// Every item.
    pub items: BTreeMap<Key, Payload>,
}

/// A whole log.
pub(crate) struct WholeLog {
    pub(crate) logs: Vec<SubvolumeLog>,
    pub(crate) nodes: Vec<Logical>,
}

/// Reads the log that a superblock names.
pub(crate) fn read(store: &Store, sb: &Superblock) -> Result<WholeLog> {
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
    Ok(WholeLog { logs, nodes })
}

/// Collects every item under a node. The walk ends on a damaged log, too, because each child has a
/// lower level, and no two children have the same keys.
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
    /// Unranked: no lock is taken under it. Each session takes this lock only twice.
    logs: Mutex<Option<Vec<SubvolumeLog>>>,
}

impl FoundLog {
    /// Whether a log was found and not yet taken.
    pub(crate) fn is_pending(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    pub(crate) fn put(&self, logs: Vec<SubvolumeLog>) {
        self.waits.store(true, Ordering::Relaxed);
        *self.logs.lock() = Some(logs);
    }

    pub(crate) fn take(&self) -> Option<Vec<SubvolumeLog>> {
        let found = self.logs.lock().take();
        self.waits.store(false, Ordering::Relaxed);
        found
    }
}

/// Whether a superblock names a log.
pub(crate) fn has_log(sb: &Superblock) -> bool {
    sb.log_root != Logical(0)
}

/// Removes the log from a superblock.
pub(crate) fn without_log(sb: &mut Superblock) {
    sb.log_root = Logical(0);
    sb.log_root_level = 0;
    sb.log_root_transid = Generation(0).0;
}
