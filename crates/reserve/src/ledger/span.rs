//! Bounds the nodes that finishing all dirty data of one inode can change: the leaves that hold its
//! extents, and the nodes above.
//!
//! # Invariants
//!
//! - **D1** The leaves from the first extent to the last are two outer leaves and the middle leaves
//!   between them. Middle leaves hold only extents of this inode, and these items have one length.
//!   The dirty middle leaves become at most as many leaves as all middle leaves would become if
//!   they were packed (`ledger::tree::L2`). A run of dirty leaves may need one extra leaf, and the
//!   clean leaf between two runs makes up for this extra leaf. Each outer leaf becomes up to three
//!   leaves by itself, and takes in a neighbour. The same holds for the leaf of the inode item.
//! - **D2** A part of the data may finish in this transaction, and the rest in the next. Each part
//!   may dirty all these leaves. In the next transaction, these leaves include the items that this
//!   transaction adds. Leaves that are already dirty in this transaction are in the ledger's count.
//!   So the leaves that the bytes of those dirty leaves fill are subtracted, except two leaves.
//!   These two leaves remain, because other dirty leaves could form up to two more runs without
//!   this inode's leaves. Leaves that are dirty in a commit under way are subtracted, too. That
//!   commit frees these leaves, or the next freeze waits for the data (`inode::I4`).
//! - **D3** During a commit, the bound counts the new leaves that this commit makes from the
//!   committed leaves. The new leaves are packed, with all bytes that the commit adds to them
//!   (`ledger::G5`).
//! - **D4** There is no bound if snapshots may share the leaves, or if there are more than
//!   `LEAVES_MAX` leaves.

use buttress_format::{Ino, Key, Kind, TreeId};
use buttress_tree::Expect;

use super::survey::{Survey, Uncountable};
use super::{EXTENT_ITEM, Ledger};
use crate::View;

/// The most leaves that an outer leaf becomes: three, and the neighbour that it takes in (D1).
const ALONE: u64 = 4;

impl Ledger {
    /// The most nodes that all dirty data of an inode can dirty, without the nodes that are already
    /// noted here. During a commit, `frozen` is the ledger of the frozen transaction. A path has
    /// `levels` nodes.
    pub(crate) fn nodes_of_inode(
        &self,
        view: &View,
        (tree, ino): (TreeId, Ino),
        frozen: Option<&Self>,
        levels: u64,
    ) -> Result<u64, Uncountable> {
        let root = view.committed_root(tree).map_err(|_| Uncountable)?.ok_or(Uncountable)?;
        let item = view.committed_root_item(tree).map_err(|_| Uncountable)?.ok_or(Uncountable)?;
        let key = |offset| Key::new(ino.0, Kind::EXTENT_DATA, offset);
        let keys = (key(0), key(u64::MAX));
        let unshared = Some(item.last_snapshot);
        let survey = Survey { store: view.store(), tree, keys: Some(keys), unshared };
        let nodes = survey.under(&Expect::root(root))?;
        let dirty_in = |of: &Self| of.trees.get(&tree).map(|tree| tree.dirty_in(keys));
        let now = dirty_in(self).unwrap_or_default();
        let then = frozen.and_then(dirty_in).unwrap_or_default();
        let geometry = view.store().geometry();
        let (room, share) = (geometry.leaf_room() as u64, geometry.ptrs_max() as u64 / 2);
        let packed = |bytes: u64| bytes / (room - EXTENT_ITEM) + 1;
        let made = |leaves: u64, bytes| 3 * ALONE + packed(leaves * room + bytes);
        let (leaves, times) = match frozen {
            None => (nodes.leaves, 3),
            Some(_) => (made(nodes.leaves, then.put), 6),
        };
        let all = |leaves: u64| leaves + leaves / share + 1 + times * (nodes.inner + levels);
        let (first, next) = (made(leaves, 0), made(made(leaves, now.put), 0));
        let counted = (now.weight / room).saturating_sub(2).min(first);
        Ok(all(first) - counted + all(next) - then.leaves.min(next))
    }
}
