//! The thread that makes room for callers that wait for space.
//!
//! # Place
//!
//! The thread goes through the flush states in order. The engine takes most steps itself. This
//! thread takes the steps for dirty data and deleted inodes, because the engine has no access to
//! files.
//!
//! # Invariants
//!
//! - **M1** The thread never waits for a file's writeback claim. A thread that holds a claim may be
//!   in the queue that this thread serves.
//! - **M2** While there are very recent reservations, the thread refuses no waiter. It waits until
//!   these reservations are dirty data or given back, and runs the flush states again, a few times.
//!   Without the wait the thread would give up too early: a run without work is faster than the
//!   wake-up of a thread.
//! - **M3** The thread alternates between the two kinds of space, step by step. A run may be
//!   endless, as long as it serves waiters.
//!
//! # Failure
//!
//! Without this thread waiters make room themselves, but only by commits and new chunks.

use std::mem;
use std::sync::atomic::Ordering;
use std::time::Duration;

use buttress_base::{activity, clock};
use buttress_items::Result;
use buttress_txn::{FlushState, FlushStates, Flusher, Gain, Reach, SpaceKind, TicketNumber};

use super::Space;
use crate::stop::StopSignal;
use crate::writeback::BATCH_BYTES;

/// Period of the thread's checks without a call.
const PERIOD: Duration = Duration::from_millis(200);

/// Divisor: the smallest part of the dirty data that a first attempt writes back.
const DIRTY_PART: u64 = 8;

/// Pause between looks at what other threads change.
const LOOK: Duration = Duration::from_millis(1);
/// Most looks in a row without a change, before what is watched counts as still. Time alone does
/// not count: where other programs keep the processors from this one, no thread changes anything.
const STILL: u32 = 20;
/// The longest wait for ordered extents that are being written, without a finished one. They always
/// finish before that, because a thread that writes back makes its own room and does not wait for
/// this thread.
const ORDERED: Duration = Duration::from_secs(30);

/// Most looks at reservations that are used or given back, while they change.
const SETTLING: u32 = 200;
/// Number of further runs after a wait for reservations, if no waiter is served.
const MORE_RUNS: u32 = 3;

/// A run of the flush states for the waiters of one kind of space.
struct Run {
    kind: SpaceKind,
    /// Waiters that came after this point are not refused at the end of the run.
    begun: TicketNumber,
    states: FlushStates,
    /// Whether the run is counted in the figures.
    is_counted: bool,
    /// The number of further runs that may follow.
    more: u32,
}

impl Space {
    /// Serves waiters until the mount ends.
    pub(crate) fn serve_waiters(&self, stop: &StopSignal, _attached: Flusher) {
        const KINDS: [SpaceKind; 2] = [SpaceKind::Metadata, SpaceKind::Data];
        let mut runs: [Option<Run>; 2] = [None, None];
        while !stop.is_set() {
            if runs.iter().all(Option::is_none) && !self.engine.wait_for_waiters(PERIOD) {
                continue;
            }
            let _busy = activity::busy();
            for (kind, run) in KINDS.into_iter().zip(&mut runs) {
                // A run that continues has checked its waiters after its last step.
                if run.is_none() && !self.engine.queues().has_waiters(kind) {
                    continue;
                }
                let mut going = run.take().unwrap_or_else(|| self.begin_run(kind));
                match self.step_run(stop, &mut going) {
                    // If no waiter is left, end this run, so that the next waiter begins a new run.
                    Ok(true) if self.engine.queues().has_waiters(kind) => *run = Some(going),
                    Ok(_) => {}
                    Err(_) if self.engine.commits().aborted().is_some() => return,
                    Err(error) => {
                        tracing::error!(%kind, %error, "making room failed");
                        self.engine.queues().refuse(kind, self.engine.queues().next_ticket(kind));
                    }
                }
            }
        }
    }

    fn begin_run(&self, kind: SpaceKind) -> Run {
        let begun = self.engine.queues().next_ticket(kind);
        let states = self.engine.storage().flush_states(kind, Reach::All);
        Run { kind, begun, states, is_counted: false, more: MORE_RUNS }
    }

    /// Counts a run once it has made room, served a waiter or refused a waiter. If other threads
    /// give reservations back just after a waiter came, no step was needed. Such a run is no reason
    /// to flush earlier, so it is not counted.
    fn count_run(&self, run: &mut Run) {
        if !mem::replace(&mut run.is_counted, true) {
            self.figures.runs.fetch_add(1, Ordering::Relaxed);
            if run.kind == SpaceKind::Metadata {
                self.figures.runs_for_metadata.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes the next step, or refuses the waiters at the end. Returns whether the run continues.
    fn step_run(&self, stop: &StopSignal, run: &mut Run) -> Result<bool> {
        let kind = run.kind;
        let Some(step) = run.states.next_state() else {
            if run.more > 0 && self.reservations_settle(stop, kind) {
                run.states = self.engine.storage().flush_states(kind, Reach::All);
                run.more -= 1;
                return Ok(true);
            }
            self.count_run(run);
            self.engine.queues().refuse(kind, run.begun);
            return Ok(false);
        };
        let before = self.engine.queues().before_step(kind, step);
        let gain = match step {
            FlushState::Dirty | FlushState::AllDirty | FlushState::Ordered | FlushState::Clean => {
                let before = self.engine.queues().served(kind);
                let gained = self.take_step(stop, kind, step);
                self.engine.queues().serve_counted(kind);
                Gain { gained, served: self.engine.queues().served(kind) - before }
            }
            step => self.engine.take_step(kind, step)?,
        };
        self.engine.report_step(&before, gain);
        if gain.gained {
            self.count_run(run);
        }
        run.states.note(gain.gained, gain.served > 0);
        run.more = if gain.served > 0 { MORE_RUNS } else { run.more };
        Ok(true)
    }

    /// Waits until reservations are dirty data or given back, as long as some of them change (M2).
    /// Returns whether any reservation changed. In that case there may be space, or data to write.
    fn reservations_settle(&self, stop: &StopSignal, kind: SpaceKind) -> bool {
        let look = || {
            let accounts = self.engine.reservations().accounts();
            let reserved = match kind {
                SpaceKind::Data => (accounts.data.may_use, 0),
                _ => (accounts.outstanding.all_items(), accounts.outstanding.bytes),
            };
            (reserved, self.files.counters().dirty_bytes())
        };
        let first = look();
        let (mut looks, mut still, mut seen) = (0, 0, first);
        while seen.0 != (0, 0)
            && still < STILL
            && looks < SETTLING
            && self.engine.queues().has_waiters(kind)
            && !stop.is_set()
        {
            buttress_base::thread::sleep(LOOK);
            let now = look();
            (looks, still) = (looks + 1, if now == seen { still + 1 } else { 0 });
            seen = now;
        }
        seen != first
    }

    /// Takes a step that concerns dirty data. Returns whether any ordered extent was finished.
    fn take_step(&self, stop: &StopSignal, kind: SpaceKind, step: FlushState) -> bool {
        let before = self.files.counters().dirty_bytes();
        let finished = self.files.counters().finished_bytes();
        let wait = |bytes, write: &dyn Fn()| self.wait_for_ordered(stop, kind, bytes, write);
        self.times.put_set();
        match step {
            FlushState::Clean => return self.cleaner.clean_all(),
            FlushState::Ordered => wait(self.files.counters().ordered_bytes(), &|| ()),
            // Data that other threads write back now counts like data that this thread writes.
            FlushState::AllDirty => wait(before, &|| self.writeback.write_what_is_free()),
            _ => {
                let asked = self.engine.queues().waiting_bytes(kind).saturating_mul(2);
                let part = (before / DIRTY_PART).max(asked).max(BATCH_BYTES).min(before);
                if self.writeback.write_some(part) == 0 {
                    // Other threads write all dirty data, and a commit now would free nothing. So
                    // wait for ordered extents.
                    wait(self.files.counters().ordered_bytes().min(part), &|| ());
                }
            }
        }
        self.files.counters().finished_bytes() > finished
    }

    /// Waits until ordered extents of `bytes` are finished, a waiter is served, or no further
    /// ordered extent finishes.
    fn wait_for_ordered(&self, stop: &StopSignal, kind: SpaceKind, bytes: u64, write: &dyn Fn()) {
        let target = self.files.counters().finished_bytes() + bytes;
        let mut seen = self.files.counters().finished_bytes();
        let (mut since, mut still) = (clock::now(), 0);
        loop {
            write();
            let finished = self.files.counters().finished_bytes();
            let done = finished >= target || self.files.counters().dirty_bytes() == 0;
            if done || self.engine.queues().serve(kind) > 0 || stop.is_set() {
                return;
            }
            if finished != seen {
                seen = finished;
                (since, still) = (clock::now(), 0);
            }
            // A row of looks with nothing in flight counts, as well as the time with something.
            still = if self.files.counters().ordered_bytes() > 0 { 0 } else { still + 1 };
            if still >= STILL || clock::since(since) > ORDERED {
                return;
            }
            buttress_base::thread::sleep(LOOK);
        }
    }
}
