//! Counters of the work of an engine.
//!
//! # Invariants
//!
//! - **C1** A count only grows. Readers take no lock. So of two counts that change together, a
//!   reader may see a new value of one count and an old value of the other count.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use buttress_base::sync::Mutex;

pub(crate) mod refusal;
pub(crate) mod steps;
pub(crate) mod waits;

use self::refusal::Refused;
use self::steps::{Before, FlushSteps, Gain, StepCounters};
use self::waits::{Wait, WaitCounters, WaitsByQueue};

/// The work of an engine since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commits made.
    pub commits: u64,
    /// Time that all commits took together, in nanoseconds.
    pub commit_nanos: u64,
    /// The longest time for which a freeze kept operations out, in nanoseconds.
    pub freeze_nanos_max: u64,
    /// Tree nodes written, copies counted once.
    pub nodes_written: u64,
    /// Most rounds that a commit needed to settle its own nodes.
    pub settle_rounds_max: u64,
    /// Most bytes of the global reserve that one commit took. A commit takes such bytes for needs
    /// that reservations did not cover, and for operations that free space.
    pub reserve_taken_max: u64,
    /// Memory that the running transaction holds, in bytes.
    pub overlay_bytes: u64,
    /// Waits for space, by kind of space and by the reach of the waiting thread.
    pub waits: WaitsByQueue,
    /// Flush steps that were taken for waiting tickets, and their gains.
    pub steps: FlushSteps,
    /// Number of requests for space that were refused.
    pub enospc: u64,
    /// Number of waits for space that ended because the caller was interrupted.
    pub interrupted: u64,
    /// Number of comparisons of accounts with groups and tokens, in debug builds.
    /// `audits_overtaken` counts attempts that failed because the accounts changed too fast.
    pub audits: u64,
    /// See [`audits`](Self::audits).
    pub audits_overtaken: u64,
    /// Number of block groups for which the free extents were read.
    pub groups_loaded: u64,
    /// Number of block groups that could not be read. Nothing is allocated in them.
    pub groups_unreadable: u64,
    /// Steps of walks over the trees: nodes visited, nodes read, keys visited.
    pub walked: buttress_tree::Steps,
    /// Number of chunks in the chunk map.
    pub chunks: u64,
    /// Whether all chunks and the used bytes of each block group are known. Until they are known,
    /// the accounts are empty.
    pub groups_known: bool,
}

/// The counts of one engine.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    commits: AtomicU64,
    commit_nanos: AtomicU64,
    freeze_nanos_max: AtomicU64,
    nodes_written: AtomicU64,
    settle_rounds_max: AtomicU64,
    reserve_taken_max: AtomicU64,
    waits: WaitCounters,
    steps: StepCounters,
    enospc: AtomicU64,
    /// Unranked: nothing is taken under it.
    refused: Mutex<Option<Refused>>,
    interrupted: AtomicU64,
    audits: AtomicU64,
    audits_overtaken: AtomicU64,
}

impl Counters {
    /// Counts a commit that succeeded or failed, with its duration.
    pub(crate) fn note_commit(&self, took: Duration) {
        add(&self.commits, 1);
        add(&self.commit_nanos, nanos(took));
    }

    /// Counts the time for which a freeze kept operations out.
    pub(crate) fn note_freeze(&self, took: Duration) {
        raise(&self.freeze_nanos_max, nanos(took));
    }

    /// Counts the rounds of a commit, and the bytes that it took of the global reserve.
    pub(crate) fn note_settled(&self, rounds: u64, of_reserve: u64) {
        raise(&self.settle_rounds_max, rounds);
        raise(&self.reserve_taken_max, of_reserve);
    }

    /// Counts nodes that were written.
    pub(crate) fn note_nodes(&self, nodes: u64) {
        add(&self.nodes_written, nodes);
    }

    /// Counts a finished wait for space.
    pub(crate) fn note_wait(&self, wait: &Wait) {
        self.waits.note(wait);
    }

    /// Counts a finished flush step.
    pub(crate) fn note_step(&self, before: &Before, gain: Gain, yielded: u64) {
        self.steps.note(before, gain, yielded);
    }

    /// Keeps the record of a refusal, then counts it (`counters::refusal::R1`).
    pub(crate) fn note_refused(&self, refused: Refused) {
        *self.refused.lock() = Some(refused);
        self.enospc.fetch_add(1, Ordering::Release);
    }

    /// The last refusal, if there was one.
    pub(crate) fn last_refused(&self) -> Option<Refused> {
        *self.refused.lock()
    }

    /// Counts a wait that ended because its caller was interrupted.
    pub(crate) fn note_interrupted(&self) {
        add(&self.interrupted, 1);
    }

    /// Counts a comparison of the accounts with groups and tokens, or an attempt that failed
    /// because the accounts changed too fast.
    #[cfg(debug_assertions)]
    pub(crate) fn note_audit(&self, is_done: bool) {
        add(if is_done { &self.audits } else { &self.audits_overtaken }, 1);
    }

    /// Returns all counts. Fields that are counted elsewhere are zero.
    pub(crate) fn snapshot(&self) -> Stats {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Stats {
            commits: load(&self.commits),
            commit_nanos: load(&self.commit_nanos),
            freeze_nanos_max: load(&self.freeze_nanos_max),
            nodes_written: load(&self.nodes_written),
            settle_rounds_max: load(&self.settle_rounds_max),
            reserve_taken_max: load(&self.reserve_taken_max),
            waits: self.waits.snapshot(),
            steps: self.steps.snapshot(),
            enospc: self.enospc.load(Ordering::Acquire),
            interrupted: load(&self.interrupted),
            audits: load(&self.audits),
            audits_overtaken: load(&self.audits_overtaken),
            ..Stats::default()
        }
    }
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

fn raise(count: &AtomicU64, value: u64) {
    count.fetch_max(value, Ordering::Relaxed);
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
