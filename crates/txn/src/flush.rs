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
use buttress_space::{FlushState, Reach, SpaceKind};

use crate::counters::steps::Gain;
use crate::counters::waits::{End, Wait};
use crate::waiting::{Look, OWN_SLICE, Waits};
use crate::{Allocation, Engine, Error, Result, Storage};

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

impl Flusher {
    /// Attaches a flusher, which calls [`Engine::wait_for_waiters`] and makes room.
    pub fn attach(engine: Arc<Engine>) -> Self {
        engine.flushers().attach();
        Self { engine }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.engine.flushers().detach();
    }
}

impl Engine {
    /// Sleeps until the flusher can help a waiting ticket, at most `limit`. Returns whether such a
    /// ticket waits.
    pub fn wait_for_waiters(&self, limit: Duration) -> bool {
        let queues = self.queues();
        let any = || queues.has_waiters(SpaceKind::Metadata) || queues.has_waiters(SpaceKind::Data);
        if any() {
            return true;
        }
        self.flushers().wait(limit);
        any()
    }

    /// Takes one of the flush steps that the engine carries out. All other steps gain nothing here.
    ///
    /// # Errors
    ///
    /// The error of a commit or of a chunk allocation.
    pub fn take_step(&self, kind: SpaceKind, step: FlushState) -> Result<Gain> {
        let queues = self.queues();
        let before = queues.served(kind);
        // Counting the needed nodes again is cheaper than any other step, and may make this step
        // unnecessary.
        if kind == SpaceKind::Metadata && queues.served_since(kind, before) {
            return Ok(Gain { gained: true, served: queues.served(kind) - before });
        }
        let gained = match step {
            FlushState::Unpin => {
                self.allocation().scrub_hold().release()
                    | self.allocation().release_pinned(self.storage())
            }
            FlushState::Readers => {
                wait_for_unpin(self.allocation(), self.storage(), || queues.serve(kind) > 0)
            }
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
                if self.commits().wait()
                    && (queues.served_since(kind, before) || !queues.has_waiters(kind)) =>
            {
                true
            }
            FlushState::Commit => {
                let helps = match kind {
                    SpaceKind::Data => self.storage().commit_would_free_data(self.commits()),
                    _ => self.commits().is_dirty() || self.commits().peek().frozen().is_some(),
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
        queues.serve(kind);
        Ok(Gain { gained, served: queues.served(kind) - before })
    }

    /// Makes the removal of chunks durable if chunks were removed since the last commit, or waits
    /// for the commit that does so. The devices get the space back only after this commit.
    fn get_chunks_back(&self) -> Result<()> {
        let view = self.commits().peek();
        if !view.running().removed.lock().is_empty() {
            drop(view);
            self.commit()?;
        } else if view.frozen().is_some_and(|frozen| !frozen.removed.lock().is_empty()) {
            drop(view);
            self.commits().wait();
        }
        Ok(())
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
        self.counters().report_wait(&Wait { kind, reach, bytes, waited, end });
        if let Some(reservation) = outcome? {
            return Ok(reservation);
        }
        // The refusal may have come from a failure of the engine (F3).
        self.check_writable()?;
        Err(self.counters().no_space(self.reservations(), kind, bytes))
    }

    fn wait_for_verdict<W: Waits>(
        &self,
        kind: SpaceKind,
        reach: Reach,
        ticket: &mut W,
    ) -> Result<Option<W::Token>> {
        while reach == Reach::All && self.flushers().any() {
            self.flushers().call();
            if let Some(verdict) = ticket.wait(SLICE) {
                return Ok(verdict);
            }
            self.check_writable()?;
            self.check_wanted(ticket)?;
        }
        // Without a flusher the thread of the first ticket makes room, but only by commits and
        // chunks (F1).
        let mut states = self.storage().flush_states(kind, Reach::Commit);
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
                    Look::MakeRoom => states = self.storage().flush_states(kind, Reach::Commit),
                }
                continue;
            };
            // A running commit may serve the ticket long before the commit is durable.
            let under_way = || self.commits().peek().frozen().map(|frozen| frozen.generation);
            let awaited = under_way().filter(|_| step == FlushState::Commit);
            while awaited.is_some() && awaited == under_way() {
                if let Some(verdict) = ticket.wait(OWN_SLICE) {
                    return Ok(verdict);
                }
                self.check_writable()?;
                self.check_wanted(ticket)?;
            }
            let before = self.queues().before_step(kind, step);
            let gain = self.take_step(kind, step)?;
            self.counters().report_step(self.queues(), &before, gain);
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
        let wanted = self.commits().peek().generation();
        let mut waiting = None;
        while interrupt::has_token()
            && self.commits().published() < wanted
            && self.commits().peek().frozen().is_some()
        {
            self.check_writable()?;
            if interrupt::is_interrupted() {
                return Err(self.interrupted());
            }
            waiting.get_or_insert_with(|| activity::wait(Cause::Commit));
            buttress_base::thread::sleep(OWN_SLICE);
        }
        drop(waiting);
        if self.commits().published() >= wanted {
            return Ok(self.commits().published());
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
        self.counters().note_interrupted();
        Error::Interrupted
    }

    /// Whether a ticket that waits, and may give up, is still wanted (F4).
    fn check_wanted(&self, waiter: &impl Waits) -> Result<()> {
        if waiter.may_give_up() { self.check_cancelled() } else { Ok(()) }
    }
}

/// Waits briefly for readers, which keep freed space pinned only for one operation. Returns
/// whether the wait helped.
fn wait_for_unpin(allocation: &Allocation, storage: &Storage, enough: impl Fn() -> bool) -> bool {
    let begun = clock::now();
    let mut unpinned = false;
    loop {
        unpinned |= allocation.release_pinned(storage);
        let oldest = allocation.pinned().oldest();
        let Some(oldest) = oldest else { return unpinned };
        if enough() {
            return true;
        }
        if clock::since(begun) > READERS_ONCE
            || allocation.pinned().awaited_for(oldest) > READERS_EVER
        {
            return unpinned;
        }
        buttress_base::thread::sleep(Duration::from_millis(1));
    }
}
