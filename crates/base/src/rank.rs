//! Short locks, each with a place in one order that is checked while the program runs.
//!
//! # Place
//!
//! Every crate above takes its mutexes from this module. A deadlock needs two threads and bad luck
//! to show. The check of the order finds a lock that is taken in the wrong order on the first run
//! of one thread.
//!
//! # Invariants
//!
//! - **K1** A thread that holds a rank takes only ranks after it. Debug builds check this: taking
//!   an equal or outer rank panics. [`Ranked::try_lock`] is exempt, because a call that never waits
//!   cannot deadlock.
//!
//! # Locks
//!
//! A thread never holds a ranked mutex across device I/O or a wait for space. A lock that a thread
//! may hold that long has no rank.

use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::interrupt;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Every short lock, outermost first. The order of the variants *is* the lock order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// `fs`: the table of live inodes.
    InodeTable,
    /// `fs`: one inode's state. A thread locks several inodes only in the order of their numbers,
    /// through one helper.
    Inode,
    /// `data`: one file's page index.
    PageIndex,
    /// `space`: one kind of space, its counters and tickets.
    SpaceInfo,
    /// `space`: the list of block groups, when it changes.
    BlockGroups,
    /// `space`: one block group's free extents.
    BlockGroup,
    /// `volume`: the chunk map, when it changes.
    ChunkMap,
    /// `cache`: one shard of the index of cached blocks.
    CacheShard,
    /// `remote`: the open segment and the map of a volume in a store.
    RemoteState,
    /// `sim`: the log of events of recorded devices.
    SimLog,
    /// `block`: the pages of a device in memory.
    MemoryDevice,
    /// Any crate: counters and buffers under which no other lock is taken.
    Leaf,
}

const RANK_COUNT: usize = Rank::Leaf as usize + 1;

/// A mutex with a place in the order of locks.
pub struct Ranked<T: ?Sized> {
    rank: Rank,
    // Unranked: the field above has the rank of this mutex.
    mutex: Mutex<T>,
}

impl<T> Ranked<T> {
    /// Creates an unlocked mutex.
    #[must_use]
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { rank, mutex: Mutex::new(value) }
    }

    /// Takes the value out of a mutex that nothing else can reach.
    pub fn into_inner(self) -> T {
        self.mutex.into_inner()
    }
}

impl<T: ?Sized> Ranked<T> {
    /// Takes the lock.
    ///
    /// # Panics
    ///
    /// In debug builds, if this thread holds an equal or inner rank (K1): a bug of the caller.
    #[track_caller]
    pub fn lock(&self) -> RankedGuard<'_, T> {
        check_order(self.rank);
        let guard = self.mutex.lock();
        RankedGuard { guard, mark: Mark::new(self.rank) }
    }

    /// Takes the lock if it is free, in any order.
    #[must_use = "a guard that is dropped at once guards nothing"]
    #[track_caller]
    pub fn try_lock(&self) -> Option<RankedGuard<'_, T>> {
        let guard = self.mutex.try_lock()?;
        Some(RankedGuard { guard, mark: Mark::new(self.rank) })
    }

    /// Borrows the value of a mutex that nothing else can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.mutex.get_mut()
    }
}

impl<T: fmt::Debug> fmt::Debug for Ranked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranked").field("rank", &self.rank).field("mutex", &self.mutex).finish()
    }
}

/// Proof that the lock is held, for as long as the value lives.
///
/// Functions that need a lock take `&RankedGuard<_>`, so the compiler checks that the caller holds
/// it.
#[must_use = "a guard that is dropped at once guards nothing"]
pub struct RankedGuard<'a, T: ?Sized> {
    guard: MutexGuard<'a, T>,
    mark: Mark,
}

impl<T: ?Sized> RankedGuard<'_, T> {
    /// Gives the lock up until `signal` is notified, and takes it again.
    ///
    /// # Panics
    ///
    /// In debug builds, if this thread holds an inner rank too: taking this lock again would break
    /// the order.
    #[track_caller]
    pub fn wait(&mut self, signal: &Condvar) {
        check_innermost(self.mark.rank);
        signal.wait(&mut self.guard);
    }

    /// Waits as [`RankedGuard::wait`] does, but for `limit` at most; returns whether a notification
    /// came in time.
    ///
    /// # Panics
    ///
    /// As [`RankedGuard::wait`].
    #[track_caller]
    pub fn wait_for(&mut self, signal: &Condvar, limit: Duration) -> bool {
        check_innermost(self.mark.rank);
        !signal.wait_for(&mut self.guard, limit).timed_out()
    }

    /// Waits as [`RankedGuard::wait`] does. If this thread may abandon its wait (`interrupt::I3`),
    /// waits for a moment only, and returns true: the caller then checks
    /// [`interrupt::is_abandoned`].
    ///
    /// # Panics
    ///
    /// As [`RankedGuard::wait`].
    #[track_caller]
    pub fn wait_a_while(&mut self, signal: &Condvar) -> bool {
        let may_abandon = interrupt::may_abandon();
        if may_abandon {
            self.wait_for(signal, interrupt::LOOK);
        } else {
            self.wait(signal);
        }
        may_abandon
    }
}

impl<T: ?Sized> Deref for RankedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RankedGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A rank that this thread holds, until this value is dropped.
struct Mark {
    rank: Rank,
}

impl Mark {
    fn new(rank: Rank) -> Self {
        if cfg!(debug_assertions) {
            count(rank, |held| held + 1);
        }
        Self { rank }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            count(self.rank, |held| held - 1);
        }
    }
}

thread_local! {
    /// How many locks of each rank this thread holds.
    static HELD: Cell<[u8; RANK_COUNT]> = const { Cell::new([0; RANK_COUNT]) };
}

fn count(rank: Rank, change: impl Fn(u8) -> u8) {
    HELD.with(|cell| {
        let mut held = cell.get();
        held[rank as usize] = change(held[rank as usize]);
        cell.set(held);
    });
}

#[track_caller]
fn check_order(rank: Rank) {
    if cfg!(debug_assertions) {
        let held = HELD.get();
        let inner = held.iter().skip(rank as usize).position(|&count| count > 0);
        assert!(inner.is_none(), "K1: taking {rank:?} inside an equal or inner rank, {held:?}");
    }
}

fn check_innermost(rank: Rank) {
    if cfg!(debug_assertions) {
        let held = HELD.get();
        let inner = held.iter().skip(rank as usize + 1).any(|&count| count > 0);
        assert!(!inner, "K1: waiting on {rank:?} with an inner rank held, {held:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K1: the right order passes, in whatever order the guards are dropped.
    #[test]
    fn outer_before_inner_passes() {
        let outer = Ranked::new(Rank::Inode, 1);
        let inner = Ranked::new(Rank::BlockGroup, 2);
        let first = outer.lock();
        let second = inner.lock();
        drop(first);
        assert_eq!(*second, 2);
        drop(second);
        assert_eq!(*outer.lock(), 1);
    }

    /// K1: the wrong order panics at once, with no second thread.
    #[test]
    #[cfg_attr(not(debug_assertions), ignore = "checked in debug builds")]
    #[should_panic(expected = "K1")]
    fn inner_before_outer_panics() {
        let outer = Ranked::new(Rank::Inode, ());
        let inner = Ranked::new(Rank::BlockGroup, ());
        let _inner = inner.lock();
        let _outer = outer.lock();
    }

    /// K1: two locks of one rank have no order, so taking the second panics. `try_lock` is allowed,
    /// since it cannot wait.
    #[test]
    #[cfg_attr(not(debug_assertions), ignore = "checked in debug builds")]
    #[should_panic(expected = "K1")]
    fn equal_rank_panics() {
        let first = Ranked::new(Rank::BlockGroup, ());
        let second = Ranked::new(Rank::BlockGroup, ());
        let _first = first.lock();
        drop(second.try_lock().expect("no thread holds it"));
        let _second = second.lock();
    }

    /// A wait releases the lock, because the thread that notifies needs it.
    #[test]
    fn wait_releases() {
        let place = Ranked::new(Rank::SpaceInfo, false);
        let signal = Condvar::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                *place.lock() = true;
                signal.notify_all();
            });
            let mut held = place.lock();
            while !*held {
                held.wait(&signal);
            }
        });
        assert!(place.into_inner());
    }
}
