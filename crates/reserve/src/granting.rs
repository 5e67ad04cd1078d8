//! Grants reservations, serves waiting tickets, and records the space that commits allocate.

use std::time::Duration;

use buttress_format::{Generation, Key};
use buttress_space::{Priority, Reach};
use buttress_transaction::Cost;
use buttress_tree::Roots;

use crate::class::{ReserveClass, TicketDemand};
use crate::copies_need::TreeFacts;
use crate::outstanding::Outstanding;
use crate::reservations::Reservations;
use crate::ticket::MetaTicket;
use crate::token::MetaReservation;
use crate::transaction::Transaction;

impl Reservations {
    /// Reserves if the cost fits now and no ticket waits. A normal request first tries the
    /// reservations that its shard keeps.
    pub fn at_once(
        &self,
        cost: Cost,
        class: ReserveClass,
        reach: Reach,
    ) -> Option<MetaReservation> {
        if class == ReserveClass::Normal
            && let Some(reservation) = self.take_cached(cost)
        {
            return Some(reservation);
        }
        let demand = TicketDemand { cost, class };
        let priority = priority_of(class, reach);
        let take = || self.queue.at_once(priority, || self.try_reserve(&demand));
        let granted = take()
            || (self.give_cached_back() && take())
            || (self.may_count(class) && self.recount() && take());
        granted.then(|| {
            if self.parts.policy.is_levels() {
                self.preempt_wakeup.look(self.reserved_apart());
            }
            self.count_ahead();
            MetaReservation::of_granted(self, &demand)
        })
    }

    /// Joins the queue. Returns the reservation if the cost fits meanwhile.
    pub fn ask(
        &self,
        cost: Cost,
        class: ReserveClass,
        reach: Reach,
    ) -> Result<MetaReservation, MetaTicket<'_>> {
        let demand = TicketDemand { cost, class };
        let priority = priority_of(class, reach);
        let Some(ticket) = self.queue.ask(priority, demand, |demand| self.try_reserve(demand))
        else {
            return Ok(MetaReservation::of_granted(self, &demand));
        };
        self.give_cached_back();
        Err(MetaTicket::new(self, ticket, demand, priority))
    }

    /// Serves waiting tickets. If some still wait, makes a new count and serves again.
    pub fn serve_counted(&self) {
        self.serve();
        // Tickets of high priority include operations that free space.
        let frees = self.queue.blocks(Priority::High);
        let class = if frees { ReserveClass::Free } else { ReserveClass::Normal };
        if self.queue.is_waiting() && self.may_count(class) && self.recount() {
            self.serve();
        }
    }

    /// Records how many bytes the commit of a frozen transaction may allocate. No handle is held,
    /// and the next transaction is not visible yet.
    pub fn begin_commit(&self, frozen: &Transaction) {
        self.ledgers.of(frozen).begin_commit(frozen);
        let closer = self.closer_need(frozen).unwrap_or(u64::MAX);
        self.frozen.begin(self.need_of(frozen).min(closer));
    }

    /// Notes that nodes are also allocated in rows of `row` bytes, which share parity. Each commit
    /// may leave the rest of a row unused.
    pub fn note_row(&self, row: u64) {
        self.frozen.note_row_rest(row.saturating_sub(self.nodesize()));
    }

    /// Records that the commit has settled: it allocates no more metadata, and made `nodes` nodes.
    pub fn settled(&self, frozen: &Transaction, nodes: u64) {
        self.frozen.end();
        self.ledgers.of(frozen).settle(nodes);
        self.serve_counted();
    }

    /// Records that a commit is published, and the root items that it changed.
    pub fn published(
        &self,
        roots: &Roots,
        trees: std::collections::BTreeMap<Key, Option<TreeFacts>>,
        generation: Generation,
    ) {
        self.frozen.end();
        if self.is_shared() {
            self.look_at_extents(roots);
        }
        self.note_trees(trees, generation);
        self.size_global_reserve();
        self.keep_anew();
    }

    /// Wakes the thread of the preemptive flusher so that it can end.
    pub fn call_ahead(&self) {
        self.preempt_wakeup.call();
    }

    /// Sleeps for at most `limit`, or until reservations have grown by `more` bytes. Under the
    /// policy `Counted`, the growth of reservations does not end the sleep.
    pub fn wait_for_reservations(&self, more: Option<u64>, limit: Duration) {
        let more = more.filter(|_| self.parts.policy.is_levels());
        let at = more.map(|more| self.reserved_apart().saturating_add(more));
        self.preempt_wakeup.wait(at, limit);
    }

    /// From now on, reservations expect trees of this height: the level of the root.
    pub fn note_height(&self, height: u8) {
        self.shape.note_height(height);
    }

    /// Checks that the outstanding sum equals the live tokens (`reserve::P3`).
    #[cfg(debug_assertions)]
    pub fn audit(&self) {
        self.outstanding.lock().audit();
    }

    /// Serves the tickets that wait for metadata, first come first served. Called wherever metadata
    /// space becomes free.
    pub fn serve(&self) -> u64 {
        self.queue.serve(|demand| self.try_reserve(demand))
    }

    /// The most bytes of free metadata that a cost needs, for display and forecasts.
    pub fn bytes_of(&self, cost: Cost) -> u64 {
        cost.all_items().saturating_mul(self.levels() * self.nodesize())
    }

    fn try_reserve(&self, demand: &TicketDemand) -> bool {
        self.try_reserve_beside(Outstanding::sum, true, demand)
    }

    /// Reserves if the cost fits beside the reservations that `others` returns. All other
    /// reservations are ignored (`reserve::P4`). For `by_inodes` see
    /// [`need_by_count`](Self::need_by_count).
    pub(crate) fn try_reserve_beside(
        &self,
        others: impl Fn(&Outstanding) -> Cost,
        by_inodes: bool,
        demand: &TicketDemand,
    ) -> bool {
        let mut outstanding = self.outstanding.lock();
        let fits = self.fits(others(&outstanding).and(demand.cost), demand.class, by_inodes);
        if fits {
            outstanding.grant(demand);
        }
        fits
    }

    /// Reserves a batch for several operations, if it leaves half of the free space (`cache::B4`).
    pub(crate) fn try_reserve_batch(&self, batch: &TicketDemand) -> bool {
        let mut outstanding = self.outstanding.lock();
        let view = self.parts.view.load();
        let (account, frozen) = self.account_and_frozen();
        let to_come = outstanding.sum().and(batch.cost);
        let crude = self.crude_need(view.running(), to_come, account.used);
        let taken = crude + frozen + account.global_reserve;
        let is_plenty = taken <= account.free().saturating_sub(account.may_use) / 2;
        if is_plenty {
            self.pressure.note(0);
            outstanding.grant(batch);
        }
        is_plenty
    }

    /// Whether a reservation would fit now. It reserves nothing and makes no room.
    pub fn may_reserve(&self, cost: Cost, class: ReserveClass) -> bool {
        let outstanding = self.outstanding.lock();
        self.fits(outstanding.sum().and(cost), class, true)
    }
}

/// The priority of a ticket. Requests on which other threads may wait are served first.
fn priority_of(class: ReserveClass, reach: Reach) -> Priority {
    match (class, reach) {
        (ReserveClass::Free | ReserveClass::DropTree | ReserveClass::Finish, _)
        | (_, Reach::Commit | Reach::Handle) => Priority::High,
        (ReserveClass::Normal, Reach::All) => Priority::Normal,
    }
}
