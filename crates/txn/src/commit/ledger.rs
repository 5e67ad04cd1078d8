//! Addresses that a commit's merges take and give, until they are settled in the extent tree.
//!
//! # Invariants
//!
//! - **L1** Every address taken is either used by a node in the end, or given back.
//! - **L2** An address whose item is already in the working extent tree is free to others only after
//!   that item is out again: one round later.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::Ordering,
};

use buttress_format::{Extent, Generation, Logical, TreeId, header::FLAG_RELOC};
use buttress_space::{AllocRequest, Outcome, SpaceKind};
use buttress_tree::{Node, NodeAlloc, NodePtr};

use super::sharing::{Left, Sharing};
use crate::{Engine, Result, transaction::Transaction};

/// What became of an address since the last round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// A new node needs an item.
    Born { tree: TreeId, level: u8 },
    /// A committed node lost its last user.
    Retired { level: u8 },
    /// A node of this transaction, already in the working extent tree, is not needed after all.
    Cancelled { level: u8 },
}

pub(super) struct Ledger<'e> {
    engine: &'e Engine,
    transaction: &'e Transaction,
    moves: BTreeMap<Logical, Move>,
    /// Change of each tree's node count.
    pub(super) node_delta: BTreeMap<TreeId, i64>,
    /// Nodes and data of subvolumes that may have several users.
    pub(super) sharing: Sharing,
    last_snapshots: HashMap<TreeId, Generation>,
}

impl<'e> Ledger<'e> {
    pub(super) fn new(
        engine: &'e Engine,
        transaction: &'e Transaction,
        extent_root: NodePtr,
    ) -> Self {
        Self {
            engine,
            transaction,
            moves: BTreeMap::new(),
            node_delta: BTreeMap::new(),
            sharing: Sharing::new(extent_root),
            last_snapshots: HashMap::new(),
        }
    }

    pub(super) fn take_moves(&mut self) -> BTreeMap<Logical, Move> {
        std::mem::take(&mut self.moves)
    }

    pub(super) fn is_settled(&self) -> bool {
        self.moves.is_empty()
    }

    /// Nodes of a tree up to this generation may be shared.
    fn last_snapshot(&mut self, tree: TreeId) -> Result<Generation> {
        if let Some(known) = self.last_snapshots.get(&tree) {
            return Ok(*known);
        }
        let item = self.engine.view.load().committed_root_item(tree)?;
        let generation = item.map_or(Generation(0), |item| item.last_snapshot);
        self.last_snapshots.insert(tree, generation);
        Ok(generation)
    }

    /// Whether a node was made in this transaction, so that it has no extent item yet.
    pub(super) fn is_born(&self, at: Logical) -> bool {
        matches!(self.moves.get(&at), Some(Move::Born { .. }))
    }

    /// A tree leaves a node that others may use, too.
    fn leave(&mut self, tree: TreeId, node: &Node) -> Result<bool> {
        let at = node.logical();
        let born = self.is_born(at);
        let state = self.sharing.state(&self.engine.store, at, node.level(), born)?;
        let left = self.sharing.leave(tree, node, state)?;
        if left == Left::Gone && born {
            self.unmake(at);
        }
        Ok(left == Left::Gone)
    }

    /// A node of this transaction lost its last user before it had an item.
    pub(super) fn unmake(&mut self, at: Logical) {
        self.moves.remove(&at);
        self.sharing.blocks.remove(&at);
        self.engine.space.free(Extent { start: at, len: self.nodesize() });
    }

    fn nodesize(&self) -> u64 {
        u64::from(self.engine.store.geometry().nodesize)
    }
}

impl NodeAlloc for Ledger<'_> {
    fn allocate(&mut self, tree: TreeId, level: u8) -> buttress_tree::Result<Logical> {
        let kind = if tree == TreeId::CHUNK { SpaceKind::System } else { SpaceKind::Metadata };
        let size = self.nodesize();
        let request = AllocRequest {
            kind,
            want: size,
            min: size,
            align: size,
            goal: None,
            limit: self.transaction.generation,
            stream: 0,
        };
        let above = |e: crate::Error| buttress_tree::Error::Above(e.to_string());
        loop {
            match self.engine.space.allocate(request) {
                Outcome::Got(extent) => {
                    self.engine.space.commit_used(extent);
                    self.engine.frozen_taken.fetch_add(size, Ordering::Relaxed);
                    self.moves.insert(extent.start, Move::Born { tree, level });
                    *self.node_delta.entry(tree).or_default() += 1;
                    return Ok(extent.start);
                }
                Outcome::NeedsLoading(group) => {
                    self.engine.load_group(&group).map_err(above)?;
                }
                Outcome::Full { .. } => {
                    if !self.engine.add_chunk_to(self.transaction, kind).map_err(above)? {
                        return Err(buttress_tree::Error::NoSpace);
                    }
                }
            }
        }
    }

    fn retire(&mut self, tree: TreeId, node: &Node) -> buttress_tree::Result<bool> {
        let above = |e: crate::Error| buttress_tree::Error::Above(e.to_string());
        let at = node.logical();
        let generation = node.header().generation;
        *self.node_delta.entry(tree).or_default() -= 1;
        if generation >= self.transaction.generation && !self.is_born(at) {
            return Err(buttress_tree::Error::Above(format!(
                "node {at} says it is of this transaction, but was not born in it"
            )));
        }
        if tree.is_fs_tree()
            && (generation <= self.last_snapshot(tree).map_err(above)?
                || node.header().flags & FLAG_RELOC != 0)
        {
            return self.leave(tree, node).map_err(above);
        }
        self.moves.insert(at, Move::Retired { level: node.level() });
        Ok(true)
    }

    fn cancel(&mut self, tree: TreeId, at: Logical, level: u8) -> buttress_tree::Result<()> {
        *self.node_delta.entry(tree).or_default() -= 1;
        match self.moves.remove(&at) {
            // Its item was never made: the address is free at once.
            Some(Move::Born { .. }) => {
                self.engine.space.free(Extent { start: at, len: self.nodesize() });
            }
            Some(other) => {
                return Err(buttress_tree::Error::Above(format!("{at} given back as {other:?}")));
            }
            None => {
                self.moves.insert(at, Move::Cancelled { level });
            }
        }
        Ok(())
    }
}
