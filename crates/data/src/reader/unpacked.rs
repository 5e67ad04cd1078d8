//! A cache of compressed extents that were unpacked recently. A sequential reader needs each extent
//! several times.
//!
//! # Invariants
//!
//! - **U1** An entry belongs to one file in one layout. A thread that changes a file's extents
//!   gives the file a new layout. So a lookup never finds old content of a reused address.
//! - **U2** Memory is bounded, whatever the number of files.
//! - **U3** One thread unpacks an extent for all threads that ask for it meanwhile. A thread that
//!   holds a claim never waits for another thread's claim. So no two threads wait for each other.
//! - **U4** Content that will not be needed again is not kept. After a read of a whole extent, the
//!   content is kept only if other threads have asked for it meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;

use buttress_base::activity::{self, Cause};
use buttress_base::sync::Condvar;
use buttress_base::{Rank, Ranked};
use buttress_format::Logical;

/// The maximum number of bytes of unpacked content that are kept.
const KEPT_BYTES: usize = 16 << 20;

/// The extent of one layout; a layout number is never used twice (U1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnpackedKey {
    pub(crate) layout: u64,
    pub(crate) disk: Logical,
}

#[derive(Debug, Default)]
struct State {
    /// Kept extents, the youngest last.
    kept: VecDeque<(UnpackedKey, Arc<Vec<u8>>)>,
    /// Extents that are being unpacked, and whether another thread has asked for each.
    busy: Vec<(UnpackedKey, bool)>,
}

impl State {
    fn busy(&mut self, key: UnpackedKey) -> Option<&mut bool> {
        self.busy.iter_mut().find(|(busy, _)| *busy == key).map(|(_, awaited)| awaited)
    }
}

/// The cache of unpacked extents.
#[derive(Debug)]
pub(crate) struct Unpacked {
    state: Ranked<State>,
    changed: Condvar,
}

/// The state of an extent in the cache.
#[derive(Debug)]
pub(crate) enum UnpackedLookup<'u> {
    Ready(Arc<Vec<u8>>),
    /// Not cached: the caller unpacks the extent for all threads that wait.
    Claimed(UnpackClaim<'u>),
    /// Another thread unpacks the extent.
    Busy,
}

/// The task to unpack an extent. If the claim is dropped, the next thread that asks gets the task.
#[derive(Debug)]
#[must_use = "others wait for it"]
pub(crate) struct UnpackClaim<'u> {
    all: &'u Unpacked,
    key: UnpackedKey,
    /// Whether the claim has ended: another thread may have the task by now.
    is_over: bool,
}

impl Unpacked {
    pub(crate) fn new() -> Self {
        Self { state: Ranked::new(Rank::Leaf, State::default()), changed: Condvar::new() }
    }

    /// The kept content of an extent, or the task to unpack it.
    pub(crate) fn find(&self, key: UnpackedKey) -> UnpackedLookup<'_> {
        let mut state = self.state.lock();
        if let Some((_, bytes)) = state.kept.iter().rev().find(|(known, _)| *known == key) {
            return UnpackedLookup::Ready(Arc::clone(bytes));
        }
        if let Some(awaited) = state.busy(key) {
            *awaited = true;
            return UnpackedLookup::Busy;
        }
        state.busy.push((key, false));
        UnpackedLookup::Claimed(UnpackClaim { all: self, key, is_over: false })
    }

    /// Waits until no thread unpacks an extent. The caller has no claim (U3). Returns early if the
    /// caller may abandon its wait.
    pub(crate) fn wait(&self, key: UnpackedKey) {
        let _waiting = activity::wait(Cause::Reader);
        let mut state = self.state.lock();
        while state.busy(key).is_some() {
            if state.wait_a_while(&self.changed) {
                return;
            }
        }
    }

    /// Drops all kept extents.
    pub(crate) fn clear(&self) {
        let old = std::mem::take(&mut self.state.lock().kept);
        drop(old);
    }
}

impl UnpackClaim<'_> {
    /// Gives an extent to all waiting threads. Keeps it for a while if another part will be needed,
    /// or if other threads have asked for it (U4).
    pub(crate) fn finish(mut self, bytes: &Arc<Vec<u8>>, keeps: bool) {
        let mut old = Vec::new();
        let mut state = self.all.state.lock();
        // End the claim and keep the content in one step. A thread that asks from now on finds the
        // content, or gets the task to unpack the extent.
        let at = state.busy.iter().position(|(busy, _)| *busy == self.key);
        let awaited = at.is_some_and(|at| state.busy.swap_remove(at).1);
        self.is_over = true;
        if keeps || awaited {
            let mut total: usize = state.kept.iter().map(|(_, bytes)| bytes.len()).sum();
            total += bytes.len();
            while total > KEPT_BYTES {
                let Some(first) = state.kept.pop_front() else { break };
                total -= first.1.len();
                old.push(first);
            }
            state.kept.push_back((self.key, Arc::clone(bytes)));
        }
        drop(state);
        // Dropping the claim wakes the threads that wait, and they find the content.
    }
}

impl Drop for UnpackClaim<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.all.state.lock().busy.retain(|(busy, _)| *busy != self.key);
        }
        self.all.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    /// U4: content that was unpacked as a whole is kept only for threads that asked meanwhile.
    /// Requests during an earlier claim do not count for the next claim.
    #[test]
    fn content_is_not_kept_without_another_request() {
        let all = Unpacked::new();
        let key = UnpackedKey { layout: 1, disk: Logical(4096) };
        let claim = || match all.find(key) {
            UnpackedLookup::Claimed(claim) => claim,
            other => panic!("{other:?}"),
        };
        let bytes = Arc::new(vec![7; 100]);
        claim().finish(&bytes, false);
        let again = claim();
        assert!(matches!(all.find(key), UnpackedLookup::Busy));
        again.finish(&bytes, false);
        assert!(matches!(all.find(key), UnpackedLookup::Ready(_)));
        all.clear();
        drop(claim());
        claim().finish(&bytes, true);
        assert!(matches!(all.find(key), UnpackedLookup::Ready(_)));
    }

    /// Eight threads want the same extent at one moment. One thread unpacks it (U3). If that thread
    /// fails, another thread unpacks it.
    #[test]
    fn one_unpacks_for_all() {
        let all = Unpacked::new();
        let (unpacked, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let start = Barrier::new(8);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for number in 0..100_u64 {
                        start.wait();
                        let key = UnpackedKey { layout: number, disk: Logical(4096) };
                        loop {
                            match all.find(key) {
                                UnpackedLookup::Ready(bytes) => {
                                    break assert_eq!(*bytes, vec![7; 100]);
                                }
                                UnpackedLookup::Claimed(claim) => {
                                    thread::yield_now();
                                    // Every tenth attempt fails at first.
                                    if number % 10 == 0
                                        && failed.load(Ordering::SeqCst) <= number as usize / 10
                                    {
                                        failed.fetch_add(1, Ordering::SeqCst);
                                        continue;
                                    }
                                    unpacked.fetch_add(1, Ordering::SeqCst);
                                    claim.finish(&Arc::new(vec![7; 100]), true);
                                }
                                UnpackedLookup::Busy => all.wait(key),
                            }
                        }
                    }
                });
            }
        });
        assert_eq!((unpacked.into_inner(), failed.into_inner()), (100, 10));
    }
}
