//! The state that decides whether more metadata may be reserved.

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use buttress_base::CachePadded;
use buttress_base::sync::Mutex;
use buttress_format::{BlockGroupFlags, Ino, TreeId};
use buttress_space::{Queue, Space, SpaceKind};
use buttress_transaction::View;
use buttress_tree::Store;
use buttress_volume::DeviceSpace;

use crate::cache::ReservationCache;
use crate::class::TicketDemand;
use crate::copies_need::SnapshotHeadroom;
use crate::frozen::FrozenNeed;
use crate::inode::{InodeReserve, InodeReserves};
use crate::outstanding::Outstanding;
use crate::policy::ReservePolicy;
use crate::preempt_wakeup::PreemptWakeup;
use crate::pressure::Pressure;
use crate::shape::TreeShape;
use crate::token::ShardRefs;
use crate::transaction_ledger::Ledgers;

/// The flags of the block groups that hold a kind of space.
pub fn kind_flags(space: &Space, kind: SpaceKind) -> BlockGroupFlags {
    match kind {
        SpaceKind::System => BlockGroupFlags::SYSTEM,
        _ if space.is_mixed() => BlockGroupFlags::DATA.with(BlockGroupFlags::METADATA),
        SpaceKind::Data => BlockGroupFlags::DATA,
        SpaceKind::Metadata => BlockGroupFlags::METADATA,
    }
}

/// The parts that reservations use: lower parts of the engine, and the rules.
///
/// Plain data: it never changes.
pub struct EngineParts {
    /// Committed nodes.
    pub store: Arc<Store>,
    /// Block groups and accounts.
    pub space: Arc<Space>,
    /// The space of the devices that no chunk uses. Unranked: a discard of such space may run while
    /// this lock is held.
    pub devices: Arc<Mutex<DeviceSpace>>,
    /// The current view of operations.
    pub view: Arc<ArcSwap<View>>,
    /// The rule by which reservations count.
    pub policy: ReservePolicy,
    /// Whether room is kept for copies of shared nodes.
    pub delete_room: bool,
    /// The level of the tallest tree's root.
    pub height: u8,
    /// Whether the volume has a stripe tree.
    pub has_stripe_tree: bool,
}

/// The metadata that is reserved, the metadata that commits may still allocate, and the rules for
/// granting more. This code reads trees and accounts. Only the engine above commits and makes room.
pub struct Reservations {
    pub(crate) parts: EngineParts,
    /// The references that tokens hold to these reservations, one for each shard.
    pub(crate) owners: ShardRefs,
    /// The sum of all reservations. Unranked: an outer lock, under which the locks of accounts and
    /// inodes are taken.
    pub(crate) outstanding: CachePadded<Mutex<Outstanding>>,
    /// The part of `outstanding` for the dirty data of inodes.
    pub(crate) inode_reserves: Arc<InodeReserves>,
    /// Reservations that shards keep.
    pub(crate) cached: ReservationCache,
    /// The state on which the preemptive flusher waits.
    pub(crate) preempt_wakeup: CachePadded<PreemptWakeup>,
    /// Tickets that wait for metadata.
    pub(crate) queue: CachePadded<Queue<TicketDemand>>,
    pub(crate) pressure: Pressure,
    pub(crate) frozen: FrozenNeed,
    pub(crate) shape: TreeShape,
    pub(crate) copies: SnapshotHeadroom,
    pub(crate) ledgers: Ledgers,
}

impl Reservations {
    /// Creates the reservations of a volume. Nothing is reserved yet.
    pub fn new(parts: EngineParts) -> Arc<Self> {
        let shape = TreeShape::new(parts.height);
        Arc::new_cyclic(|own: &Weak<Self>| Self {
            parts,
            owners: ShardRefs::of(own),
            outstanding: CachePadded::default(),
            inode_reserves: Arc::default(),
            cached: ReservationCache::default(),
            preempt_wakeup: CachePadded::default(),
            queue: CachePadded::new(Queue::new()),
            pressure: Pressure::default(),
            frozen: FrozenNeed::default(),
            shape,
            copies: SnapshotHeadroom::default(),
            ledgers: Ledgers::default(),
        })
    }

    /// The queue of tickets that wait for metadata.
    pub fn queue(&self) -> &Queue<TicketDemand> {
        &self.queue
    }

    /// The need of the commit of the frozen transaction.
    pub fn frozen(&self) -> &FrozenNeed {
        &self.frozen
    }

    /// Creates the record of one inode's reservations for dirty data. Reservations are attached to
    /// it with [`MetaReservation::bind`].
    pub fn inode_reserve(&self, tree: TreeId, ino: Ino) -> Arc<InodeReserve> {
        self.inode_reserves.enter(tree, ino)
    }

    pub(crate) fn metadata_flags(&self) -> BlockGroupFlags {
        kind_flags(&self.parts.space, SpaceKind::Metadata)
    }

    pub(crate) fn nodesize(&self) -> u64 {
        self.parts.store.geometry().nodesize.into()
    }
}
