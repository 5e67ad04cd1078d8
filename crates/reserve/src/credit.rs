//! Reservations kept at hand: for the next few operations, and those that came back.
//!
//! # Place
//!
//! All that is reserved is one sum under one lock, which every operation took twice: with many
//! processors that is what they wait for. Each shard of threads reserves a batch at once, cuts
//! the reservations of its operations from it, and gives back by the batch.
//!
//! # Invariants
//!
//! - **B1** What is kept here counts as reserved, so the sum is never less than what operations
//!   hold.
//! - **B2** A reservation that came back is not handed out again: each batch is compared with what
//!   there is.
//! - **B3** Nothing is kept while a ticket waits for metadata. A request that is about to wait or
//!   to be refused first has all of it given back. A thread that keeps something looks afterwards
//!   for tickets that wait. A request that waits has joined the queue before it looks here.
//! - **B4** A batch is reserved only where at least half of what is free stays so, by the crude
//!   bound. The published rule of reservations, which is there to be compared with, never allows
//!   one. A shard that was refused a batch keeps nothing for a while: what it kept would make other
//!   requests count what they need, and wait.

use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};

use buttress_base::CachePadded;
use buttress_base::shard::{SHARDS, shard};
use buttress_base::sync::Mutex;
use buttress_space::Priority;

use crate::reservations::Reservations;
use crate::token::MetaReservation;
use crate::urgency::Urgency;
use crate::{Cost, Costs};

/// Operations of a batch.
const BATCH: u32 = 16;

/// Reservations of operations with more items are not kept.
const ITEMS_MAX: u64 = 64;

/// A shard that was refused a batch does not ask for one again for so many reservations.
const REST: u32 = 256;

#[derive(Debug, Default)]
struct Credit {
    unused: Option<MetaReservation>,
    spent: Option<MetaReservation>,
    /// The number of reservations that came back since `spent` was given back.
    came_back: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Shard {
    /// Unranked: the sum of reservations and the line are taken under it.
    credit: Mutex<Credit>,
    /// The number of reservations for which the shard still keeps nothing (B4).
    rests: AtomicU32,
}

/// The reservations that shards of threads keep.
#[derive(Debug, Default)]
pub(crate) struct Credits([CachePadded<Shard>; SHARDS]);

impl Reservations {
    /// A reservation from what this thread's shard keeps, or from a batch that it reserves now.
    pub(crate) fn take_credit(&self, cost: Cost) -> Option<MetaReservation> {
        if !self.may_keep(cost.into()) {
            return None;
        }
        let shard = &self.credits.0[shard()];
        let rests = shard.rests.load(Ordering::Relaxed);
        if rests > 0 {
            // The count is not exact, because other threads of the shard decrement it, too.
            shard.rests.store(rests - 1, Ordering::Relaxed);
            return None;
        }
        let mut credit = shard.credit.lock();
        if let Some(part) = credit.unused.as_mut().and_then(|unused| unused.cut_all_of(cost)) {
            return Some(part);
        }
        let batch = cost.times(BATCH);
        if !self.queue.at_once(Priority::Normal, || self.try_reserve_batch(batch)) {
            shard.rests.store(REST, Ordering::Relaxed);
            let kept = mem::take(&mut *credit);
            drop(credit);
            self.settle_credit(kept);
            return None;
        }
        let mut fresh = MetaReservation::of_granted(self, batch, Urgency::Normal);
        let part = fresh.cut_all_of(cost);
        let old = credit.unused.replace(fresh);
        drop(credit);
        // It belonged to other operations than this one.
        drop(old);
        part
    }

    /// Whether reservations of this size may be kept here (B3, B4).
    fn may_keep(&self, cost: Costs) -> bool {
        !self.policy.is_levels() && cost.all_items() <= ITEMS_MAX && !self.queue.is_waiting()
    }

    /// Keeps a reservation that came back; returns it where it is not to be kept.
    pub(crate) fn keep(&self, reservation: MetaReservation) -> Option<MetaReservation> {
        let shard = &self.credits.0[shard()];
        if !self.may_keep(reservation.held())
            || shard.rests.load(Ordering::Relaxed) > 0
            || self.is_tight_now()
        {
            return Some(reservation);
        }
        let mut credit = shard.credit.lock();
        credit.came_back += 1;
        let all = match credit.spent.take() {
            None => reservation,
            Some(mut spent) => {
                spent.merge(reservation);
                spent
            }
        };
        // A ticket that joined the queue before this lock was taken is seen; a later one takes it
        // (B3).
        if credit.came_back >= BATCH || self.queue.is_waiting() {
            credit.came_back = 0;
            return Some(all);
        }
        credit.spent = Some(all);
        None
    }

    /// Gives back all that is kept; says whether there was anything.
    pub fn give_credit_back(&self) -> bool {
        let mut found = false;
        for shard in &self.credits.0 {
            let kept = mem::take(&mut *shard.credit.lock());
            found |= self.settle_credit(kept);
        }
        found
    }

    fn settle_credit(&self, kept: Credit) -> bool {
        let Credit { unused, spent, .. } = kept;
        let mut found = false;
        for mut reservation in [unused, spent].into_iter().flatten() {
            found |= !reservation.held().is_nothing();
            reservation.settle(self);
        }
        found
    }
}
