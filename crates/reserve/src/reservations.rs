//! The state of metadata reservations: all that decides whether more metadata may be reserved.

use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use buttress_base::CachePadded;
use buttress_base::sync::Mutex;
use buttress_format::{BlockGroupFlags, Ino, TreeId};
use buttress_space::{Queue, Space, SpaceKind};
use buttress_transaction::View;
use buttress_tree::Store;
use buttress_volume::DeviceSpace;

use crate::ahead::Ahead;
use crate::copies_need::Copies;
use crate::counts::Counts;
use crate::credit::Credits;
use crate::inode::{InodeReserve, InodeReserves};
use crate::outstanding::Outstanding;
use crate::policy::{DeleteRoom, ReservePolicy};
use crate::shares::Shares;
use crate::token::Owners;
use crate::urgency::Demand;

/// The bits of block groups that hold a kind.
pub fn kind_flags(space: &Space, kind: SpaceKind) -> BlockGroupFlags {
    match kind {
        SpaceKind::System => BlockGroupFlags::SYSTEM,
        _ if space.is_mixed() => BlockGroupFlags::DATA.with(BlockGroupFlags::METADATA),
        SpaceKind::Data => BlockGroupFlags::DATA,
        SpaceKind::Metadata => BlockGroupFlags::METADATA,
    }
}

/// The inputs of reservations: the parts of the engine below them, and the rules.
pub struct Beneath {
    /// Committed nodes.
    pub store: Arc<Store>,
    /// Block groups and accounts.
    pub space: Arc<Space>,
    /// The space of the devices that no chunk uses. Unranked: a discard of such space may run while
    /// this lock is held.
    pub devices: Arc<Mutex<DeviceSpace>>,
    /// The view that operations have now.
    pub view: Arc<ArcSwap<View>>,
    /// The rule by which reservations count.
    pub policy: ReservePolicy,
    /// Whether room is kept for copies of shared nodes.
    pub delete_room: DeleteRoom,
    /// Levels of the highest tree.
    pub height: u8,
}

/// Metadata that was reserved, and what commits may still take: all that decides whether more fits.
/// It reads trees and accounts, and neither commits nor makes room: the engine does, above.
pub struct Reservations {
    pub(crate) store: Arc<Store>,
    pub(crate) space: Arc<Space>,
    /// The space of the devices that no chunk uses. Unranked: a discard of such space may run while
    /// this lock is held.
    pub(crate) devices: Arc<Mutex<DeviceSpace>>,
    pub(crate) view: Arc<ArcSwap<View>>,
    pub(crate) policy: ReservePolicy,
    pub(crate) delete_room: DeleteRoom,
    /// The owners of tokens, by the shard of the requesting thread.
    pub(crate) owners: Owners,
    /// Unranked: an outer lock; those of accounts and inodes are taken inside.
    pub(crate) outstanding: CachePadded<Mutex<Outstanding>>,
    /// The part of them that dirty data of inodes holds.
    pub(crate) inode_reserves: Arc<InodeReserves>,
    /// Reservations that shards keep for the next operations.
    pub(crate) credits: Credits,
    /// The thread that makes room before any wait.
    pub(crate) ahead: CachePadded<Ahead>,
    /// Waiters for metadata.
    pub(crate) queue: CachePadded<Queue<Demand>>,
    /// Reserved metadata, in thousandths of the free metadata that the changes made so far leave.
    pub(crate) pressure: AtomicU64,
    /// Metadata that the frozen transaction may still need, in bytes.
    pub(crate) frozen_need: AtomicU64,
    /// Metadata that the frozen transaction has allocated already.
    pub(crate) frozen_taken: AtomicU64,
    /// Levels of the highest tree.
    pub(crate) height: AtomicU8,
    pub(crate) shares: Shares,
    pub(crate) copies: Copies,
    pub(crate) counts: Counts,
}

impl Reservations {
    /// Creates the reservations of a volume. Nothing is reserved yet.
    pub fn new(beneath: Beneath) -> Arc<Self> {
        Arc::new_cyclic(|own: &Weak<Self>| Self {
            store: beneath.store,
            space: beneath.space,
            devices: beneath.devices,
            view: beneath.view,
            policy: beneath.policy,
            delete_room: beneath.delete_room,
            owners: Owners::of(own),
            outstanding: CachePadded::default(),
            inode_reserves: Arc::default(),
            credits: Credits::default(),
            ahead: CachePadded::default(),
            queue: CachePadded::new(Queue::new()),
            pressure: AtomicU64::new(0),
            frozen_need: AtomicU64::new(0),
            frozen_taken: AtomicU64::new(0),
            height: AtomicU8::new(beneath.height),
            shares: Shares::default(),
            copies: Copies::default(),
            counts: Counts::default(),
        })
    }

    /// The queue of tickets that wait for metadata.
    pub fn queue(&self) -> &Queue<Demand> {
        &self.queue
    }

    /// What is reserved for one inode's dirty data, for reservations that are bound to it
    /// ([`MetaReservation::bind`]).
    pub fn inode_reserve(&self, tree: TreeId, ino: Ino) -> Arc<InodeReserve> {
        self.inode_reserves.enter(tree, ino)
    }

    pub(crate) fn kind_flags(&self, kind: SpaceKind) -> BlockGroupFlags {
        kind_flags(&self.space, kind)
    }
}
