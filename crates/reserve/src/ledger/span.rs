//! Bounds the nodes that the dirty data of one inode can dirty: the leaves that hold its extents,
//! and the nodes above.
//!
//! # Invariants
//!
//! - **D1** All but two of the leaves between the first extent and the last hold only extents of
//!   this inode: items of one length. Any set of them that is dirty together is packed
//!   (`tree::L2`), since a clean leaf separates two runs. The outer two leaves become up to three
//!   each, by themselves, and take in a neighbour. The leaf of the inode item does the same.
//! - **D2** A part of the data may be finished in this transaction, and the rest in the next. Each
//!   part dirties all these leaves; the next transaction also has what this one adds to them.
//!   Leaves already dirty in this transaction are counted, as no less than their bytes fill. Two
//!   runs are excepted, because the other leaves of the tree may form them without these. Leaves
//!   that are dirty in a commit under way are freed by it, or waited for before the next freeze
//!   (I4 of `reserve::inode`).
//! - **D3** During a commit, the leaves are those that this commit makes of them: as many as these,
//!   packed, with all bytes that it adds to them (`ledger::G5`).
//! - **D4** Leaves that snapshots may share have no bound. Neither do extents in more leaves than a
//!   count is worth.

use buttress_format::{Ino, Key, Kind, TreeId};
use buttress_tree::Expect;

use super::survey::{Nodes, Survey, Unknown};
use super::tree::Tree;
use crate::View;
use crate::shares::EXTENT_ITEM;

/// Leaves that one outer leaf can become, with its neighbour: three and one (D1).
const ALONE: u64 = 4;

/// The leaves that hold an inode's extents, and the nodes above them.
pub(crate) struct Span {
    keys: (Key, Key),
    nodes: Nodes,
}

impl Span {
    /// The span of an inode in a committed tree.
    pub(crate) fn of(view: &View, tree: TreeId, ino: Ino) -> Result<Self, Unknown> {
        let root = view.committed_root(tree).map_err(|_| Unknown)?.ok_or(Unknown)?;
        let item = view.committed_root_item(tree).map_err(|_| Unknown)?.ok_or(Unknown)?;
        let key = |offset| Key::new(ino.0, Kind::EXTENT_DATA, offset);
        let keys = (key(0), key(u64::MAX));
        let unshared = Some(item.last_snapshot);
        let survey = Survey { store: view.store(), tree, keys: Some(keys), unshared };
        Ok(Self { keys, nodes: survey.under(&Expect::root(root))? })
    }

    /// The most nodes that all dirty data of the inode can dirty, besides those already noted of
    /// its tree. During a commit, `frozen` has what was noted of the frozen transaction. A path has
    /// `levels` nodes.
    pub(crate) fn nodes(
        &self,
        view: &View,
        noted: Option<&Tree>,
        frozen: Option<Option<&Tree>>,
        levels: u64,
    ) -> u64 {
        let dirty = |tree: Option<&Tree>| tree.map(|tree| tree.dirty_in(self.keys));
        let (now, then) = (dirty(noted).unwrap_or_default(), frozen.and_then(dirty));
        let then = then.unwrap_or_default();
        let geometry = view.store().geometry();
        let (room, share) = (geometry.leaf_room() as u64, geometry.ptrs_max() as u64 / 2);
        let packed = |bytes: u64| bytes / (room - EXTENT_ITEM) + 1;
        let made = |leaves: u64, bytes| 3 * ALONE + packed(leaves * room + bytes);
        let (leaves, times) = match frozen {
            None => (self.nodes.leaves, 3),
            Some(_) => (made(self.nodes.leaves, then.put), 6),
        };
        let all = |leaves: u64| leaves + leaves / share + 1 + times * (self.nodes.inner + levels);
        let (first, next) = (made(leaves, 0), made(made(leaves, now.put), 0));
        let counted = (now.weight / room).saturating_sub(2).min(first);
        all(first) - counted + all(next) - then.leaves.min(next)
    }
}
