//! Promises of metadata space, made before an operation starts.
//!
//! What a commit needs is bounded from two sides, and the smaller bound counts: every changed item
//! dirties at most one path and one split, as high as the tallest tree that is worked in; and all of them
//! together dirty at most every node there is, plus what the new bytes fill. So a long transaction of small
//! operations does not promise more than the volume has.
//!
//! Where that does not fit the nodes are counted (`count`), and paths are promised for what came since. The bounds are in `fits`.
//!
//! # Invariants
//!
//! - **P1** need(running + promised) + need(frozen) fits in free metadata less the global reserve,
//!   and in half of what the devices have unallocated, which data cannot take meanwhile; in all of it for who frees space, where some
//!   is kept for copies of what trees share (`copies`).
//! - **P2** Whoever asks holds no handle: asking may commit. Checked in debug builds.
//! - **P3** What was promised is the sum of the live tokens. Checked at every commit of a debug build.
//! - **P4** Who frees space has seven eighths of the global reserve beyond what those have who fill it (three quarters where trees
//!   share nodes, and who drops subvolumes all of it), and all that is kept for copies: what all of them may put together fits. Where no step of a ladder made room
//!   for him he is promised his beside others who free alone, whatever others hold; once he has waited for those, too, as if he
//!   were alone. A delete is not refused for what others hold and do not use.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use buttress_base::Apart;
use buttress_base::sync::Mutex;
use buttress_format::{BlockGroupFlags, Generation, Ino, Key, TreeId};
use buttress_space::{Class, Queue, Reach, Space, SpaceKind};
use buttress_tree::{Roots, Store};

use buttress_transaction::{Cost, Costs, Result, View, held, transaction};

use device_space::DeviceSpace;
use transaction::Transaction;

mod accounts;
mod ahead;
mod copies;
mod count;
mod credit;
pub mod device_space;
mod fits;
mod inode;
mod policy;
mod shared;
mod ticket;
mod token;
pub mod waiting;

pub use accounts::Accounts;
use ahead::Ahead;
use copies::Copies;
pub use copies::Tree;
pub use copies::{DeleteRoom, cost_of_copies};
use credit::Credits;
pub use inode::InodeReserve;
use inode::{InodeReserves, Moment};
pub use policy::PromisePolicy;
use shared::Shares;
pub use ticket::MetaTicket;
pub use token::MetaReservation;
use token::Owners;

/// Who is asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// An operation that fills the volume.
    Normal,
    /// One that empties it in the end, such as unlink and truncate: it may use what is kept for copies of nodes, and the global reserve, but
    /// for an eighth; for a quarter where trees share, since it takes space before it gives any.
    Frees,
    /// One that deletes a subvolume, or drops a part of it: it may use all of that. On a full volume with snapshots it is what gives space.
    Drops,
    /// Data that lies on the devices already and needs more than it was promised: it may use most of the global reserve.
    Lands,
}

impl Urgency {
    /// Whether it empties the volume in the end.
    #[must_use]
    pub fn frees(self) -> bool {
        matches!(self, Self::Frees | Self::Drops)
    }
}

/// What somebody in the line waits for.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// What its operation may put.
    pub cost: Cost,
    /// How much of what is kept back it may use.
    pub urgency: Urgency,
}

/// Operations that were promised space and have not ended.
#[derive(Debug, Default)]
struct Outstanding {
    costs: Costs,
    /// Of these, those of who frees space.
    freeing: Costs,
    /// The same, counted by the tokens (P3).
    #[cfg(debug_assertions)]
    roll: buttress_space::Roll<6>,
}

impl Outstanding {
    fn sum(&self) -> Costs {
        self.costs
    }

    /// Compares with the tokens (P3).
    #[cfg(debug_assertions)]
    fn audit(&self) {
        let found = figures(self.costs, self.freeing);
        assert_eq!(
            self.roll.sum(),
            found,
            "P3: what tokens hold, those of who frees apart, and all"
        );
    }
}

/// What reservations are counted with: the parts of the engine below them, and the rules.
pub struct Beneath {
    /// Committed nodes.
    pub store: Arc<Store>,
    /// Block groups and accounts.
    pub space: Arc<Space>,
    /// What no chunk takes of the devices. Unranked: a short lock of the engine.
    pub devices: Arc<Mutex<DeviceSpace>>,
    /// What operations see now.
    pub view: Arc<ArcSwap<View>>,
    /// By which rule reservations count.
    pub policy: PromisePolicy,
    /// Whether room is kept for copies of shared nodes.
    pub delete_room: DeleteRoom,
    /// Levels of the highest tree.
    pub height: u8,
}

/// Metadata that was reserved, and what commits may still take: all that decides whether more fits.
/// It reads trees and accounts, and neither commits nor makes room: the engine does, above.
pub struct Reservations {
    store: Arc<Store>,
    space: Arc<Space>,
    devices: Arc<Mutex<DeviceSpace>>,
    view: Arc<ArcSwap<View>>,
    policy: PromisePolicy,
    delete_room: DeleteRoom,
    /// For tokens, by the shard of the asking thread.
    owners: Owners,
    outstanding: Apart<Mutex<Outstanding>>,
    /// The part of them that dirty data of inodes holds.
    inode_reserves: Arc<InodeReserves>,
    /// Reservations kept at hand.
    credits: Credits,
    /// The thread that makes room before any wait.
    ahead: Apart<Ahead>,
    /// Waiters for metadata.
    line: Apart<Queue<Demand>>,
    /// The reserved part of the metadata that is left to reserve, in thousandths.
    pressure: AtomicU64,
    /// Metadata that the frozen transaction may still need, in bytes.
    frozen_need: AtomicU64,
    /// Metadata that the frozen transaction has allocated already.
    frozen_taken: AtomicU64,
    /// Levels of the highest tree.
    height: AtomicU8,
    shares: Shares,
    copies: Copies,
    counts: count::Counts,
}

impl Reservations {
    /// Without any reservation.
    pub fn new(beneath: Beneath) -> Arc<Self> {
        Arc::new_cyclic(|own: &Weak<Self>| Self {
            store: beneath.store,
            space: beneath.space,
            devices: beneath.devices,
            view: beneath.view,
            policy: beneath.policy,
            delete_room: beneath.delete_room,
            owners: Owners::of(own),
            outstanding: Apart::default(),
            inode_reserves: Arc::default(),
            credits: Credits::default(),
            ahead: Apart::default(),
            line: Apart(Queue::new()),
            pressure: AtomicU64::new(0),
            frozen_need: AtomicU64::new(0),
            frozen_taken: AtomicU64::new(0),
            height: AtomicU8::new(beneath.height),
            shares: Shares::default(),
            copies: Copies::default(),
            counts: count::Counts::default(),
        })
    }

    /// The line of those that wait for metadata.
    pub fn line(&self) -> &Queue<Demand> {
        &self.line
    }

    /// What one inode's dirty data was reserved, for reservations that are bound to it
    /// ([`MetaReservation::bind`]).
    pub fn inode_reserve(&self, tree: TreeId, ino: Ino) -> Arc<InodeReserve> {
        self.inode_reserves.enter(tree, ino)
    }

    fn kind_flags(&self, kind: SpaceKind) -> BlockGroupFlags {
        device_space::kind_flags(&self.space, kind)
    }

    /// Reserves if it fits at once and no other waits: first from credits, where they are for it.
    pub fn at_once(&self, cost: Cost, urgency: Urgency, reach: Reach) -> Option<MetaReservation> {
        if urgency == Urgency::Normal
            && let Some(promise) = self.take_credit(cost)
        {
            return Some(promise);
        }
        let class = class_of(urgency, reach);
        let take = || self.line.at_once(class, || self.try_reserve(cost, urgency));
        let granted = take()
            || (self.give_credit_back() && take())
            || (self.may_count(urgency) && self.recount() && take());
        granted.then(|| {
            self.ahead.look();
            MetaReservation::of_granted(self, cost, urgency)
        })
    }

    /// Joins the line; the reservation, where it fits by then.
    pub fn ask(
        &self,
        cost: Cost,
        urgency: Urgency,
        reach: Reach,
    ) -> Result<MetaReservation, MetaTicket<'_>> {
        let class = class_of(urgency, reach);
        let ticket = self.line.ask(class, Demand { cost, urgency }, |demand| {
            self.try_reserve(demand.cost, demand.urgency)
        });
        let Some(ticket) = ticket else {
            return Ok(MetaReservation::of_granted(self, cost, urgency));
        };
        self.give_credit_back();
        Err(MetaTicket::new(self, ticket, Demand { cost, urgency }, class))
    }

    /// Serves waiters, if need be by a closer count.
    pub fn serve_counted(&self) {
        self.serve();
        // What frees space is among those with priority.
        let frees = self.line.blocks(Class::Priority);
        let urgency = if frees { Urgency::Frees } else { Urgency::Normal };
        if self.line.is_waiting() && self.may_count(urgency) && self.recount() {
            self.serve();
        }
    }

    /// A transaction was frozen, and no operation is under way: what its commit may need is said
    /// before the next transaction is seen.
    pub fn begin_commit(&self, frozen: &Transaction) {
        self.frozen_taken.store(0, Ordering::Relaxed);
        let closer = self.close_count(frozen).unwrap_or(u64::MAX);
        self.frozen_need.store(self.need_of(frozen).min(closer), Ordering::Relaxed);
    }

    /// The commit takes so many bytes of metadata. To be called after they are taken in the account.
    pub fn take_frozen(&self, bytes: u64) {
        self.frozen_taken.fetch_add(bytes, Ordering::Release);
    }

    /// The commit gives so many back. To be called before they leave the account.
    pub fn return_frozen(&self, bytes: u64) {
        self.frozen_taken.fetch_sub(bytes, Ordering::Release);
    }

    /// Says what the commit under way may still need, whatever was counted: for tests of what is
    /// left beside it.
    pub fn set_frozen_need(&self, bytes: u64) {
        self.frozen_need.store(bytes, Ordering::Release);
    }

    /// The trees are settled: the commit takes nothing more.
    pub fn settled(&self, frozen: &Transaction, nodes: u64) {
        self.frozen_need.store(0, Ordering::Relaxed);
        self.counts.of(frozen).settle(nodes);
        self.serve_counted();
    }

    /// A commit is published, with these root items changed.
    pub fn published(
        &self,
        roots: &Roots,
        trees: std::collections::BTreeMap<Key, Option<Tree>>,
        generation: Generation,
    ) {
        self.frozen_need.store(0, Ordering::Relaxed);
        self.look_again_at_extents(roots);
        self.note_trees(trees, generation);
        self.size_global_reserve();
        self.keep_anew();
    }

    /// Counts with a tree of so many levels from now on.
    pub fn note_height(&self, height: u8) {
        self.height.fetch_max(height, Ordering::Relaxed);
    }

    /// Compares what is outstanding with the live tokens (P3).
    #[cfg(debug_assertions)]
    pub fn audit(&self) {
        self.outstanding.lock().audit();
    }

    /// Serves those who wait for metadata, the first first. Called wherever some comes free.
    pub fn serve(&self) -> u64 {
        self.line.serve(|demand| self.try_reserve(demand.cost, demand.urgency))
    }

    /// As much as so many bytes of free metadata, at most: for people and for forecasts.
    pub fn bytes_of(&self, cost: Cost) -> u64 {
        let nodesize = u64::from(self.store.geometry().nodesize);
        let levels = self.levels();
        Costs::from(cost).all_items().saturating_mul(levels * nodesize)
    }

    fn try_reserve(&self, cost: Cost, urgency: Urgency) -> bool {
        let mut outstanding = self.outstanding.lock();
        if !self.fits(&outstanding, cost, urgency) {
            return false;
        }
        self.grant(&mut outstanding, cost, urgency);
        true
    }

    /// Promises space to who frees some beside so much that is promised, whatever else is (P4).
    fn try_reserve_beside(
        &self,
        others: impl Fn(&Outstanding) -> Costs,
        (cost, urgency): (Cost, Urgency),
    ) -> bool {
        let mut outstanding = self.outstanding.lock();
        let to_come = others(&outstanding) + cost.into();
        let closer = |running: &_| self.closer_need(running, to_come);
        let excess = self.excess(to_come, urgency, closer);
        let fits = excess == 0 || self.overcommit(excess, urgency);
        if fits {
            self.grant(&mut outstanding, cost, urgency);
        }
        fits
    }

    /// Promises what several operations will need, where there is plenty.
    fn try_reserve_batch(&self, cost: Cost) -> bool {
        let mut outstanding = self.outstanding.lock();
        let view = self.view.load();
        let (account, frozen) = self.account_and_frozen();
        let crude = self.crude_need(view.running(), outstanding.costs + cost.into(), account.used);
        let taken = crude + frozen + account.global_reserve;
        let is_plenty = taken <= account.free().saturating_sub(account.may_use) / 2;
        if is_plenty {
            self.note_pressure(0);
            self.grant(&mut outstanding, cost, Urgency::Normal);
        }
        is_plenty
    }

    fn grant(&self, outstanding: &mut Outstanding, cost: Cost, urgency: Urgency) {
        let (cost, freeing) = shares(cost, urgency);
        outstanding.costs += cost;
        outstanding.freeing += freeing;
        if self.policy.is_levels() {
            self.ahead.note(self.promised_apart(outstanding.costs));
        }
        #[cfg(debug_assertions)]
        outstanding.roll.grant(figures(cost, freeing));
    }

    /// Takes back a grant that nobody took.
    fn revoke(&self, cost: Cost, urgency: Urgency) {
        let mut outstanding = self.outstanding.lock();
        let (cost, freeing) = shares(cost, urgency);
        outstanding.costs -= cost;
        outstanding.freeing -= freeing;
        #[cfg(debug_assertions)]
        outstanding.roll.revoke(figures(cost, freeing));
    }

    /// Whether a reservation would fit now. Reserves nothing, and makes no room.
    pub fn may_reserve(&self, cost: Cost, urgency: Urgency) -> bool {
        self.fits(&self.outstanding.lock(), cost, urgency)
    }
}

/// What a promise adds to the sum, and to that of who frees space.
fn shares(cost: Cost, urgency: Urgency) -> (Costs, Costs) {
    let all = Costs::from(cost);
    (all, if urgency.frees() { all } else { Costs::default() })
}

/// Both, as tokens are counted.
#[cfg(debug_assertions)]
fn figures(all: Costs, freeing: Costs) -> [u64; 6] {
    let ([a, b, c], [d, e, f]) = (all.figures(), freeing.figures());
    [a, b, c, d, e, f]
}

/// Those on whom others wait go before them.
fn class_of(urgency: Urgency, reach: Reach) -> Class {
    match (urgency, reach) {
        (Urgency::Frees | Urgency::Drops | Urgency::Lands, _)
        | (_, Reach::Commit | Reach::Handle) => Class::Priority,
        (Urgency::Normal, Reach::All) => Class::Normal,
    }
}
