//! A reservation as a token that its owner holds (`reserve::P3`).

use std::sync::{Arc, Weak};

use buttress_base::CachePadded;
use buttress_base::shard::{SHARDS, shard};

use crate::inode::InodeReserve;
use crate::outstanding::shares;
#[cfg(debug_assertions)]
use crate::outstanding::{NOTHING, figures};
use crate::reservations::Reservations;
use crate::urgency::Urgency;
use crate::{Cost, Costs};

/// The account, for holders of reservations. Every operation has one: a single count of holders
/// would be contended by all processors.
#[derive(Debug)]
pub(crate) struct Owners([Arc<CachePadded<Weak<Reservations>>>; SHARDS]);

impl Owners {
    pub(crate) fn of(all: &Weak<Reservations>) -> Self {
        Self(std::array::from_fn(|_| Arc::new(CachePadded::new(Weak::clone(all)))))
    }
}

/// A reservation. What was not put when it is dropped was not needed.
#[must_use = "a reservation that is dropped reserves nothing"]
pub struct MetaReservation {
    owner: Arc<CachePadded<Weak<Reservations>>>,
    /// Many operations' worth may be held as one.
    held: Costs,
    /// The part of `held` that is reserved to free space.
    freeing: Costs,
    /// The inode with the dirty data that it is for, where that is counted by the inode.
    of: Option<Arc<InodeReserve>>,
    /// The id of the token in the list of live tokens.
    #[cfg(debug_assertions)]
    token: u64,
}

impl MetaReservation {
    /// Creates the token of a reservation that is already counted.
    pub fn of_granted(all: &Reservations, cost: Cost, urgency: Urgency) -> Self {
        let (held, freeing) = shares(cost, urgency);
        Self {
            owner: Arc::clone(&all.owners.0[shard()]),
            held,
            freeing,
            of: None,
            #[cfg(debug_assertions)]
            token: all.outstanding.lock().token_audit().enter(figures(held, freeing)),
        }
    }

    /// Makes it count by the inode with the dirty data that it is for, and all that is merged with
    /// it from now on. None of its items may be for anything else.
    pub fn bind(&mut self, of: &Arc<InodeReserve>) {
        if !self.of.as_ref().is_some_and(|own| Arc::ptr_eq(own, of)) {
            self.unbind();
            of.add(self.held.items);
            self.of = Some(Arc::clone(of));
        }
    }

    /// Makes every item count by itself again.
    fn unbind(&mut self) {
        if let Some(of) = self.of.take() {
            of.take(self.held.items);
        }
    }

    /// Adds another reservation of the same volume. If either counts by its inode, all of it does:
    /// both are for the same inode.
    ///
    /// # Panics
    ///
    /// When it is another volume's: a bug of the caller.
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

    /// Cuts off `part` of `whole`, rounded up: the share of some of the things it was made for.
    pub fn split(&mut self, part: usize, whole: usize) -> Self {
        let share = |of: u64| of.min((of * part as u64).div_ceil(whole.max(1) as u64));
        self.cut(self.held.map(self.held, |of, _| share(of)))
    }

    /// Cuts off as much of `cost` as the token holds, and returns the missing part.
    pub fn split_cost(&mut self, cost: Cost) -> (Self, Cost) {
        let part = self.held.map(cost.into(), u64::min);
        let short = Cost {
            items: cost.items - part.items as u32,
            commit_items: cost.commit_items - part.commit_items as u32,
            bytes: cost.bytes - part.bytes as u32,
        };
        (self.cut(part), short)
    }

    /// Gives back what it holds to its account: a caller that has the account at hand need not
    /// look for it. The account may keep it for a while; it stays reserved then.
    pub fn give_back(&mut self, all: &Reservations) {
        if self.held.is_nothing() {
            return;
        }
        self.unbind();
        if let Some(mut reservation) = all.keep(self.take(all)) {
            reservation.settle(all);
        }
    }

    /// Moves the whole reservation into a new token.
    fn take(&mut self, all: &Reservations) -> Self {
        #[cfg(not(debug_assertions))]
        let _ = all;
        Self {
            owner: Arc::clone(&self.owner),
            held: std::mem::take(&mut self.held),
            freeing: std::mem::take(&mut self.freeing),
            of: self.of.take(),
            #[cfg(debug_assertions)]
            token: {
                let nothing = all.outstanding.lock().token_audit().enter(NOTHING);
                std::mem::replace(&mut self.token, nothing)
            },
        }
    }

    /// Subtracts the reservation from the sum of all reservations.
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

    /// Items of trees that operations change.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.held.items
    }

    pub(crate) fn held(&self) -> Costs {
        self.held
    }

    /// Cuts off `cost`, if the token holds all of it.
    pub(crate) fn cut_all_of(&mut self, cost: Cost) -> Option<Self> {
        let cost = Costs::from(cost);
        (self.held.map(cost, u64::min) == cost).then(|| self.cut(cost))
    }

    fn cut(&mut self, part: Costs) -> Self {
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
        let Costs { items, commit_items, bytes } = self.held;
        write!(f, "MetaReservation({items} and {commit_items} items, {bytes} bytes)")
    }
}
