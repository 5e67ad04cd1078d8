//! The state of fsync between calls.
//!
//! # Locks
//!
//! First the engine's hold on the space of the log, then the lock of the writer. The hold keeps
//! commits from ending the log that the writer describes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress_base::sync::{Mutex, MutexGuard};
use buttress_txn::{CommitReason, Engine, LogHold};

use crate::queue::Queue;
use crate::single_copy::LogCopies;
use crate::waiting::WaitingData;
use crate::writer::Writer;

/// How fsync makes inodes durable.
///
/// Plain data: no field changes after the opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Whether fsync writes logs; otherwise it commits.
    pub is_on: bool,
    /// Which copies of a log an fsync waits for.
    pub copies: LogCopies,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { is_on: true, copies: LogCopies::default() }
    }
}

/// Counters of fsync since the volume was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncStats {
    /// Requests to make an inode durable.
    pub syncs: u64,
    /// Requests that wait now for a log that another thread leads.
    pub waiting: u64,
    /// Logs written for these requests. Requests that arrive together share one log.
    pub logs: u64,
    /// Inodes with data that was written with a log, or with a commit instead of a log.
    pub inodes_with_data: u64,
    /// Log nodes of which the second copy was written later.
    pub deferred_copies: u64,
    /// Commits instead of logs, by reason.
    pub commits: BTreeMap<CommitReason, u64>,
}

/// See [`SyncStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    syncs: AtomicU64,
    logs: AtomicU64,
    inodes_with_data: AtomicU64,
    deferred_copies: AtomicU64,
}

impl Counters {
    /// Counts a request to make an inode durable.
    pub(crate) fn note_sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a written log.
    pub(crate) fn note_log(&self) {
        self.logs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an inode with data that was written together with a log.
    pub(crate) fn note_data(&self) {
        self.inodes_with_data.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts `nodes` log nodes of which other copies were written.
    pub(crate) fn note_copies(&self, nodes: u64) {
        self.deferred_copies.fetch_add(nodes, Ordering::Relaxed);
    }
}

/// fsync of one open volume. Each [`Engine`] has one.
#[derive(Debug)]
pub struct SyncLog {
    pub(crate) engine: Arc<Engine>,
    pub(crate) options: LogOptions,
    pub(crate) queue: Queue,
    /// Data that waits for a log; its extent items are already in the overlay.
    pub(crate) waiting: WaitingData,
    /// Unranked: this lock is held across writes of the log.
    writer: Mutex<Writer>,
    /// The number of logs that had ended when the writer's log began. Threads read this number
    /// without the lock.
    since: AtomicU64,
    /// Nodes of the log may have one copy only.
    pub(crate) lacks_copies: AtomicBool,
    /// Commits instead of logs, by reason. Unranked: no other lock is taken under this lock.
    pub(crate) fallbacks: Mutex<BTreeMap<CommitReason, u64>>,
    pub(crate) counters: Counters,
}

impl SyncLog {
    /// fsync for an engine's volume.
    #[must_use]
    pub fn new(engine: Arc<Engine>, options: LogOptions) -> Self {
        Self {
            engine,
            options,
            queue: Queue::default(),
            waiting: WaitingData::default(),
            writer: Mutex::default(),
            since: AtomicU64::new(0),
            lacks_copies: AtomicBool::new(false),
            fallbacks: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// Counters of fsync since the volume was opened.
    #[must_use]
    pub fn stats(&self) -> SyncStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SyncStats {
            syncs: load(&self.counters.syncs),
            waiting: self.queue.waiting() as u64,
            logs: load(&self.counters.logs),
            inodes_with_data: load(&self.counters.inodes_with_data),
            deferred_copies: load(&self.counters.deferred_copies),
            commits: self.fallbacks.lock().clone(),
        }
    }

    /// Locks the writer and holds its log, so no commit ends this log meanwhile. If a commit ended
    /// the log before this call, a new log begins.
    pub(crate) fn hold(&self) -> (LogHold<'_>, MutexGuard<'_, Writer>) {
        let hold = self.engine.allocation().hold_log(self.engine.storage(), self.engine.commits());
        let mut writer = self.writer.lock();
        if writer.since() != hold.ended() {
            *writer = Writer::begun(hold.ended());
            self.since.store(writer.since(), Ordering::Relaxed);
            self.lacks_copies.store(false, Ordering::Relaxed);
        }
        (hold, writer)
    }

    /// Frees the memory of a log that a commit has ended.
    pub(crate) fn forget_ended(&self) {
        if self.engine.allocation().logs_ended() != self.since.load(Ordering::Relaxed) {
            drop(self.hold());
        }
    }
}
