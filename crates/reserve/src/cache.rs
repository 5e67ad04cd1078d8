//! Reservations that each shard keeps: some for its next operations, and some that came back
//! unused.
//!
//! # Place
//!
//! The sum of all reservations has one lock. If every operation took this lock twice, operations on
//! many processors would wait for it. So each shard of threads reserves a batch at once. The shard
//! cuts the reservations of its operations from the batch, and gives reservations back in batches,
//! too.
//!
//! # Invariants
//!
//! - **B1** The reservations that a shard keeps count as reserved. So the sum is never less than
//!   the reservations that operations hold.
//! - **B2** A reservation that came back is not used for another operation. Each new batch must fit
//!   in the space that is free when the batch is reserved.
//! - **B3** Shards keep nothing while a ticket waits for metadata. Before a request waits or is
//!   refused, it makes all shards give back their reservations. A thread that puts a reservation
//!   into its shard checks afterwards for waiting tickets. A waiting request joins the queue before
//!   it empties the shards. So the thread sees the request, or the request finds the reservation in
//!   the shard.
//! - **B4** A batch is reserved only if at least half of the free space stays free, by the crude
//!   bound of `fits`. The policy `Levels`, a baseline, never reserves batches. A shard that was
//!   refused a batch keeps nothing for the next `REST` reservations. Without these rules, other
//!   requests would have to count nodes and wait.

use buttress_base::CachePadded;
use buttress_base::shard::{SHARDS, shard};
use buttress_base::sync::Mutex;
use buttress_space::Priority;

use crate::Cost;
use crate::class::{ReserveClass, TicketDemand};
use crate::reservations::Reservations;
use crate::token::MetaReservation;

/// Number of operations in a batch.
const BATCH: u32 = 16;

/// The most items and bytes of a reservation that a shard keeps. Only room for copies of many nodes
/// has more bytes.
const ITEMS_MAX: u64 = 64;
const BYTES_MAX: u64 = 256 << 20;

/// After a shard was refused a batch, it keeps nothing for this many reservations (B4).
const REST: u32 = 256;

/// The reservations that one shard keeps.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    unused: Option<MetaReservation>,
    spent: Option<MetaReservation>,
    /// Number of reservations that came back since the shard last gave `spent` back.
    came_back: u32,
    /// For how many more reservations the shard keeps nothing (B4).
    rests: u32,
}

impl Shard {
    fn empty(&mut self) -> [Option<MetaReservation>; 2] {
        self.came_back = 0;
        [self.unused.take(), self.spent.take()]
    }
}

/// The reservations that each shard keeps. Unranked: the locks of `Outstanding` and of the queue
/// are taken under them.
#[derive(Debug, Default)]
pub(crate) struct ReservationCache([CachePadded<Mutex<Shard>>; SHARDS]);

impl Reservations {
    /// Takes a reservation out of this thread's shard, or out of a new batch. `None` if the shard
    /// may keep nothing, or the batch does not fit.
    pub(crate) fn take_cached(&self, cost: Cost) -> Option<MetaReservation> {
        if !self.may_keep(cost) {
            return None;
        }
        let mut shard = self.cached.0[shard()].lock();
        if shard.rests > 0 {
            shard.rests -= 1;
            return None;
        }
        if let Some(part) = shard.unused.as_mut().and_then(|unused| unused.cut_all_of(cost)) {
            return Some(part);
        }
        let batch = TicketDemand { cost: cost.times(BATCH), class: ReserveClass::Normal };
        if !self.queue.at_once(Priority::Normal, || self.try_reserve_batch(&batch)) {
            shard.rests = REST;
            let kept = shard.empty();
            drop(shard);
            self.settle_cached(kept);
            return None;
        }
        let mut fresh = MetaReservation::of_granted(self, &batch);
        let part = fresh.cut_all_of(cost);
        let old = shard.unused.replace(fresh);
        drop(shard);
        // Dropping a reservation takes the shard's lock again, so the lock is released first.
        drop(old);
        part
    }

    /// Whether shards may keep reservations of this size (B3, B4).
    fn may_keep(&self, cost: Cost) -> bool {
        let is_small = cost.all_items() <= ITEMS_MAX && cost.bytes <= BYTES_MAX;
        is_small && !self.parts.policy.is_levels() && !self.queue.is_waiting()
    }

    /// Keeps a reservation that came back. Returns the reservation that the caller must give back
    /// now, if there is one.
    pub(crate) fn keep(&self, reservation: MetaReservation) -> Option<MetaReservation> {
        if !self.may_keep(reservation.held()) || self.is_tight_now() {
            return Some(reservation);
        }
        let mut shard = self.cached.0[shard()].lock();
        if shard.rests > 0 {
            return Some(reservation);
        }
        shard.came_back += 1;
        let all = match shard.spent.take() {
            None => reservation,
            Some(mut spent) => {
                spent.merge(reservation);
                spent
            }
        };
        // A ticket that joined the queue before this lock was taken is seen here. A later ticket
        // waits for this lock and empties the shard (B3).
        if shard.came_back >= BATCH || self.queue.is_waiting() {
            shard.came_back = 0;
            return Some(all);
        }
        shard.spent = Some(all);
        None
    }

    /// Gives back all reservations that shards keep. Returns whether a shard kept a reservation.
    pub fn give_cached_back(&self) -> bool {
        let mut found = false;
        for shard in &self.cached.0 {
            let kept = shard.lock().empty();
            found |= self.settle_cached(kept);
        }
        found
    }

    fn settle_cached(&self, kept: [Option<MetaReservation>; 2]) -> bool {
        let mut found = false;
        for mut reservation in kept.into_iter().flatten() {
            found |= !reservation.held().is_nothing();
            reservation.settle(self);
        }
        found
    }
}
