//! Granting reservations, serving waiters, and what commits say of the space that they take.

use std::sync::atomic::Ordering;
use std::time::Duration;

use buttress_format::{Generation, Key};
use buttress_space::{Class, Reach};
use buttress_transaction::{Cost, Costs};
use buttress_tree::Roots;

use crate::copies::Tree;
use crate::outstanding::{Outstanding, shares};
use crate::reservations::Reservations;
use crate::ticket::MetaTicket;
use crate::token::MetaReservation;
use crate::transaction::Transaction;
use crate::urgency::{Demand, Urgency};

impl Reservations {
    /// Reserves if it fits at once and no ticket waits: first from credits that may be used for it.
    pub fn at_once(&self, cost: Cost, urgency: Urgency, reach: Reach) -> Option<MetaReservation> {
        if urgency == Urgency::Normal
            && let Some(reservation) = self.take_credit(cost)
        {
            return Some(reservation);
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

    /// Joins the queue. Returns the reservation, where it fits by then.
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
        // Operations that free space are among the tickets with priority.
        let frees = self.line.blocks(Class::Priority);
        let urgency = if frees { Urgency::Frees } else { Urgency::Normal };
        if self.line.is_waiting() && self.may_count(urgency) && self.recount() {
            self.serve();
        }
    }

    /// Notes what the commit of a frozen transaction may need. No operation is under way, and the
    /// next transaction is not visible yet.
    pub fn begin_commit(&self, frozen: &Transaction) {
        self.frozen_taken.store(0, Ordering::Relaxed);
        self.counts.of(frozen).never.store(!frozen.is_plain(), Ordering::Relaxed);
        let closer = self.closer_need(frozen, Costs::default()).unwrap_or(u64::MAX);
        self.frozen_need.store(self.need_of(frozen).min(closer), Ordering::Relaxed);
    }

    /// Notes bytes of metadata that the commit takes. Called after the account has taken them.
    pub fn take_frozen(&self, bytes: u64) {
        self.frozen_taken.fetch_add(bytes, Ordering::Release);
    }

    /// Notes bytes that the commit gives back. Called before they leave the account.
    pub fn return_frozen(&self, bytes: u64) {
        self.frozen_taken.fetch_sub(bytes, Ordering::Release);
    }

    /// Sets what the commit under way may still need, whatever was counted: for tests of what is
    /// left beside it.
    pub fn set_frozen_need(&self, bytes: u64) {
        self.frozen_need.store(bytes, Ordering::Release);
    }

    /// Notes that the trees are settled: the commit takes nothing more.
    pub fn settled(&self, frozen: &Transaction, nodes: u64) {
        self.frozen_need.store(0, Ordering::Relaxed);
        self.counts.of(frozen).settle(nodes);
        self.serve_counted();
    }

    /// Notes that a commit is published, and which root items it changed.
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

    /// Wakes the thread that makes room ahead, because it is to end.
    pub fn call_ahead(&self) {
        self.ahead.call();
    }

    /// Sleeps until reservations that count by themselves came to so many bytes more than now, at
    /// most so long. By the rule that counts all together nothing wakes it.
    pub fn wait_for_reservations(&self, more: Option<u64>, limit: Duration) {
        let more = more.filter(|_| self.policy.is_levels());
        self.ahead.wait(more, limit);
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

    /// Serves the tickets that wait for metadata, first come first served. Called wherever some
    /// comes free.
    pub fn serve(&self) -> u64 {
        self.line.serve(|demand| self.try_reserve(demand.cost, demand.urgency))
    }

    /// The most bytes of free metadata that a cost takes: for people and for forecasts.
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

    /// Reserves space for an operation that frees some, beside so much that is reserved (P4).
    pub(crate) fn try_reserve_beside(
        &self,
        others: impl Fn(&Outstanding) -> Costs,
        (cost, urgency): (Cost, Urgency),
    ) -> bool {
        let mut outstanding = self.outstanding.lock();
        let excess = self.excess(others(&outstanding) + cost.into(), urgency, false);
        let fits = excess == 0 || self.overcommit(excess, urgency);
        if fits {
            self.grant(&mut outstanding, cost, urgency);
        }
        fits
    }

    /// Reserves what several operations will need, where there is plenty.
    pub(crate) fn try_reserve_batch(&self, cost: Cost) -> bool {
        let mut outstanding = self.outstanding.lock();
        let view = self.view.load();
        let (account, frozen) = self.account_and_frozen();
        let crude = self.crude_need(view.running(), outstanding.sum() + cost.into(), account.used);
        let taken = crude + frozen + account.global_reserve;
        let is_plenty = taken <= account.free().saturating_sub(account.may_use) / 2;
        if is_plenty {
            self.note_pressure(0);
            self.grant(&mut outstanding, cost, Urgency::Normal);
        }
        is_plenty
    }

    fn grant(&self, outstanding: &mut Outstanding, cost: Cost, urgency: Urgency) {
        outstanding.grant(shares(cost, urgency));
        if self.policy.is_levels() {
            self.ahead.note(self.reserved_apart(outstanding.sum()));
        }
    }

    /// Takes back a grant that was not taken.
    pub(crate) fn revoke(&self, cost: Cost, urgency: Urgency) {
        self.outstanding.lock().revoke(shares(cost, urgency));
    }

    /// Whether a reservation would fit now. Reserves nothing, and makes no room.
    pub fn may_reserve(&self, cost: Cost, urgency: Urgency) -> bool {
        self.fits(&self.outstanding.lock(), cost, urgency)
    }
}

/// The class of a ticket: tickets on which others wait are served first.
fn class_of(urgency: Urgency, reach: Reach) -> Class {
    match (urgency, reach) {
        (Urgency::Frees | Urgency::Drops | Urgency::Finishes, _)
        | (_, Reach::Commit | Reach::Handle) => Class::Priority,
        (Urgency::Normal, Reach::All) => Class::Normal,
    }
}
