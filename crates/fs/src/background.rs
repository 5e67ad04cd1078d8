//! What happens without being asked, beside writeback: nameless inodes are removed, deleted subvolumes dropped,
//! transactions committed.
//!
//! # Invariants
//!
//! - **C1** Who waits for the cleaner waits for what is on its way to it, too, but not for ever: who holds an inode may
//!   wait for him.
//! - **C2** A deleted subvolume is named as dying from its deletion until its last node is given back durably: whoever
//!   waits for that has the space then.
//!
//! # Locks
//!
//! Short ones, one a queue.
//!
//! # Failure
//!
//! What a thread meets is latched by the engine, or logged here because nobody else will hear of it at once.

use buttress_base::clock;
use buttress_base::thread::JoinHandle;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use buttress_base::sync::{Condvar, Mutex};
use buttress_data::File;
use buttress_format::{InodeItem, TreeId};
use buttress_txn::{Cost, Urgency};

use crate::attr::InodeId;
use crate::cell::InodeCell;
use crate::error::Result;
use crate::flush::Flush;
use crate::orphan;
use crate::shared::Shared;

/// How long is waited for an inode that is gone to be let go of.
const LEAVING_MAX: Duration = Duration::from_secs(1);

/// How often the loader looks when nobody calls it.
const LOAD_PERIOD: Duration = Duration::from_secs(1);

/// How often the cleaner looks whether the last user of a deleted subvolume is gone.
const DROP_PERIOD: Duration = Duration::from_millis(500);

/// Inodes whose times of access are put with one handle.
const ACCESS_BATCH: usize = 64;

/// How often the committer asks the engine whether it wants a commit.
const COMMIT_PERIOD: Duration = Duration::from_millis(20);

#[derive(Default)]
struct CleanQueue {
    ids: VecDeque<InodeId>,
    /// Deleted subvolumes; each step of one commits, inodes come first.
    trees: VecDeque<TreeId>,
    /// The one that a step is taken of. It is not gone before its last step is over.
    dropping: Option<TreeId>,
    /// Inodes that have neither name nor user, and that somebody holds for a moment: writeback has batches of them.
    leaving: usize,
    busy: bool,
    stop: bool,
}

impl CleanQueue {
    /// Takes the first subvolume that may be dropped a step further.
    fn take_tree(&mut self, may: impl Fn(TreeId) -> bool) -> Option<TreeId> {
        let ready = self.trees.iter().position(|tree| may(*tree));
        self.dropping = ready.and_then(|index| self.trees.remove(index));
        self.dropping
    }
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
    pub(crate) flush: Flush,
    clean: Mutex<CleanQueue>,
    /// Signalled when the queue changes, either way.
    clean_changed: Condvar,
    commit_stop: Mutex<bool>,
    commit_wake: Condvar,
    /// Bytes that were written back to make room.
    pub(crate) flushed: AtomicU64,
    /// Ladders climbed for those who waited, that made room or refused somebody.
    pub(crate) climbed: AtomicU64,
    /// Those of them for metadata, which the clamp is about.
    pub(crate) climbed_for_metadata: AtomicU64,
    /// Rounds made ahead, and by how many bits the clamp lowers its threshold.
    pub(crate) rounds: AtomicU64,
    pub(crate) clamp_bits: AtomicU32,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
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

    /// The deleted subvolumes that wait for the cleaner, or are in its hands (C2).
    pub(crate) fn dying(&self) -> Vec<TreeId> {
        let queue = self.clean.lock();
        queue.dropping.into_iter().chain(queue.trees.iter().copied()).collect()
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
}

impl Shared {
    /// Starts the threads of a writable mount.
    pub(crate) fn start_threads(self: &Arc<Self>) {
        type Work = Box<dyn FnOnce(&Arc<Shared>) + Send>;
        // Here, not in its thread: whoever asks for space before that has run would make room without a place in the line.
        let flusher = self.engine.attach_flusher();
        let mut works: Vec<(&str, Work)> = vec![
            ("clean", Box::new(Self::cleaner)),
            ("commit", Box::new(Self::committer)),
            ("space", Box::new(|shared| shared.room_maker(flusher))),
            ("load", Box::new(Self::loader)),
        ];
        if self.options.baselines.preempt.is_on() {
            works.push(("preempt", Box::new(Self::preempter)));
        }
        if self.options.reclaim_below > 0 {
            works.push(("reclaim", Box::new(Self::reclaimer)));
        }
        for (name, flusher) in Self::flushers() {
            works.push((name, Box::new(flusher)));
        }
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
        background.flush.stop();
        background.clean.lock().stop = true;
        background.clean_changed.notify_all();
        *background.commit_stop.lock() = true;
        background.commit_wake.notify_all();
        self.engine.call_flusher();
        self.engine.call_ahead();
        self.engine.stop_learning();
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

    /// Reads the block groups, where that was put off, and what is free in those that somebody will need.
    fn loader(self: &Arc<Self>) {
        let loader = self.engine.attach_loader();
        if self.engine.know_groups().is_err() {
            return;
        }
        while !*self.background.commit_stop.lock() {
            loader.work(LOAD_PERIOD);
        }
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
            ToClean::Tree(tree) => {
                let step = self.drop_tree_step(tree);
                let mut queue = self.background.clean.lock();
                queue.dropping = None;
                match step {
                    Ok(Dropping::Done) => {}
                    Ok(Dropping::Goes) => queue.trees.push_front(tree),
                    // Somebody has a file of it open still.
                    Ok(Dropping::Waits) => queue.trees.push_back(tree),
                    Err(error) => tracing::warn!(%tree, %error, "cannot drop a subvolume"),
                }
            }
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
            if let Some(tree) = queue.take_tree(|tree| waited || !self.trees.is_used(tree)) {
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
        Ok(if self.maintenance.drop_step(tree)? { Dropping::Goes } else { Dropping::Done })
    }

    /// Waits until the cleaner has no inode left to remove, and a while for those that are on their way to it. Says whether there
    /// were any.
    pub(crate) fn clean_all(&self) -> bool {
        if self.background.threads.lock().is_empty() {
            return false;
        }
        let begun = clock::now();
        let mut queue = self.background.clean.lock();
        let mut had_any = false;
        while !queue.stop {
            if queue.busy || !queue.ids.is_empty() {
                had_any = true;
                self.background.clean_changed.wait(&mut queue);
                continue;
            }
            // Who holds one may wait for whoever waits here, so not for ever.
            let left = LEAVING_MAX.saturating_sub(clock::since(begun));
            if queue.leaving == 0 || left.is_zero() {
                break;
            }
            had_any = true;
            self.background.clean_changed.wait_for(&mut queue, left);
        }
        had_any
    }

    /// Does the cleaner's work where there is none, as far as nobody uses what is to go.
    fn clean_here(self: &Arc<Self>) {
        let take = || {
            let mut queue = self.background.clean.lock();
            if let Some(id) = queue.ids.pop_front() {
                return Some(ToClean::Inode(id));
            }
            queue.take_tree(|tree| !self.trees.is_used(tree)).map(ToClean::Tree)
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
            self.log.complete();
            if self.access.is_due() {
                self.put_access_times();
            }
            let due = clock::since(last) >= self.options.commit_interval;
            if !due && !self.engine.wants_commit() {
                continue;
            }
            if due || self.options.flushoncommit {
                self.write_all();
            }
            self.put_access_times_for_commit();
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

    /// Puts the times of access that are to be part of any commit (`access::A3`).
    fn put_access_times_for_commit(&self) {
        if !self.options.lazytime || self.access.is_due() {
            self.put_access_times();
        }
    }

    /// Puts all times of access that are newer than those last put. It waits for no space.
    pub(crate) fn put_access_times(&self) {
        let cells = self.access.drain();
        for batch in cells.chunks(ACCESS_BATCH) {
            self.put_access_of(batch);
        }
    }

    /// As [`Shared::put_access_times`], of these inodes alone.
    pub(crate) fn put_access_of(&self, cells: &[Arc<InodeCell>]) {
        let waits = |cell: &&Arc<InodeCell>| {
            cell.file.access_waits() && cell.nlink() > 0 && cell.expect_writable().is_ok()
        };
        let waiting: Vec<&File> = cells.iter().filter(waits).map(|cell| &cell.file).collect();
        if waiting.is_empty() {
            return;
        }
        let count = waiting.len() as u32;
        let cost = Cost::of(count, InodeItem::LEN as u32 * count);
        match self.engine.reserve_at_once(cost, Urgency::Normal) {
            Ok(Some(reservation)) => {
                let handle = self.engine.begin(reservation);
                for file in waiting {
                    file.put_access(&handle);
                }
            }
            Ok(None) => tracing::debug!(count, "no room for times of access"),
            Err(error) => tracing::debug!(count, %error, "times of access are lost"),
        }
    }

    /// Makes everything done before the call durable.
    pub(crate) fn sync(self: &Arc<Self>) -> Result<()> {
        self.write_all();
        match self.options.background {
            true => {
                self.clean_all();
            }
            false => self.clean_here(),
        }
        self.put_access_times();
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
