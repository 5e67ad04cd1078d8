//! Waiting for space, and making room for tickets that wait.
//!
//! # Place
//!
//! `space` keeps the queues and the order of the flush steps; this module carries the steps out.
//! Upper layers write data back, and attach a [`Flusher`] while they do so. Without a flusher, the
//! thread of the first ticket makes room itself, but only by commits and chunks.
//!
//! # Invariants
//!
//! - **F1** While a ticket waits, a thread makes room. For tickets that can wait for everything,
//!   the flusher makes room. Without a flusher, and for other tickets, the thread of the first
//!   ticket in the queue makes room.
//! - **F2** A ticket is refused only after a run of all flush steps that served no ticket. The
//!   ticket was in the queue when that run began. Tickets are refused in the order of the queue.
//!   After each refusal the tickets behind the refused ticket are served if they fit.
//! - **F3** When the engine fails, every waiting ticket is refused.
//! - **F4** If a ticket waits for data space or can wait for everything, it gives up when its
//!   caller is interrupted ([`Interrupt`](buttress_base::Interrupt)). The ticket then keeps no
//!   space. Other tickets belong to operations that free space or complete writes, so they wait
//!   until they are served or refused. Writeback is never interrupted.

use std::{sync::Arc, time::Duration};

use buttress_base::activity::{self, Cause};
use buttress_base::{clock, interrupt};
use buttress_format::Generation;
use buttress_space::{FlushState, FlushStates, Priority, Reach, SpaceKind, TicketNumber};

use crate::counters::steps::Gain;
use crate::counters::waits::{End, Wait};
use crate::waiting::{Look, OWN_SLICE, Waits};
use crate::{Engine, Error, Result};

mod report;

/// How long a ticket in the queue sleeps before it checks whether a flusher is still attached.
const SLICE: Duration = Duration::from_millis(20);

/// Longest time that a thread which makes room waits for readers of old trees in one step.
const READERS_ONCE: Duration = Duration::from_millis(500);
/// Longest time, from the first wait on, that threads wait for the readers of one old tree. A long
/// reader (a send, a stopped program) reads for minutes. Without this limit each refused request
/// would wait for such a reader in every run of the flush steps, nine seconds in total.
const READERS_EVER: Duration = Duration::from_secs(2);

/// An attached flusher, which writes dirty data back for tickets that wait, until this value is
/// dropped.
#[derive(Debug)]
#[must_use = "it is detached when dropped"]
pub struct Flusher {
    engine: Arc<Engine>,
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.engine.flushers.detach();
    }
}

impl Engine {
    /// Attaches a flusher, which calls [`wait_for_waiters`](Self::wait_for_waiters) and makes room.
    pub fn attach_flusher(self: &Arc<Self>) -> Flusher {
        self.flushers.attach();
        Flusher { engine: Arc::clone(self) }
    }

    /// Whether there is a flusher.
    #[must_use]
    pub fn has_flusher(&self) -> bool {
        self.flushers.any()
    }

    /// Sleeps until the flusher can help a waiting ticket, at most `limit`. Returns whether such a
    /// ticket waits.
    pub fn wait_for_waiters(&self, limit: Duration) -> bool {
        let any = || self.has_waiters(SpaceKind::Metadata) || self.has_waiters(SpaceKind::Data);
        if any() {
            return true;
        }
        self.flushers.wait(limit);
        any()
    }

    /// Wakes the flusher, because a ticket waits or because the flusher must end.
    pub fn call_flusher(&self) {
        self.flushers.call();
    }

    /// Whether a ticket waits for a kind of space.
    #[must_use]
    pub fn has_waiters(&self, kind: SpaceKind) -> bool {
        match kind {
            SpaceKind::Data => self.space.data_queue().is_waiting(),
            SpaceKind::Metadata => self.reservations.queue().is_waiting(),
            SpaceKind::System => false,
        }
    }

    /// Sum of the bytes that waiting tickets request.
    #[must_use]
    pub fn waiting_bytes(&self, kind: SpaceKind) -> u64 {
        match kind {
            SpaceKind::Data => self.space.data_queue().sum(|bytes| *bytes),
            SpaceKind::Metadata => {
                self.reservations.queue().sum(|demand| self.reservations.bytes_of(demand.cost))
            }
            SpaceKind::System => 0,
        }
    }

    /// Serves the tickets that wait for a kind of space while their requests fit. Returns the
    /// number of served tickets.
    pub fn serve(&self, kind: SpaceKind) -> u64 {
        match kind {
            SpaceKind::Data if self.space.data_queue().is_waiting() => {
                self.space.serve_data(|| self.data_leaves_metadata())
            }
            SpaceKind::Metadata => self.reservations.serve(),
            SpaceKind::Data | SpaceKind::System => 0,
        }
    }

    /// Serves the tickets of both kinds of space after space was freed.
    pub fn serve_all(&self) {
        self.serve_counted(SpaceKind::Metadata);
        self.serve_counted(SpaceKind::Data);
    }

    /// Number of tickets served since the engine was opened.
    #[must_use]
    pub fn served(&self, kind: SpaceKind) -> u64 {
        match kind {
            SpaceKind::Data => self.space.data_queue().served(),
            SpaceKind::Metadata | SpaceKind::System => self.reservations.queue().served(),
        }
    }

    /// The flush steps for a kind of space, by its accounts as they are now.
    #[must_use]
    pub fn flush_states(&self, kind: SpaceKind, reach: Reach) -> FlushStates {
        let account = self.space.account(kind);
        FlushStates::new(kind, reach, account.used > account.total / 10 * 7)
    }

    /// Takes one of the flush steps that the engine carries out. All other steps gain nothing here.
    ///
    /// # Errors
    ///
    /// The error of a commit or of a chunk allocation.
    pub fn take_step(&self, kind: SpaceKind, step: FlushState) -> Result<Gain> {
        let before = self.served(kind);
        // Counting the needed nodes again is cheaper than any other step, and may make this step
        // unnecessary.
        if kind == SpaceKind::Metadata && self.served_since(kind, before) {
            return Ok(Gain { gained: true, served: self.served(kind) - before });
        }
        let gained = match step {
            FlushState::Unpin => self.release_scrub_hold() | self.release_pinned(),
            FlushState::Readers => self.wait_for_unpin(|| self.serve(kind) > 0),
            FlushState::Chunk => {
                // A running commit gives space back at its end, perhaps between the two attempts to
                // add a chunk.
                self.add_chunk(kind)? || {
                    self.get_chunks_back()?;
                    self.add_chunk(kind)?
                }
            }
            // During the commit another thread may have served tickets, even the ticket for which
            // these steps run, and tickets may have left the queue.
            FlushState::Commit
                if self.wait_for_commit()
                    && (self.served_since(kind, before) || !self.has_waiters(kind)) =>
            {
                true
            }
            FlushState::Commit => {
                let helps = match kind {
                    SpaceKind::Data => self.commit_would_free_data(),
                    _ => self.is_dirty() || self.view.load().frozen().is_some(),
                };
                if helps {
                    self.commit()?;
                }
                helps
            }
            // The nodes were counted again above.
            FlushState::Count => false,
            FlushState::Dirty | FlushState::AllDirty | FlushState::Ordered | FlushState::Clean => {
                false
            }
        };
        self.serve(kind);
        Ok(Gain { gained, served: self.served(kind) - before })
    }

    /// Serves tickets that fit, and returns whether any was served since the count was `before`.
    fn served_since(&self, kind: SpaceKind, before: u64) -> bool {
        self.serve_counted(kind);
        self.served(kind) != before
    }

    /// Serves the waiting tickets. If tickets for metadata still wait, counts the needed nodes
    /// again and serves once more.
    pub fn serve_counted(&self, kind: SpaceKind) {
        match kind {
            SpaceKind::Metadata => self.reservations.serve_counted(),
            SpaceKind::Data | SpaceKind::System => drop(self.serve(kind)),
        }
    }

    /// Waits for the running commit and returns whether there was one. The space that it gives back
    /// may be enough. Another commit right after the running one would settle only the few
    /// operations made meanwhile.
    fn wait_for_commit(&self) -> bool {
        let is_under_way = self.view.load().frozen().is_some();
        if is_under_way {
            drop(self.commit.lock());
        }
        is_under_way
    }

    /// Makes the removal of chunks durable if chunks were removed since the last commit, or waits
    /// for the commit that does so. The devices get the space back only after this commit.
    fn get_chunks_back(&self) -> Result<()> {
        let view = self.view.load();
        if !view.running().removed.lock().is_empty() {
            drop(view);
            self.commit()?;
        } else if view.frozen().is_some_and(|frozen| !frozen.removed.lock().is_empty()) {
            drop(view);
            self.wait_for_commit();
        }
        Ok(())
    }

    /// The number that the next ticket in the queue for a kind of space will get.
    #[must_use]
    pub fn next_ticket(&self, kind: SpaceKind) -> TicketNumber {
        match kind {
            SpaceKind::Data => self.space.data_queue().next_ticket(),
            SpaceKind::Metadata | SpaceKind::System => self.reservations.queue().next_ticket(),
        }
    }

    /// Refuses the tickets that were queued before `before`, in order, until a later ticket fits
    /// (F2). Tickets with priority flush for themselves and give up by themselves.
    pub fn refuse(&self, kind: SpaceKind, before: TicketNumber) {
        let blocks = |priority| match kind {
            SpaceKind::Data => self.space.data_queue().blocks(priority),
            _ => self.reservations.queue().blocks(priority),
        };
        let refuse_first = || match kind {
            SpaceKind::Data => self.space.data_queue().refuse_first(Priority::Normal, before),
            _ => self.reservations.queue().refuse_first(Priority::Normal, before),
        };
        // Space may have been freed since the last step.
        if self.serve(kind) > 0 {
            return;
        }
        while !blocks(Priority::High) && refuse_first() {
            if self.serve(kind) > 0 {
                break;
            }
        }
    }

    /// Refuses every waiting ticket (F3).
    pub(crate) fn refuse_all(&self) {
        self.reservations.queue().refuse_all();
        self.space.data_queue().refuse_all();
    }

    /// Waits until the ticket is granted or refused.
    pub(crate) fn wait_in_queue<W: Waits>(
        &self,
        kind: SpaceKind,
        reach: Reach,
        bytes: u64,
        ticket: &mut W,
    ) -> Result<W::Token> {
        let started = clock::now();
        let waiting = activity::wait(Cause::Room);
        let outcome = self.wait_for_verdict(kind, reach, ticket);
        drop(waiting);
        let end = match &outcome {
            Ok(Some(_)) => End::Granted,
            Ok(None) => End::Refused,
            Err(Error::Interrupted) => End::Interrupted,
            Err(_) => End::Failed,
        };
        let waited = clock::since(started);
        self.report_wait(&Wait { kind, reach, bytes, waited, end });
        if let Some(reservation) = outcome? {
            return Ok(reservation);
        }
        // The refusal may have come from a failure of the engine (F3).
        self.check_writable()?;
        Err(self.no_space(kind, bytes))
    }

    fn wait_for_verdict<W: Waits>(
        &self,
        kind: SpaceKind,
        reach: Reach,
        ticket: &mut W,
    ) -> Result<Option<W::Token>> {
        while reach == Reach::All && self.has_flusher() {
            self.call_flusher();
            if let Some(verdict) = ticket.wait(SLICE) {
                return Ok(verdict);
            }
            self.check_writable()?;
            self.check_wanted(ticket)?;
        }
        // Without a flusher the thread of the first ticket makes room, but only by commits and
        // chunks (F1).
        let mut states = self.flush_states(kind, Reach::Commit);
        loop {
            let is_first = ticket.is_first();
            let limit = if is_first { Duration::ZERO } else { OWN_SLICE };
            if let Some(verdict) = ticket.wait(limit) {
                return Ok(verdict);
            }
            self.check_writable()?;
            self.check_wanted(ticket)?;
            if !is_first {
                continue;
            }
            let Some(step) = states.next_state() else {
                match ticket.look_once_more() {
                    Look::Served(reservation) => return Ok(Some(reservation)),
                    Look::InVain => return Ok(None),
                    Look::MakeRoom => states = self.flush_states(kind, Reach::Commit),
                }
                continue;
            };
            // A running commit may serve the ticket long before the commit is durable.
            let under_way = || self.view.load().frozen().map(|frozen| frozen.generation);
            let awaited = under_way().filter(|_| step == FlushState::Commit);
            while awaited.is_some() && awaited == under_way() {
                if let Some(verdict) = ticket.wait(OWN_SLICE) {
                    return Ok(verdict);
                }
                self.check_writable()?;
                self.check_wanted(ticket)?;
            }
            let before = self.before_step(kind, step);
            let gain = self.take_step(kind, step)?;
            self.report_step(&before, gain);
            states.note(gain.gained, false);
        }
    }

    /// As [`commit`](Self::commit), but the wait for a running commit ends when the caller is
    /// interrupted (F4). It starts no commit if the commit of another thread has made the caller's
    /// transaction durable.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`]; in this case nothing was done. Also the errors of
    /// [`commit`](Self::commit).
    pub fn commit_while_wanted(&self) -> Result<Generation> {
        let wanted = self.view.load().generation();
        while interrupt::has_token()
            && self.published() < wanted
            && self.view.load().frozen().is_some()
        {
            self.check_writable()?;
            if interrupt::is_interrupted() {
                return Err(self.interrupted());
            }
            let _waiting = activity::wait(Cause::Commit);
            buttress_base::thread::sleep(OWN_SLICE);
        }
        if self.published() >= wanted {
            return Ok(self.published());
        }
        self.commit()
    }

    /// Checks whether the caller still wants the long step that this thread is about to do.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`].
    pub fn check_cancelled(&self) -> Result<()> {
        if interrupt::is_interrupted() { Err(self.interrupted()) } else { Ok(()) }
    }

    fn interrupted(&self) -> Error {
        self.counters.note_interrupted();
        Error::Interrupted
    }

    /// Whether a ticket that waits, and may give up, is still wanted (F4).
    fn check_wanted(&self, waiter: &impl Waits) -> Result<()> {
        if waiter.may_give_up() { self.check_cancelled() } else { Ok(()) }
    }

    /// Waits briefly for readers, which keep freed space pinned only for one operation. Returns
    /// whether the wait helped.
    fn wait_for_unpin(&self, enough: impl Fn() -> bool) -> bool {
        let begun = clock::now();
        let mut unpinned = false;
        loop {
            unpinned |= self.release_pinned();
            let oldest = self.pinned.oldest();
            let Some(oldest) = oldest else { return unpinned };
            if enough() {
                return true;
            }
            if clock::since(begun) > READERS_ONCE || self.pinned.awaited_for(oldest) > READERS_EVER
            {
                return unpinned;
            }
            buttress_base::thread::sleep(Duration::from_millis(1));
        }
    }
}
