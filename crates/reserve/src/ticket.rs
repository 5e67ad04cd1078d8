//! A place in the queue of tickets that wait for metadata.
//!
//! # Invariants
//!
//! - **T1** A ticket that leaves the queue holds nothing. If it was granted meanwhile, the grant is
//!   taken back, and later tickets are tried again.
//! - **T2** Before an operation that frees space is refused, it waits up to `OTHERS_END` for other
//!   operations that free space to end. If they end in time, all flush steps run again. The changes
//!   that these operations put free space only at a commit. The commit among the earlier steps may
//!   have run before the operations ended.

use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_space::{Priority, Reach, Ticket, Verdict};

use crate::Cost;
use crate::class::TicketDemand;
use crate::outstanding::Outstanding;
use crate::reservations::Reservations;
use crate::token::MetaReservation;
use crate::waiting::{Look, OWN_SLICE, Waits};

/// How long an operation that frees space waits for other such operations to end, after all flush
/// steps failed.
const OTHERS_END: Duration = Duration::from_secs(1);

/// A ticket that waits for metadata.
pub struct MetaTicket<'e> {
    all: &'e Reservations,
    ticket: Option<Ticket<'e, TicketDemand>>,
    demand: TicketDemand,
    priority: Priority,
    /// Since when the ticket has waited for other operations that free space.
    waits_for_others: Option<Instant>,
}

impl<'e> MetaTicket<'e> {
    pub(crate) fn new(
        all: &'e Reservations,
        ticket: Ticket<'e, TicketDemand>,
        demand: TicketDemand,
        priority: Priority,
    ) -> Self {
        Self { all, ticket: Some(ticket), demand, priority, waits_for_others: None }
    }

    /// The events for which the waiting thread may wait. A ticket of high priority never waits for
    /// the flusher, since the flusher may wait for the operation that owns the ticket.
    pub fn reach(&self, asked: Reach) -> Reach {
        if self.priority == Priority::High { Reach::Commit } else { asked }
    }

    fn reservation(&self) -> MetaReservation {
        MetaReservation::of_granted(self.all, &self.demand)
    }

    fn others_free(&self) -> bool {
        !self.all.outstanding.lock().freeing().is_nothing()
    }
}

impl Waits for MetaTicket<'_> {
    type Token = MetaReservation;

    fn wait(&mut self, limit: Duration) -> Option<Option<MetaReservation>> {
        match self.ticket.as_mut()?.wait_for(limit)? {
            Verdict::Granted => Some(Some(self.reservation())),
            Verdict::Refused => Some(None),
        }
    }

    fn is_first(&self) -> bool {
        self.ticket.as_ref().is_some_and(Ticket::is_first)
    }

    fn may_give_up(&self) -> bool {
        self.priority == Priority::Normal
    }

    fn look_once_more(&mut self) -> Look<MetaReservation> {
        if !self.demand.class.frees() {
            return Look::InVain;
        }
        // The reservation has to fit beside the reservations of other operations that free space.
        // Reservations of writers that fill the volume do not count (`reserve::P4`).
        if self.all.try_reserve_beside(Outstanding::freeing, false, &self.demand) {
            return Look::Served(self.reservation());
        }
        let since = *self.waits_for_others.get_or_insert_with(clock::now);
        let had_others = self.others_free();
        while self.others_free() && clock::since(since) < OTHERS_END {
            match self.wait(OWN_SLICE) {
                Some(Some(reservation)) => return Look::Served(reservation),
                Some(None) => return Look::InVain,
                None => {}
            }
        }
        if had_others && clock::since(since) < OTHERS_END {
            return Look::MakeRoom;
        }
        match self.all.try_reserve_beside(|_| Cost::default(), false, &self.demand) {
            true => Look::Served(self.reservation()),
            false => Look::InVain,
        }
    }
}

impl Drop for MetaTicket<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        if ticket.leave() == Some(Verdict::Granted) {
            self.all.outstanding.lock().revoke(&self.demand);
        }
        // A later ticket may fit now (T1).
        self.all.serve();
    }
}
