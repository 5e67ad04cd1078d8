//! Room that is about to come: files without names that the kernel has yet to let go of.
//!
//! On a local file system a file that lost its last name is gone by the time that its last user has closed it. Here
//! the kernel says so later, in a request of its own: `release` behind the close, and `forget` behind the answer to
//! that. A program that makes room and then writes can be faster than those.
//!
//! # Invariants
//!
//! - **R1** Nobody who writes, allocates, copies or makes something is told that the volume is full while another file
//!   without a name is about to go, one that nobody has open or that lost its name within [`CLOSED`]; but for R3.
//! - **R2** It ends: a request is tried again only after some such file went, and for no longer than [`FORGOTTEN`].
//! - **R3** Who waits never keeps the last thread from reading: it is what the kernel tells it that all wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use buttress_base::{clock, thread};
use fuser::Errno;

use super::{Answer, Door, Node};

/// How long after a name was removed its file is expected to be closed, if it is to go. One that is truly open stays,
/// and whoever needs room at that moment waits in vain.
const CLOSED: Duration = Duration::from_secs(1);

/// How long one that nobody has open is expected to be forgotten: it always is, and only a busy machine takes long.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(2);

/// Names that were removed, and files that went.
#[derive(Debug)]
pub(super) struct Leaving {
    begun: Instant,
    /// When a name was removed last, in nanoseconds since `begun`; zero before the first.
    removed: AtomicU64,
    /// Requests to forget that are being worked out.
    forgetting: AtomicUsize,
    /// Files without names that were forgotten.
    gone: AtomicU64,
    /// Requests that wait for that.
    waiting: AtomicUsize,
}

impl Leaving {
    pub(super) fn new() -> Self {
        Self {
            begun: clock::now(),
            removed: AtomicU64::new(0),
            forgetting: AtomicUsize::new(0),
            gone: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Takes note that a name is gone.
    pub(super) fn removed(&self) {
        let since = clock::since(self.begun).as_nanos() as u64;
        self.removed.store(since.max(1), Ordering::Relaxed);
    }

    /// Whether a name was removed no longer ago than that.
    fn is_recent(&self, limit: Duration) -> bool {
        let removed = self.removed.load(Ordering::Relaxed);
        removed > 0 && clock::since(self.begun) < Duration::from_nanos(removed) + limit
    }

    /// Drops what `forget` takes from the table.
    pub(super) fn forget(&self, forget: impl FnOnce() -> Option<Arc<Node>>) {
        self.forgetting.fetch_add(1, Ordering::SeqCst);
        if let Some(node) = forget() {
            let has_no_name = node.inode.attr().nlink == 0;
            drop(node);
            self.gone.fetch_add(u64::from(has_no_name), Ordering::SeqCst);
        }
        self.forgetting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Door {
    /// Does what needs room for a node, again if there was none and some came (R1). What is written to a file that
    /// goes does not wait for that file: closing it waits for what is written.
    pub(super) fn with_room<T>(&self, id: u64, mut work: impl FnMut() -> Answer<T>) -> Answer<T> {
        let mut refused = None;
        loop {
            let gone = self.leaving.gone.load(Ordering::SeqCst);
            let answer = work();
            if !matches!(&answer, Err(errno) if errno.code() == Errno::ENOSPC.code()) {
                return answer;
            }
            let refused = *refused.get_or_insert_with(clock::now);
            // One reads, and one works out what it reads (R3).
            let others = self.leaving.waiting.fetch_add(1, Ordering::SeqCst);
            let has_hope =
                others + 2 < self.options.thread_count() && self.one_goes(id, gone, refused);
            self.leaving.waiting.fetch_sub(1, Ordering::SeqCst);
            if !has_hope {
                return answer;
            }
        }
    }

    /// Waits for a file without a name to go, another than `id`, if one may; says whether more went than `gone`.
    fn one_goes(&self, id: u64, gone: u64, refused: Instant) -> bool {
        let Leaving { forgetting, gone: now_gone, .. } = &self.leaving;
        while clock::since(refused) < FORGOTTEN {
            let is_forgetting = forgetting.load(Ordering::SeqCst) > 0;
            let may_be_closed = self.leaving.is_recent(CLOSED);
            let goes = |node: &Arc<Node>| {
                (may_be_closed || node.openers.load(Ordering::Relaxed) == 0)
                    && node.inode.attr().nlink == 0
            };
            let may_go = is_forgetting
                || self.leaving.is_recent(FORGOTTEN)
                    && self.nodes.ids(goes).iter().any(|other| *other != id);
            // After the table: who is not in it any more was counted, or is being forgotten.
            if now_gone.load(Ordering::SeqCst) != gone {
                return true;
            }
            if !may_go && forgetting.load(Ordering::SeqCst) == 0 {
                return now_gone.load(Ordering::SeqCst) != gone;
            }
            thread::sleep(LOOK);
        }
        false
    }
}
