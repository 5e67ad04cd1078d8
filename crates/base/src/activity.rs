//! What each thread does, since when, and what it waits for: for figures of a mount.
//!
//! # Place
//!
//! A front end calls [`begin`] for each request. Code that may wait long calls [`wait`] around the
//! wait, or takes a lock with [`lock`], [`read`] or [`write`]. Work that goes on in another thread
//! is [`carried`] there. A report asks for all [`threads`]. No function in between passes anything
//! on.
//!
//! # Invariants
//!
//! - **AC1** A report has no cause with the start of another wait, and no wait with another request
//!   (SL1 and SL2 of `slot`).
//! - **AC2** After its first request, a thread takes no lock and no memory here. A request costs
//!   some stores to memory that only this thread writes. A wait costs one look at the clock more. A
//!   thread without a request pays one load for a wait.
//! - **AC3** Of nested requests the outermost counts, of nested waits the innermost. A wait inside
//!   a wait for the same cause is part of that wait.
//!
//! # Locks
//!
//! The list of all threads has an unranked lock, under which no other lock is taken. It is no lock
//! of `sync`: a report, and the first call of a thread, change no run of the seeded scheduler.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::LazyLock;
use std::sync::atomic;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex as PlainMutex;

use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::{clock, thread};

mod slot;

use slot::{KIND_MAX, Slot, Word};

/// What a thread may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Cause {
    /// Room for data or metadata.
    Room = 1,
    /// Space of unlinked files that the kernel has yet to release.
    Release,
    /// The commit of another thread.
    Commit,
    /// The log of another thread.
    Log,
    /// The lock of a file or directory.
    File,
    /// A snapshot, or the writes before it.
    Snapshot,
    /// Data of the same file that another thread writes back.
    Writeback,
    /// A limit on the speed of writers, because much data is dirty.
    Throttle,
    /// Data that another thread reads or unpacks.
    Reader,
    /// A read from a device.
    DeviceRead,
    /// A write to a device.
    DeviceWrite,
    /// The flush of a device.
    DeviceFlush,
    /// A discard of a device.
    DeviceDiscard,
    /// Room in a cache device.
    Cache,
    /// A store of objects.
    Store,
    /// Pages or names that the kernel drops.
    Kernel,
    /// A thread that finishes the work even if this thread gives up.
    Helper,
}

impl Cause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Self; 17] = [
        Self::Room,
        Self::Release,
        Self::Commit,
        Self::Log,
        Self::File,
        Self::Snapshot,
        Self::Writeback,
        Self::Throttle,
        Self::Reader,
        Self::DeviceRead,
        Self::DeviceWrite,
        Self::DeviceFlush,
        Self::DeviceDiscard,
        Self::Cache,
        Self::Store,
        Self::Kernel,
        Self::Helper,
    ];

    /// The name that scripts read.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Room => "room",
            Self::Release => "release",
            Self::Commit => "commit",
            Self::Log => "log",
            Self::File => "file_lock",
            Self::Snapshot => "snapshot",
            Self::Writeback => "writeback",
            Self::Throttle => "throttle",
            Self::Reader => "reader",
            Self::DeviceRead => "device_read",
            Self::DeviceWrite => "device_write",
            Self::DeviceFlush => "device_flush",
            Self::DeviceDiscard => "device_discard",
            Self::Cache => "cache",
            Self::Store => "store",
            Self::Kernel => "kernel",
            Self::Helper => "helper",
        }
    }

    fn of(kind: u64) -> Option<Self> {
        let index = usize::try_from(kind).ok()?.checked_sub(1)?;
        Self::ALL.get(index).copied()
    }
}

/// A thread, as a report sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The name of the thread. Several threads may have one name.
    pub name: String,
    /// What the thread works on. `None` while it has nothing to do.
    pub work: Option<Work>,
}

/// What a thread works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The number that the front end gave to the kind of request. `None` for the thread's own work.
    pub operation: Option<u32>,
    /// The number of the file that the request names.
    pub subject: u64,
    /// How long ago the request came.
    pub since: Duration,
    /// What the thread waits for, and how long already.
    pub wait: Option<(Cause, Duration)>,
}

/// The number of a thread's own work.
const OWN: u64 = KIND_MAX;

struct Entry {
    name: String,
    slot: &'static Slot,
    is_taken: bool,
}

/// The threads of this process that ever had something to do. A slot outlives its thread, and a
/// later thread takes it. Unranked: no lock is taken under it.
static SLOTS: PlainMutex<Vec<Entry>> = PlainMutex::new(Vec::new());

/// The begin of all times in slots.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The slot of a thread, until the thread ends.
struct Mine {
    slot: &'static Slot,
    index: usize,
}

impl Mine {
    fn take() -> Self {
        let name = std::thread::current().name().unwrap_or("thread").to_owned();
        let mut slots = SLOTS.lock();
        if let Some(index) = slots.iter().position(|entry| !entry.is_taken) {
            let entry = &mut slots[index];
            (entry.name, entry.is_taken) = (name, true);
            KNOWN.set(Some(entry.slot));
            return Self { slot: entry.slot, index };
        }
        let slot: &'static Slot = Box::leak(Box::new(CachePadded::new(Slot::new())));
        slots.push(Entry { name, slot, is_taken: true });
        KNOWN.set(Some(slot));
        Self { slot, index: slots.len() - 1 }
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        KNOWN.set(None);
        self.slot.clear();
        SLOTS.lock()[self.index].is_taken = false;
    }
}

thread_local! {
    static MINE: Mine = Mine::take();
    /// The slot of `MINE`, if this thread has one by now.
    static KNOWN: Cell<Option<&'static Slot>> = const { Cell::new(None) };
}

/// The slot of this thread. `None` at the very end of a thread.
fn mine() -> Option<&'static Slot> {
    MINE.try_with(|mine| mine.slot).ok()
}

fn nanos(at: Instant) -> u64 {
    let time = at.saturating_duration_since(*EPOCH);
    time.as_secs().wrapping_mul(1_000_000_000).wrapping_add(u64::from(time.subsec_nanos()))
}

/// Lists this thread from now on, before it has anything to do.
pub fn register() {
    let _ = mine();
}

/// A request in work, until this value is dropped.
#[derive(Debug)]
#[must_use = "the request ends when it is dropped"]
pub struct Working {
    slot: Option<&'static Slot>,
    /// Makes the type `!Send`, because the slot belongs to the thread.
    stays: PhantomData<*const ()>,
}

impl Drop for Working {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            slot.end();
        }
    }
}

/// Notes that this thread works on a request that came at `began`. `operation` is the number of its
/// kind, from 1 to 126. `subject` is the number of the file that it names.
pub fn begin(operation: u32, subject: u64, began: Instant) -> Working {
    let kind = match u64::from(operation) {
        kind @ 1..OWN => kind,
        _ => OWN,
    };
    start(|| Word::new(kind, nanos(began)), subject)
}

/// Notes that this thread does work that no request names.
pub fn busy() -> Working {
    start(|| Word::new(OWN, nanos(clock::now())), 0)
}

fn start(request: impl FnOnce() -> Word, subject: u64) -> Working {
    let slot = mine().filter(|slot| !slot.is_busy());
    if let Some(slot) = slot {
        slot.begin(request(), subject);
    }
    Working { slot, stays: PhantomData }
}

/// Wraps work that another thread will do for the request of this thread. The request then counts
/// as work of that thread, too, from the time when it came.
pub fn carried<R>(work: impl FnOnce() -> R) -> impl FnOnce() -> R {
    let seen = KNOWN.get().and_then(Slot::look);
    move || {
        let _working = seen.map(|seen| start(|| seen.request, seen.subject));
        work()
    }
}

/// A wait, until this value is dropped.
#[derive(Debug)]
#[must_use = "the wait ends when it is dropped"]
pub struct Waiting {
    slot: Option<(&'static Slot, Word)>,
    /// Makes the type `!Send`, because the slot belongs to the thread.
    stays: PhantomData<*const ()>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((slot, before)) = self.slot {
            slot.resume(before);
        }
    }
}

/// Notes that this thread waits, if it works on a request.
pub fn wait(cause: Cause) -> Waiting {
    let slot = KNOWN.get().filter(|slot| slot.is_busy());
    let slot = slot.map(|slot| (slot, slot.wait(cause as u64, || nanos(clock::now()))));
    Waiting { slot, stays: PhantomData }
}

/// Takes a lock. Until it is free, this thread waits for `cause`.
#[track_caller]
pub fn lock<T: ?Sized>(lock: &Mutex<T>, cause: Cause) -> MutexGuard<'_, T> {
    if may_try()
        && let Some(guard) = lock.try_lock()
    {
        return guard;
    }
    let _waiting = wait(cause);
    lock.lock()
}

/// Takes a share of a lock. Until there is one, this thread waits for `cause`.
#[track_caller]
pub fn read<T: ?Sized>(lock: &RwLock<T>, cause: Cause) -> RwLockReadGuard<'_, T> {
    if may_try()
        && let Some(guard) = lock.try_read()
    {
        return guard;
    }
    let _waiting = wait(cause);
    lock.read()
}

/// Takes a lock for itself. Until it is free, this thread waits for `cause`.
#[track_caller]
pub fn write<T: ?Sized>(lock: &RwLock<T>, cause: Cause) -> RwLockWriteGuard<'_, T> {
    if may_try()
        && let Some(guard) = lock.try_write()
    {
        return guard;
    }
    let _waiting = wait(cause);
    lock.write()
}

/// Under the seeded scheduler an attempt is a point where another thread may run. Runs of a seed
/// have no points more than the locks have.
fn may_try() -> bool {
    thread::seeded_index().is_none()
}

/// All threads of this process that had something to do, or were registered.
#[must_use]
pub fn threads() -> Vec<Thread> {
    let slots = SLOTS.lock();
    let taken = slots.iter().filter(|entry| entry.is_taken);
    let look = |entry: &Entry| {
        let seen = entry.slot.look();
        let now = nanos(clock::now());
        let since = |word: Word| Duration::from_nanos(word.age(now));
        let work = seen.map(|seen| Work {
            operation: Some(seen.request.kind())
                .filter(|kind| *kind != OWN)
                .and_then(|kind| u32::try_from(kind).ok()),
            subject: seen.subject,
            since: since(seen.request),
            wait: seen.wait.and_then(|wait| Some((Cause::of(wait.kind())?, since(wait)))),
        });
        Thread { name: entry.name.clone(), work }
    };
    taken.map(look).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What this thread does now.
    fn own(name: &str) -> Option<Work> {
        let found = threads().into_iter().find(|thread| thread.name == name);
        found.expect("it is listed").work
    }

    fn run(name: &str, work: impl FnOnce() + Send + 'static) {
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(work).expect("a thread").join().expect("no panic");
    }

    #[test]
    fn causes_have_their_numbers_and_names() {
        for (index, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!((cause as usize, Cause::of(cause as u64)), (index + 1, Some(cause)));
            assert!(Cause::ALL[..index].iter().all(|other| other.name() != cause.name()));
        }
        assert!(Cause::of(0).is_none() && Cause::of(Cause::ALL.len() as u64 + 1).is_none());
        assert!((Cause::ALL.len() as u64) < KIND_MAX);
    }

    /// AC3: the outermost request counts, and the innermost wait. A wait outside of a request does
    /// not count.
    #[test]
    fn requests_and_waits_nest() {
        run("nests", || {
            let wait_now = || own("nests").and_then(|work| Some(work.wait?.0));
            register();
            assert_eq!(own("nests"), None);
            drop(wait(Cause::Log));
            let began = clock::now() - Duration::from_secs(5);
            let working = begin(15, 257, began);
            let inner = begin(16, 258, clock::now());
            let work = own("nests").expect("it works");
            assert_eq!((work.operation, work.subject, work.wait), (Some(15), 257, None));
            drop(inner);
            let outer = wait(Cause::Room);
            let began = slot_of_this_thread();
            let same = wait(Cause::Room);
            assert_eq!(slot_of_this_thread(), began, "the wait goes on");
            let inner = wait(Cause::DeviceRead);
            assert_eq!(wait_now(), Some(Cause::DeviceRead));
            drop(inner);
            assert_eq!(slot_of_this_thread(), began, "the outer wait goes on");
            drop((same, outer));
            assert_eq!(wait_now(), None);
            drop(working);
            assert_eq!(own("nests"), None);
            let _busy = busy();
            assert_eq!(own("nests").expect("it works").operation, None);
        });
        assert!(threads().iter().all(|thread| thread.name != "nests"), "the thread has ended");
    }

    fn slot_of_this_thread() -> Option<Word> {
        mine().and_then(Slot::look).and_then(|seen| seen.wait)
    }

    /// A request that goes on in another thread is seen there, with its number and its start.
    #[test]
    fn requests_are_carried_to_other_threads() {
        run("gives", || {
            let _working = begin(3, 300, clock::now());
            let given = mine().and_then(Slot::look).expect("it works");
            let work = carried(move || {
                let taken = mine().and_then(Slot::look).expect("it works");
                assert_eq!((taken.request, taken.subject), (given.request, given.subject));
            });
            run("takes", work);
        });
        run("idle", carried(|| assert_eq!(mine().and_then(Slot::look), None)));
    }

    /// A lock that is free costs no wait. A lock that is held is waited for under its cause.
    #[test]
    fn locks_are_waited_for_under_their_cause() {
        static LOCK: RwLock<()> = RwLock::new(());
        run("takes free locks", || {
            let _working = begin(1, 1, clock::now());
            drop((read(&LOCK, Cause::File), lock(&Mutex::new(()), Cause::Commit)));
            assert_eq!(own("takes free locks").and_then(|work| work.wait), None);
        });
        let held = LOCK.write();
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("takes a lock".to_owned());
            let work = || {
                let _working = begin(1, 7, clock::now());
                drop(write(&LOCK, Cause::File));
                assert_eq!(own("takes a lock").and_then(|work| work.wait), None);
            };
            thread.spawn_scoped(scope, work).expect("a thread");
            let is_seen = || {
                let all = threads();
                let found = all.iter().find(|thread| thread.name == "takes a lock");
                found.and_then(|thread| thread.work.as_ref()?.wait).map(|(cause, _)| cause)
            };
            while is_seen().is_none() {
                std::thread::yield_now();
            }
            assert_eq!(is_seen(), Some(Cause::File));
            drop(held);
        });
    }

    /// Times in a slot wrap around after years, and the difference of two times does not.
    #[test]
    fn ages_survive_the_end_of_the_times() {
        let near_end = u64::MAX >> 7;
        assert_eq!(Word::new(3, near_end).age(9), 10);
        assert_eq!(Word::new(3, 9).age(12), 3);
        assert_eq!(Word::new(3, 12).age(9), 0, "a start after the look");
        assert_eq!(Word::new(3, near_end).kind(), 3);
    }
}
