//! A reservation as a token that its owner holds (`reserve::P3`).

use std::sync::{Arc, Weak};

use buttress_base::CachePadded;
use buttress_base::shard::{SHARDS, shard};

use crate::Cost;
use crate::class::TicketDemand;
use crate::inode::InodeReserve;
#[cfg(debug_assertions)]
use crate::outstanding::{NOTHING, figures};
use crate::reservations::Reservations;

/// Tokens take their reference to the volume's `Reservations` from here. Each shard has its own
/// reference. Every operation has a token, so all processors would contend for a single reference
/// count.
#[derive(Debug)]
pub(crate) struct ShardRefs([Arc<CachePadded<Weak<Reservations>>>; SHARDS]);

impl ShardRefs {
    pub(crate) fn of(all: &Weak<Reservations>) -> Self {
        Self(std::array::from_fn(|_| Arc::new(CachePadded::new(Weak::clone(all)))))
    }
}

/// A reservation. Dropping it gives back the part that operations did not use.
#[must_use = "a reservation that is dropped reserves nothing"]
pub struct MetaReservation {
    owner: Arc<CachePadded<Weak<Reservations>>>,
    /// The cost that the token holds; it may cover many operations.
    held: Cost,
    /// The part of `held` that belongs to operations which free space.
    freeing: Cost,
    /// The inode that bounds these items, if the reservation is for the inode's dirty data
    /// (`inode`).
    of: Option<Arc<InodeReserve>>,
    /// The id of the token in the list of live tokens.
    #[cfg(debug_assertions)]
    token: u64,
}

impl MetaReservation {
    /// Creates the token of a reservation that the outstanding sum already includes.
    pub(crate) fn of_granted(all: &Reservations, demand: &TicketDemand) -> Self {
        let (held, freeing) = demand.shares();
        Self {
            owner: Arc::clone(&all.owners.0[shard()]),
            held,
            freeing,
            of: None,
            #[cfg(debug_assertions)]
            token: all.outstanding.lock().token_audit().enter(figures(held, freeing)),
        }
    }

    /// Attaches the reservation to the inode of its dirty data. From then on, the inode's bound
    /// limits the reservation and all reservations that are merged into it later. All items of the
    /// reservation must be for this inode.
    pub fn bind(&mut self, of: &Arc<InodeReserve>) {
        if !self.of.as_ref().is_some_and(|own| Arc::ptr_eq(own, of)) {
            self.unbind();
            of.add(self.held.items);
            self.of = Some(Arc::clone(of));
        }
    }

    /// Detaches the reservation from its inode, so that no bound limits it.
    fn unbind(&mut self) {
        if let Some(of) = self.of.take() {
            of.take(self.held.items);
        }
    }

    /// Merges `other` into this reservation. If one of the two reservations is attached to an
    /// inode, the result is attached, too. In this case both reservations must be for this inode.
    ///
    /// # Panics
    ///
    /// If `other` belongs to another volume; this is a bug of the caller.
    pub fn merge(&mut self, mut other: Self) {
        assert!(self.owner.ptr_eq(&other.owner), "reservations of two volumes");
        #[cfg(debug_assertions)]
        if let Some(all) = self.owner.upgrade() {
            let mut outstanding = all.outstanding.lock();
            outstanding.token_audit().merge(self.token, other.token);
            other.token = outstanding.token_audit().enter(NOTHING);
        }
        if let Some(of) = other.of.clone() {
            self.bind(&of);
        }
        other.unbind();
        if let Some(of) = &self.of {
            of.add(other.held.items);
        }
        self.held += std::mem::take(&mut other.held);
        self.freeing += std::mem::take(&mut other.freeing);
    }

    /// Splits off `part` of `whole` equal parts, rounded up.
    pub fn split(&mut self, part: usize, whole: usize) -> Self {
        let share = |of: u64| of.min((of * part as u64).div_ceil(whole.max(1) as u64));
        self.cut(self.held.map(self.held, |of, _| share(of)))
    }

    /// Splits off as much of `cost` as the token holds. Returns this part and the missing cost.
    pub fn split_cost(&mut self, cost: Cost) -> (Self, Cost) {
        let part = self.held.map(cost, u64::min);
        (self.cut(part), cost.beyond(part))
    }

    /// Gives the whole reservation back. A caller that already has `all` saves a lookup. A shard
    /// may keep the reservation for a while; then it still counts as reserved.
    pub fn give_back(&mut self, all: &Reservations) {
        if self.held.is_nothing() {
            return;
        }
        self.unbind();
        if let Some(mut reservation) = all.keep(self.cut(self.held)) {
            reservation.settle(all);
        }
    }

    /// Subtracts the reservation from the sum of all reservations, and serves waiting tickets.
    pub(crate) fn settle(&mut self, all: &Reservations) {
        self.unbind();
        let (held, freeing) = (std::mem::take(&mut self.held), std::mem::take(&mut self.freeing));
        if held.is_nothing() {
            return;
        }
        {
            let mut outstanding = all.outstanding.lock();
            outstanding.give((held, freeing));
            #[cfg(debug_assertions)]
            outstanding.token_audit().give(self.token, figures(held, freeing));
        }
        all.serve();
    }

    /// The reserved items of trees that operations change.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.held.items
    }

    pub(crate) fn held(&self) -> Cost {
        self.held
    }

    /// Splits off `cost`, if the token holds all of it; otherwise `None`.
    pub(crate) fn cut_all_of(&mut self, cost: Cost) -> Option<Self> {
        (self.held.map(cost, u64::min) == cost).then(|| self.cut(cost))
    }

    fn cut(&mut self, part: Cost) -> Self {
        self.held -= part;
        let freeing = self.freeing.map(part, u64::min);
        self.freeing -= freeing;
        Self {
            owner: Arc::clone(&self.owner),
            held: part,
            freeing,
            of: self.of.clone(),
            #[cfg(debug_assertions)]
            token: self.owner.upgrade().map_or(0, |all| {
                all.outstanding.lock().token_audit().split(self.token, figures(part, freeing))
            }),
        }
    }
}

impl Drop for MetaReservation {
    fn drop(&mut self) {
        if self.held.is_nothing() && cfg!(not(debug_assertions)) {
            return;
        }
        let Some(all) = self.owner.upgrade() else { return self.unbind() };
        self.give_back(&all);
        #[cfg(debug_assertions)]
        all.outstanding.lock().token_audit().leave(self.token, NOTHING);
    }
}

impl std::fmt::Debug for MetaReservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Cost { items, commit_items, bytes } = self.held;
        write!(f, "MetaReservation({items} and {commit_items} items, {bytes} bytes)")
    }
}
