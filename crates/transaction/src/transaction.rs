//! One transaction: all changes of its operations, until its superblock is durable.
//!
//! # Invariants
//!
//! - **X1** A change belongs to the transaction that ran when its handle passed the gate
//!   (`transaction::T11`). Overlay, references, checksums and new chunks freeze together, in one
//!   step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::sync::Mutex;
use buttress_format::{
    BlockGroupFlags, Chunk, DevExtent, DeviceId, DeviceItem, Generation, Key, QuotaGroup,
    QuotaLimit, ReplaceItem, TreeId,
};
use buttress_tree::Overlay;

use crate::tracked::Tracked;
use crate::{
    delayed_ref::DelayedRefs, mostly_empty::MostlyEmpty, moves::Moves, snapshot::Snapshot,
    sums::PendingSums, written::Written,
};

/// A chunk that a transaction adds. The commit of the transaction records the chunk in the trees.
#[derive(Clone, Debug)]
pub struct NewChunk {
    /// The chunk.
    pub chunk: Chunk,
    /// Kind and profile of its block group.
    pub flags: BlockGroupFlags,
    /// For each stripe: its device, its physical offset, and its device extent item.
    pub stripes: Vec<(DeviceId, u64, DevExtent)>,
}

/// The change of one device.
#[derive(Clone, Copy, Debug)]
pub enum DeviceChange {
    /// The device has this item now.
    Set(DeviceItem),
    /// The device is no longer part of the volume.
    Gone(DeviceId),
    /// The last replacement of a device is this one.
    Replacement(ReplaceItem),
}

/// A change of quotas. The commit makes the change, because the commit knows which extents are
/// counted at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaChange {
    /// Begin to count. Simple quotas do not count extents that exist already. Full quotas are
    /// marked as inconsistent until [`QuotaChange::Count`].
    Enable {
        /// Whether an extent counts for the subvolume that made it, and for no other.
        simple: bool,
    },
    /// End counting, and forget all groups.
    Disable,
    /// Make a group.
    Make(QuotaGroup),
    /// Remove a group with its memberships.
    Remove(QuotaGroup),
    /// Give a group limits.
    Limit(QuotaGroup, QuotaLimit),
    /// Make a group a member of another group.
    Join {
        /// The member.
        child: QuotaGroup,
        /// The group that it becomes a member of.
        parent: QuotaGroup,
    },
    /// End a membership.
    Leave {
        /// The member.
        child: QuotaGroup,
        /// The group that it was a member of.
        parent: QuotaGroup,
    },
    /// Replace the counts of full quotas by these counts.
    Count(Arc<QuotaCounts>),
}

/// The use of each group of full quotas, counted from the trees of a commit.
#[derive(Debug, PartialEq, Eq)]
pub struct QuotaCounts {
    /// The commit.
    pub of: Generation,
    /// Referenced and exclusive bytes of each group that uses any space.
    pub groups: BTreeMap<QuotaGroup, (u64, u64)>,
}

/// A change of quotas with its cost.
#[derive(Clone, Debug)]
pub struct WantedQuota {
    /// The change.
    pub change: QuotaChange,
    /// The number of items that the commit may set or delete for the change.
    pub items: u64,
}

/// A transaction, running or frozen.
#[derive(Debug)]
pub struct Transaction {
    /// The number of the transaction.
    pub generation: Generation,
    /// Items that were set and deleted.
    pub overlay: Arc<Overlay>,
    /// Changes of references of data extents.
    pub refs: DelayedRefs,
    /// Checksums of new data.
    pub sums: PendingSums,
    /// Ranges of data that get items in the stripe tree.
    pub written: Written,
    /// Chunks that were added. Unranked: no other lock is taken under it.
    pub chunks: Mutex<Vec<NewChunk>>,
    /// Chunks that were removed. Unranked: no other lock is taken under it.
    pub removed: Mutex<Vec<Chunk>>,
    /// Keys in trees. The commit rebuilds the nodes on the path to each key although no item
    /// changes. So these nodes get new addresses.
    pub to_rebuild: MostlyEmpty<Vec<(TreeId, Key)>>,
    /// Set when some changes must become durable together and no log can express them. An fsync
    /// then commits instead.
    pub needs_commit: AtomicBool,
    /// Nodes and data that a balance moves.
    pub moves: MostlyEmpty<Moves>,
    /// Whether the commit must rebuild the free-space tree.
    pub rebuild: AtomicBool,
    /// Devices that were added, removed or resized. Unranked: no other lock is taken under it.
    pub devices: Mutex<Vec<DeviceChange>>,
    /// Snapshots to make from the trees at the end of this transaction.
    pub snapshots: MostlyEmpty<Vec<Snapshot>>,
    /// The changes of inodes that are in a log.
    pub tracked: Tracked,
    /// Deleted subvolumes of which the commit drops a further part, each with the number of
    /// references that the commit may change.
    pub drops: MostlyEmpty<BTreeMap<TreeId, u64>>,
    /// Changes of quotas, in order.
    pub quotas: MostlyEmpty<Vec<WantedQuota>>,
    /// Relocation trees that an interrupted balance of Linux left, of which the commit drops a
    /// further part. The key is the subvolume of each tree; the value is as in `drops`.
    pub leftovers: MostlyEmpty<BTreeMap<TreeId, u64>>,
}

/// The most items that one snapshot changes: references of the extents under a root node.
const SNAPSHOT_ITEMS: u64 = 600;
/// Bytes of the largest item of a quota tree, with its header in the leaf.
const QUOTA_ITEM_BYTES: u64 = 65;

impl Transaction {
    /// Creates an empty transaction.
    pub fn new(generation: Generation) -> Arc<Self> {
        Arc::new(Self {
            generation,
            overlay: Arc::new(Overlay::default()),
            refs: DelayedRefs::default(),
            sums: PendingSums::default(),
            written: Written::default(),
            chunks: Mutex::default(),
            removed: Mutex::default(),
            to_rebuild: MostlyEmpty::default(),
            needs_commit: AtomicBool::new(false),
            moves: MostlyEmpty::default(),
            rebuild: AtomicBool::new(false),
            devices: Mutex::default(),
            snapshots: MostlyEmpty::default(),
            tracked: Tracked::default(),
            drops: MostlyEmpty::default(),
            quotas: MostlyEmpty::default(),
            leftovers: MostlyEmpty::default(),
        })
    }

    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.overlay.is_empty()
            && self.refs.is_empty()
            && self.sums.is_empty()
            && self.written.count() == 0
            && self.chunks.lock().is_empty()
            && self.removed.lock().is_empty()
            && self.to_rebuild.lock().is_empty()
            && self.moves.count(|moves| moves.nodes.len() as u64) == 0
            && !self.rebuild.load(Ordering::Relaxed)
            && self.devices.lock().is_empty()
            && self.snapshots.lock().is_empty()
            && self.drops.lock().is_empty()
            && self.quotas.lock().is_empty()
            && self.leftovers.lock().is_empty()
    }

    /// Number of items that the commit will touch: the items of the overlay, and for each data
    /// extent its item, its checksums and its free space. Nodes to move and rebuild, snapshots and
    /// dropped subvolumes count, too.
    pub fn items(&self) -> u64 {
        let dropped = |trees: &BTreeMap<TreeId, u64>| trees.values().sum();
        self.overlay.items()
            + 3 * self.refs.len()
            + self.to_rebuild.count(|places| places.len() as u64)
            + self.moves.count(|moves| moves.cost)
            + self.snapshots.count(|snapshots| snapshots.len() as u64 * SNAPSHOT_ITEMS)
            + self.drops.count(dropped)
            + self.quota_items()
            + self.leftovers.count(dropped)
    }

    /// The number of items that changes of quotas may set or delete.
    fn quota_items(&self) -> u64 {
        self.quotas.count(|changes| changes.iter().map(|wanted| wanted.items).sum())
    }

    /// The most changes that may each be the first change of a shared leaf. Such a change must copy
    /// the leaf.
    pub fn shared_leaf_changes_max(&self) -> u64 {
        self.overlay.items()
            + self.to_rebuild.count(|places| places.len() as u64)
            + self.moves.count(|moves| moves.cost)
    }

    /// Whether the transaction consists only of items, data references and chunks. The ledger does
    /// not count the nodes of other changes (`reserve::count::N4`).
    pub fn is_plain(&self) -> bool {
        self.to_rebuild.count(|places| places.len() as u64) == 0
            && self.moves.count(|moves| moves.cost) == 0
            && self.snapshots.count(|snapshots| snapshots.len() as u64) == 0
            && self.drops.count(|trees| trees.len() as u64) == 0
            && self.quotas.count(|changes| changes.len() as u64) == 0
            && self.leftovers.count(|trees| trees.len() as u64) == 0
            && !self.rebuild.load(Ordering::Relaxed)
            && self.devices.lock().is_empty()
    }

    /// Bytes in memory. The commit writes at most as many bytes into trees.
    pub fn bytes(&self) -> u64 {
        let snapshots = self.snapshots.count(|all| all.len() as u64 * SNAPSHOT_ITEMS * 32);
        let quotas = self.quota_items() * QUOTA_ITEM_BYTES;
        let data = self.sums.bytes() + self.written.bytes();
        self.overlay.bytes() + 128 * self.refs.len() + data + snapshots + quotas
    }
}
