//! Addresses that a commit's merges allocate and free, until a round settles them in the extent
//! tree.
//!
//! # Invariants
//!
//! - **L1** Every address that was allocated is in the end used by a node, or freed.
//! - **L2** If a freed address has an item in the working extent tree, the next round deletes the
//!   item. After that, the address of a node of this transaction is free, and the address of a
//!   committed node is pinned.

use std::collections::{BTreeMap, HashMap};

use buttress_format::{Extent, Generation, Logical, TreeId, header::FLAG_RELOC};
use buttress_space::SpaceKind;
use buttress_tree::{Node, NodeAlloc, NodePtr};

use super::cluster::Cluster;
use super::owners::Owners;
use super::sharing::{NodeUse, Sharing, State};
use super::trail::Trail;
use crate::{Error, Result, extent_tree::Origin, transaction::Transaction};

/// The change of an address since the last round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressChange {
    /// A new node needs an item.
    New { tree: TreeId, level: u8 },
    /// A committed node lost its last user.
    Retired { level: u8 },
    /// A node of this transaction, already in the working extent tree, is not needed after all.
    Cancelled { level: u8 },
}

pub(super) struct Addresses<'e> {
    owners: Owners<'e>,
    transaction: &'e Transaction,
    /// Places for nodes of the chunk tree. `metadata` has the places for nodes of all other trees.
    system: Cluster<'e>,
    metadata: Cluster<'e>,
    changes: BTreeMap<Logical, AddressChange>,
    /// Change of each tree's node count.
    pub(super) node_delta: BTreeMap<TreeId, i64>,
    /// Nodes and data of subvolumes that may have several users.
    pub(super) sharing: Sharing,
    last_snapshots: HashMap<TreeId, Generation>,
    /// For each node that a tree stopped using, the tree and the transaction that made the node.
    /// `None` without simple quotas.
    makers: Option<HashMap<Logical, Origin>>,
    /// The nodes and data that subvolumes gain and lose. `None` unless full quotas are counted.
    pub(super) trail: Option<Box<Trail<'e>>>,
}

impl<'e> Addresses<'e> {
    pub(super) fn new(
        owners: Owners<'e>,
        transaction: &'e Transaction,
        extent_root: NodePtr,
        keep_makers: bool,
    ) -> Self {
        Self {
            owners,
            transaction,
            system: Cluster::new(owners, SpaceKind::System, transaction.generation),
            metadata: Cluster::new(owners, SpaceKind::Metadata, transaction.generation),
            changes: BTreeMap::new(),
            node_delta: BTreeMap::new(),
            sharing: Sharing::new(extent_root),
            last_snapshots: HashMap::new(),
            makers: keep_makers.then(HashMap::new),
            trail: None,
        }
    }

    /// The tree and the transaction that made a node, if some tree stopped using the node in this
    /// commit.
    pub(super) fn maker(&self, at: Logical) -> Option<Origin> {
        self.makers.as_ref()?.get(&at).copied()
    }

    /// The addresses that changed since the last round, each with its change.
    pub(super) fn changes(&self) -> impl Iterator<Item = (Logical, AddressChange)> + '_ {
        self.changes.iter().map(|(at, change)| (*at, *change))
    }

    pub(super) fn take_changes(&mut self) -> BTreeMap<Logical, AddressChange> {
        std::mem::take(&mut self.changes)
    }

    pub(super) fn is_settled(&self) -> bool {
        self.changes.is_empty()
    }

    /// Records that nodes of a tree up to this generation may be shared.
    pub(super) fn set_last_snapshot(&mut self, tree: TreeId, generation: Generation) {
        self.last_snapshots.insert(tree, generation);
    }

    /// The generation up to which nodes of a tree may be shared.
    fn last_snapshot(&mut self, tree: TreeId) -> Result<Generation> {
        if let Some(known) = self.last_snapshots.get(&tree) {
            return Ok(*known);
        }
        let item = self.owners.commits.peek().committed_root_item(tree)?;
        let generation = item.map_or(Generation(0), |item| item.last_snapshot);
        self.last_snapshots.insert(tree, generation);
        Ok(generation)
    }

    /// Ends the allocation of nodes and frees the rest of each run.
    pub(super) fn close(&mut self) {
        self.system.close();
        self.metadata.close();
    }

    /// Bytes of metadata that were taken for nodes.
    pub(super) fn taken(&self) -> u64 {
        self.metadata.taken()
    }

    /// Whether a node was made in this transaction, so that it has no extent item yet.
    pub(super) fn is_born(&self, at: Logical) -> bool {
        matches!(self.changes.get(&at), Some(AddressChange::New { .. }))
    }

    /// Notes that a node moved to another address with its owner and its users. The copy was
    /// counted as a new node of the owner, so one node is subtracted.
    pub(super) fn moved(&mut self, node: &Node) {
        *self.node_delta.entry(node.owner()).or_default() -= 1;
        if let Some(makers) = &mut self.makers {
            let generation = node.header().generation;
            makers.insert(node.logical(), Origin { owner: Some(node.owner()), generation });
        }
    }

    /// The users of a node of `tree`. `None` if no other tree can use the node; then the node's
    /// item is not read.
    pub(super) fn state(&mut self, tree: TreeId, node: &Node) -> Result<Option<State>> {
        let generation = node.header().generation;
        let moved = node.header().flags & FLAG_RELOC != 0;
        // An interrupted balance may leave a tree behind. All nodes of such a tree may also belong
        // to a subvolume.
        let is_leftover = tree == TreeId::TREE_RELOC;
        if !is_leftover && (!tree.is_fs_tree() || generation > self.last_snapshot(tree)? && !moved)
        {
            return Ok(None);
        }
        let (at, level) = (node.logical(), node.level());
        let born = self.is_born(at);
        self.sharing.state(self.owners.storage.store(), at, level, born).map(Some)
    }

    /// Notes that a tree stops using a node. Next, the caller takes the node's entries from slot
    /// `from` on. The caller moves the entries to new nodes of the tree, or drops them.
    pub(super) fn stop_using(&mut self, tree: TreeId, node: &Node, from: usize) -> Result<NodeUse> {
        let at = node.logical();
        let born = self.is_born(at);
        if node.header().generation >= self.transaction.generation && !born {
            let what = "a node says it is of this transaction, but was not born in it";
            return Err(Error::Extents { at, what });
        }
        if let Some(makers) = &mut self.makers {
            let generation = node.header().generation;
            makers.insert(at, Origin { owner: Some(node.owner()), generation });
        }
        if let Some(trail) = self.trail.as_mut().filter(|_| tree.is_fs_tree()) {
            if from > 0 {
                // Linux has dropped a part of this node. The trail does not know how Linux counted
                // this drop.
                trail.spoil(Error::Extents { at, what: "Linux has begun to drop this tree" });
            }
            trail.lose(tree, node, born);
        }
        *self.node_delta.entry(tree).or_default() -= 1;
        let node_use = match self.state(tree, node)? {
            Some(state) => self.sharing.stop_using(tree, node, from, state)?,
            None if born => NodeUse::Unused,
            None => {
                self.changes.insert(at, AddressChange::Retired { level: node.level() });
                return Ok(NodeUse::Unused);
            }
        };
        if node_use == NodeUse::Unused && born {
            self.unmake(at);
        }
        Ok(node_use)
    }

    /// A node of this transaction lost its last user before it had an item.
    fn unmake(&mut self, at: Logical) {
        self.changes.remove(&at);
        self.sharing.blocks.remove(&at);
        self.owners.storage.space().free(Extent { start: at, len: self.nodesize() });
    }

    fn nodesize(&self) -> u64 {
        u64::from(self.owners.storage.store().geometry().nodesize)
    }
}

impl NodeAlloc for Addresses<'_> {
    fn allocate(&mut self, tree: TreeId, level: u8) -> buttress_tree::Result<Logical> {
        let (kind, cluster) = if tree == TreeId::CHUNK {
            (SpaceKind::System, &mut self.system)
        } else {
            (SpaceKind::Metadata, &mut self.metadata)
        };
        let size = u64::from(self.owners.storage.store().geometry().nodesize);
        let above = |e: Error| buttress_tree::Error::Above(e.to_string());
        let Owners { storage, commits, reservations, counters } = self.owners;
        loop {
            if let Some(at) = cluster.take(size) {
                self.changes.insert(at, AddressChange::New { tree, level });
                *self.node_delta.entry(tree).or_default() += 1;
                return Ok(at);
            }
            if !storage
                .add_chunk_to(commits, reservations, self.transaction, kind, 0)
                .map_err(above)?
            {
                // Reservations should have prevented this lack of space. `no_space` reports all
                // accounts, to show the reason.
                let _ = counters.no_space(reservations, kind, size);
                return Err(buttress_tree::Error::NoSpace);
            }
        }
    }

    fn retire(&mut self, tree: TreeId, node: &Node) -> buttress_tree::Result<bool> {
        let above = |e: Error| buttress_tree::Error::Above(e.to_string());
        Ok(self.stop_using(tree, node, 0).map_err(above)? == NodeUse::Unused)
    }

    fn cancel(&mut self, tree: TreeId, at: Logical, level: u8) -> buttress_tree::Result<()> {
        *self.node_delta.entry(tree).or_default() -= 1;
        match self.changes.remove(&at) {
            // The node's item was never made, so the address is free at once.
            Some(AddressChange::New { .. }) => {
                self.owners.storage.space().free(Extent { start: at, len: self.nodesize() });
            }
            Some(other) => {
                return Err(buttress_tree::Error::Above(format!("{at} given back as {other:?}")));
            }
            None => {
                self.changes.insert(at, AddressChange::Cancelled { level });
            }
        }
        Ok(())
    }
}
