//! How many nodes the dirty data of one inode can dirty: those of the leaves that its extents lie
//! in.
//!
//! # Invariants
//!
//! - **D1** Of the leaves between its first extent and its last, all but two have nothing but
//!   extents of this inode: items of one length. Dirty together they are packed (`tree::L2`),
//!   whichever of them are: between two runs lies one that is not. The outer two become three
//!   each, by themselves, and take in a neighbour; so does the leaf of the inode's item.
//! - **D2** A part of the data may be finished in this transaction, and the rest in the next.
//!   Either dirties all of them, in the next with what this one adds to them. What is dirty of them
//!   in this one is counted already: no less than its bytes fill. Two runs are excepted, which the
//!   others of its tree may become without it. What is dirty of them in a commit under way comes
//!   back from it, or is waited for before the next freezes (I4 of `reserve::inode`).
//! - **D3** Beside a commit under way its leaves are what that one makes of them: as many as these,
//!   packed, with all bytes that it adds to them (`ledger::G5`).
//! - **D4** What may be shared with snapshots has no bound. Neither has what lies in too many
//!   leaves to be worth a count.

use buttress_format::{Ino, Key, Kind, TreeId};
use buttress_tree::Expect;

use super::survey::{Nodes, Survey, Unknown};
use super::tree::Tree;
use crate::View;
use crate::shares::EXTENT_ITEM;

/// Three, and a neighbour (D1).
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

    /// Nodes that all dirty data of the inode can dirty at most, beside what was noted of its tree
    /// already. `frozen` is there while a commit is under way: what was noted of that. A path has
    /// so many levels.
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
