//! What happens without being asked: dirty data is written, nameless inodes are removed, transactions are
//! committed.
//!
//! # Invariants
//!
//! - **G1** An inode with dirty data is in the dirty list, or on its way back from it, and its cell keeps
//!   itself alive while it is in it; one that goes leaves the list, and its dirty data is never written.
//! - **G2** Whoever drains the list also waits for the batches that others took from it.
//!
//! # Locks
//!
//! Two short locks, one a queue; no cell is dropped under them that was not going. `in_flight` is long: shared by whoever
//! writes a batch, taken exclusive for an instant to wait for all of those (G2).
//!
//! # Failure
//!
//! What a thread meets is kept for whoever syncs the inode concerned, or everything, next; or it is latched
//! by the engine. It is logged here because nobody else will hear of it at once.

use buttress_base::clock;
use buttress_base::thread::JoinHandle;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use buttress_base::sync::{Condvar, Mutex, RwLock};
use buttress_data::Files;
use buttress_format::TreeId;
use buttress_txn::Preempt;

use crate::attr::InodeId;
use crate::cell::InodeCell;
use crate::error::Result;
use crate::orphan;
use crate::shared::Shared;
use crate::throttle::{Throttle, Turnstile};

/// Most inodes and bytes that one batch of writeback takes.
const BATCH_INODES: usize = 128;
pub(crate) const BATCH_BYTES: u64 = 16 << 20;

/// Most threads that write back. Each takes a batch of files of its own. Half of the processors have one: writers need
/// the others, and stand behind a thread that computes for a whole slice of the scheduler's.
const FLUSHERS_MAX: usize = 4;

/// How often the flusher looks when nobody calls it, and how old dirty data grows at least.
const FLUSH_PERIOD: Duration = Duration::from_millis(500);
const DIRTY_AGE: Duration = Duration::from_secs(5);

/// How long is waited for an inode that is gone to be let go of.
const LEAVING_MAX: Duration = Duration::from_secs(1);

/// How often the loader looks when nobody calls it.
const LOAD_PERIOD: Duration = Duration::from_secs(1);

/// How often the cleaner looks whether the last user of a deleted subvolume is gone.
const DROP_PERIOD: Duration = Duration::from_millis(500);

/// How often the committer asks the engine whether it wants a commit.
const COMMIT_PERIOD: Duration = Duration::from_millis(20);

#[derive(Default)]
struct DirtyList {
    cells: VecDeque<(Weak<InodeCell>, Instant)>,
    kicked: bool,
    stop: bool,
}

#[derive(Default)]
struct CleanQueue {
    ids: VecDeque<InodeId>,
    /// Deleted subvolumes; each step of one commits, inodes come first.
    trees: VecDeque<TreeId>,
    /// Inodes that have neither name nor user, and that somebody holds for a moment: writeback has batches of them.
    leaving: usize,
    busy: bool,
    stop: bool,
}

/// What the cleaner does next.
enum ToClean {
    Inode(InodeId),
    Tree(TreeId),
}

/// How far the drop of a subvolume is.
pub(crate) enum Dropping {
    Done,
    Goes,
    Waits,
}

#[derive(Default)]
pub(crate) struct Background {
    dirty: Mutex<DirtyList>,
    flush_wanted: Condvar,
    clean: Mutex<CleanQueue>,
    /// Signalled when the queue changes, either way.
    clean_changed: Condvar,
    in_flight: RwLock<()>,
    commit_stop: Mutex<bool>,
    commit_wake: Condvar,
    /// Bytes that were written back to make room.
    pub(crate) flushed: AtomicU64,
    /// Ladders climbed for those who waited.
    pub(crate) climbed: AtomicU64,
    /// Rounds made ahead, how low the clamp is, and how long operations are held up meanwhile.
    pub(crate) rounds: AtomicU64,
    pub(crate) clamp_bits: AtomicU32,
    pub(crate) turnstile: Turnstile,
    pub(crate) throttle: Throttle,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    /// Lists an inode that was made dirty.
    pub(crate) fn enlist(&self, cell: &Arc<InodeCell>) {
        {
            let mut kept = cell.kept.lock();
            if kept.is_some() || cell.is_gone() {
                return;
            }
            *kept = Some(Arc::clone(cell));
        }
        self.dirty.lock().cells.push_back((Arc::downgrade(cell), clock::now()));
    }

    /// Takes every cell out of the list of dirty ones.
    pub(crate) fn drain(&self) -> Vec<Arc<InodeCell>> {
        let listed = std::mem::take(&mut self.dirty.lock().cells);
        let cells: Vec<_> = listed.iter().filter_map(|(cell, _)| cell.upgrade()).collect();
        for cell in &cells {
            let kept = cell.kept.lock().take();
            drop(kept);
        }
        cells
    }

    /// An inode has lost its last user behind its last name: the cleaner gets it when nobody holds it any more.
    pub(crate) fn leaves(&self) {
        self.clean.lock().leaving += 1;
    }

    /// Nobody holds it any more.
    pub(crate) fn has_left(&self) {
        self.clean.lock().leaving -= 1;
        self.clean_changed.notify_all();
    }

    /// Sends a nameless inode without users to the cleaner.
    pub(crate) fn clean_later(&self, id: InodeId) {
        let mut queue = self.clean.lock();
        let was_empty = queue.ids.is_empty();
        queue.ids.push_back(id);
        drop(queue);
        if was_empty {
            self.clean_changed.notify_all();
        }
    }

    /// Sends a deleted subvolume to the cleaner.
    pub(crate) fn drop_later(&self, tree: TreeId) {
        self.clean.lock().trees.push_back(tree);
        self.clean_changed.notify_all();
    }

    /// The deleted subvolumes that wait for the cleaner.
    pub(crate) fn dying(&self) -> Vec<TreeId> {
        self.clean.lock().trees.iter().copied().collect()
    }

    /// Forgets what waits to be written to a subvolume that was deleted.
    pub(crate) fn forget_tree(&self, files: &Files, tree: TreeId) {
        let listed: Vec<_> =
            self.dirty.lock().cells.iter().filter_map(|(cell, _)| cell.upgrade()).collect();
        let mine: Vec<_> = listed.into_iter().filter(|cell| cell.tree() == tree).collect();
        for cell in &mine {
            files.forget_waiting(&cell.file);
            let kept = cell.kept.lock().take();
            drop(kept);
        }
    }

    /// Whether the threads are to end.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.commit_stop.lock()
    }

    /// Waits a while, or until the threads are to end; says whether they are.
    pub(crate) fn wait_to_stop(&self, limit: Duration) -> bool {
        let mut stop = self.commit_stop.lock();
        let begun = clock::now();
        while let Some(left) = limit.checked_sub(clock::since(begun)).filter(|_| !*stop) {
            self.commit_wake.wait_for(&mut stop, left);
        }
        *stop
    }

    /// Lets the committer look at once whether a commit is wanted.
    pub(crate) fn wake_committer(&self) {
        self.commit_wake.notify_all();
    }

    fn kick(&self) {
        let mut list = self.dirty.lock();
        if !list.kicked {
            list.kicked = true;
            drop(list);
            self.flush_wanted.notify_one();
        }
    }

    /// The oldest cells of the list, as many as make a batch.
    fn take_batch(&self, older_than: Option<Instant>) -> Vec<Arc<InodeCell>> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut list = self.dirty.lock();
        while batch.len() < BATCH_INODES && bytes < BATCH_BYTES {
            let Some((_, since)) = list.cells.front() else { break };
            if older_than.is_some_and(|limit| *since > limit) {
                break;
            }
            let Some((cell, _)) = list.cells.pop_front() else { break };
            let Some(cell) = cell.upgrade() else { continue };
            let kept = cell.kept.lock().take();
            drop(kept);
            bytes += cell.file.dirty_bytes();
            batch.push(cell);
        }
        batch
    }
}

impl Shared {
    /// Starts the threads of a writable mount.
    pub(crate) fn start_threads(self: &Arc<Self>) {
        type Work = fn(&Arc<Shared>);
        let mut works: Vec<(&str, Work)> = vec![
            ("clean", Self::cleaner),
            ("commit", Self::committer),
            ("space", Self::room_maker),
            ("load", Self::loader),
        ];
        if self.options.preempt != Preempt::Off {
            works.push(("preempt", Self::preempter));
        }
        if self.options.reclaim_below > 0 {
            works.push(("reclaim", Self::reclaimer));
        }
        let cores = buttress_base::thread::parallelism();
        let flushers = (cores / 2).clamp(1, FLUSHERS_MAX);
        works.extend((0..flushers).map(|_| ("flush", Self::flusher as Work)));
        let mut threads = self.background.threads.lock();
        for (name, work) in works {
            let shared = Arc::clone(self);
            let thread = buttress_base::thread::Builder::new()
                .name(format!("buttress-{name}"))
                .spawn(move || work(&shared));
            match thread {
                Ok(thread) => threads.push(thread),
                // Everything still happens, when somebody asks for it.
                Err(error) => tracing::warn!(%error, name, "no background thread"),
            }
        }
    }

    /// Stops them; what they were doing is finished first.
    pub(crate) fn stop_threads(&self) {
        self.files.stop_helpers();
        let background = &self.background;
        background.dirty.lock().stop = true;
        background.flush_wanted.notify_all();
        background.clean.lock().stop = true;
        background.clean_changed.notify_all();
        *background.commit_stop.lock() = true;
        background.commit_wake.notify_all();
        self.engine.call_flusher();
        self.engine.call_loader();
        let threads = std::mem::take(&mut *background.threads.lock());
        for thread in threads {
            if thread.thread().id() != buttress_base::thread::current().id()
                && thread.join().is_err()
            {
                tracing::error!("a background thread panicked");
            }
        }
    }

    /// Reads what is free in block groups that somebody will need.
    fn loader(self: &Arc<Self>) {
        let loader = self.engine.attach_loader();
        while !*self.background.commit_stop.lock() {
            loader.work(LOAD_PERIOD);
        }
    }

    fn flusher(self: &Arc<Self>) {
        loop {
            {
                let mut list = self.background.dirty.lock();
                if !list.kicked && !list.stop {
                    self.background.flush_wanted.wait_for(&mut list, FLUSH_PERIOD);
                }
                list.kicked = false;
                if list.stop {
                    return;
                }
            }
            let low = self.options.dirty_bytes_max / 8;
            while self.files.dirty_bytes() > low && self.write_batch(None) {}
            let age = self.options.commit_interval.min(DIRTY_AGE);
            if let Some(limit) = clock::now().checked_sub(age) {
                while self.write_batch(Some(limit)) {}
            }
            if self.files.dirty_bytes() == 0 {
                self.files.trim();
            }
        }
    }

    /// Writes the oldest dirty inodes back; says whether there were any.
    fn write_batch(&self, older_than: Option<Instant>) -> bool {
        let _in_flight = self.background.in_flight.read();
        let batch = self.background.take_batch(older_than);
        if batch.is_empty() {
            return false;
        }
        let before = dirty_of(&batch);
        let some = self.write_cells(&batch);
        self.note_drained(before.saturating_sub(dirty_of(&batch)));
        if !some && let Some(busy) = batch.iter().find(|cell| !cell.is_gone()) {
            // Everything here is on its way already: asking again at once would be to spin.
            self.files.wait_idle(&busy.file);
        }
        self.enlist_again(&batch);
        true
    }

    /// As [`write_batch`](Self::write_batch), and waits for nobody; answers how many bytes it wrote.
    pub(crate) fn write_free_batch(&self) -> u64 {
        let _in_flight = self.background.in_flight.read();
        let batch = self.background.take_batch(None);
        let before = dirty_of(&batch);
        self.write_cells(&batch);
        let written = before.saturating_sub(dirty_of(&batch));
        self.enlist_again(&batch);
        self.note_drained(written);
        written
    }

    /// How fast writeback is decides how fast writers may be.
    fn note_drained(&self, bytes: u64) {
        let busy = self.files.dirty_bytes() > self.options.dirty_bytes_max / 8;
        self.background.throttle.note_drained(bytes, busy);
    }

    /// Writes everything back that nobody else is writing back. Failures stay with the inodes.
    pub(crate) fn write_what_is_free(&self) {
        let _in_flight = self.background.in_flight.read();
        let cells = self.background.drain();
        for batch in cells.chunks(BATCH_INODES) {
            self.write_cells(batch);
        }
        self.enlist_again(&cells);
    }

    /// Says whether there was anything that nobody else is writing back.
    fn write_cells(&self, cells: &[Arc<InodeCell>]) -> bool {
        let mut files = Vec::with_capacity(cells.len());
        for cell in cells {
            // Of one that is going nothing waits, and nobody will ever read it.
            if !cell.is_gone() {
                files.push(&cell.file);
            }
        }
        self.files.writeback_many(&files)
    }

    /// Somebody else was writing them back, or dirtied them meanwhile (G1).
    fn enlist_again(&self, cells: &[Arc<InodeCell>]) {
        for cell in cells {
            if cell.file.is_dirty() {
                self.background.enlist(cell);
            }
        }
    }

    /// Holds a writer up who has just made `bytes` dirty, by as much as keeps memory and metadata from running
    /// out; should more be dirty than may be all the same, he takes his part in writing back. Without any
    /// lock held.
    pub(crate) fn pace(&self, cell: &Arc<InodeCell>, bytes: u64) {
        let limit = self.options.dirty_bytes_max;
        let dirty = self.files.dirty_bytes();
        if dirty > limit / 4 {
            self.background.kick();
        }
        if dirty <= limit {
            if bytes > 0 {
                let hold = self.background.throttle.hold(bytes, dirty, limit);
                let hold = hold.max(self.background.turnstile.hold());
                if !hold.is_zero() {
                    buttress_base::thread::sleep(hold);
                }
            }
            return;
        }
        // Kept by the file, and told when it is synced.
        let before = cell.file.dirty_bytes();
        let _ = self.files.writeback(&cell.file, 0..u64::MAX);
        self.note_drained(before.saturating_sub(cell.file.dirty_bytes()));
        for _ in 0..4 {
            if self.files.dirty_bytes() <= limit || !self.write_batch(None) {
                return;
            }
        }
    }

    /// Writes everything back that is dirty now, and waits for it (G2). Failures stay with the inodes.
    pub(crate) fn write_all(&self) {
        {
            // Others who come meanwhile find an empty list, and wait for what was in it.
            let _in_flight = self.background.in_flight.read();
            let cells = self.background.drain();
            for batch in cells.chunks(BATCH_INODES) {
                self.write_cells(batch);
                self.enlist_again(batch);
            }
            for cell in &cells {
                if cell.file.is_dirty() {
                    let _ = self.files.writeback(&cell.file, 0..u64::MAX);
                }
            }
        }
        drop(self.background.in_flight.write());
    }

    fn cleaner(self: &Arc<Self>) {
        while let Some(work) = self.next_to_clean() {
            self.clean(work);
        }
    }

    fn clean(self: &Arc<Self>, work: ToClean) {
        match work {
            ToClean::Inode(id) => {
                if let Err(error) = orphan::clean(self, id) {
                    tracing::warn!(tree = %id.tree, ino = %id.ino, %error, "cannot remove an inode");
                }
            }
            ToClean::Tree(tree) => match self.drop_tree_step(tree) {
                Ok(Dropping::Done) => {}
                Ok(Dropping::Goes) => self.background.clean.lock().trees.push_front(tree),
                // Somebody has a file of it open still.
                Ok(Dropping::Waits) => self.background.clean.lock().trees.push_back(tree),
                Err(error) => tracing::warn!(%tree, %error, "cannot drop a subvolume"),
            },
        }
    }

    /// The next thing to clean, when there is one; nothing when the thread is to end.
    fn next_to_clean(&self) -> Option<ToClean> {
        let mut queue = self.background.clean.lock();
        let mut waited = false;
        loop {
            if let Some(id) = queue.ids.pop_front() {
                queue.busy = true;
                return Some(ToClean::Inode(id));
            }
            if std::mem::take(&mut queue.busy) {
                self.background.clean_changed.notify_all();
            }
            if queue.stop {
                return None;
            }
            let ready = queue.trees.iter().position(|tree| waited || !self.trees.is_used(*tree));
            if let Some(tree) = ready.and_then(|index| queue.trees.remove(index)) {
                return Some(ToClean::Tree(tree));
            }
            if queue.trees.is_empty() {
                self.background.clean_changed.wait(&mut queue);
            } else {
                let timed = self.background.clean_changed.wait_for(&mut queue, DROP_PERIOD);
                waited = timed.timed_out();
            }
        }
    }

    /// Drops a deleted subvolume a step further, unless somebody uses a file of it.
    pub(crate) fn drop_tree_step(&self, tree: TreeId) -> Result<Dropping> {
        if self.trees.is_used(tree) {
            return Ok(Dropping::Waits);
        }
        Ok(if self.engine.drop_step(tree)? { Dropping::Goes } else { Dropping::Done })
    }

    /// Waits until the cleaner has no inode left to remove, and a while for those that are on their way to it.
    pub(crate) fn clean_all(&self) {
        if self.background.threads.lock().is_empty() {
            return;
        }
        let begun = clock::now();
        let mut queue = self.background.clean.lock();
        while !queue.stop {
            if queue.busy || !queue.ids.is_empty() {
                self.background.clean_changed.wait(&mut queue);
                continue;
            }
            // Who holds one may wait for whoever waits here, so not for ever.
            let left = LEAVING_MAX.saturating_sub(clock::since(begun));
            if queue.leaving == 0 || left.is_zero() {
                return;
            }
            self.background.clean_changed.wait_for(&mut queue, left);
        }
    }

    /// Does the cleaner's work where there is none, as far as nobody uses what is to go.
    fn clean_here(self: &Arc<Self>) {
        let take = || {
            let mut queue = self.background.clean.lock();
            if let Some(id) = queue.ids.pop_front() {
                return Some(ToClean::Inode(id));
            }
            let ready = queue.trees.iter().position(|tree| !self.trees.is_used(*tree));
            ready.and_then(|index| queue.trees.remove(index)).map(ToClean::Tree)
        };
        while let Some(work) = take() {
            self.clean(work);
        }
    }

    fn committer(self: &Arc<Self>) {
        let mut last = clock::now();
        loop {
            {
                let mut stop = self.background.commit_stop.lock();
                if !*stop {
                    self.background.commit_wake.wait_for(&mut stop, COMMIT_PERIOD);
                }
                if *stop {
                    return;
                }
            }
            let due = clock::since(last) >= self.options.commit_interval;
            if !due && !self.engine.wants_commit() {
                continue;
            }
            if due || self.options.flushoncommit {
                self.write_all();
            }
            if due && !self.engine.is_dirty() {
                last = clock::now();
                continue;
            }
            if let Err(error) = self.engine.commit() {
                tracing::error!(%error, "the periodic commit failed");
                return;
            }
            last = clock::now();
        }
    }

    /// Makes everything done before the call durable.
    pub(crate) fn sync(self: &Arc<Self>) -> Result<()> {
        self.write_all();
        match self.options.background {
            true => self.clean_all(),
            false => self.clean_here(),
        }
        // What did arrive is made durable even if something else was lost.
        self.engine.commit()?;
        self.expect_nothing_lost()
    }

    /// Tells, once, that data of some file was lost when it was written in the background.
    pub(crate) fn expect_nothing_lost(&self) -> Result<()> {
        match self.files.take_error() {
            None => Ok(()),
            Some(error) => Err(buttress_data::Error::Lost(Arc::new(error)).into()),
        }
    }
}

fn dirty_of(cells: &[Arc<InodeCell>]) -> u64 {
    cells.iter().map(|cell| cell.file.dirty_bytes()).sum()
}
