//! The worker pool: how many threads read requests from the kernel. The pool keeps the number of
//! readers small, and at least one.
//!
//! # Place
//!
//! [`crate::device`] starts a number of threads that each read a request, handle it and read the
//! next. The kernel wakes waiting readers in turn. With several readers each small request wakes a
//! different thread, with cold caches, on another processor. Measured: a create took three times as
//! long with eight readers as with one. But while a single reader waits for the disk, all other
//! requests wait. So one thread reads requests and handles them itself. The other threads wait on
//! the bench. Every handler holds a [`WorkerGuard`]. The pool wakes a thread from the bench to read
//! when
//!
//! - requests of the present kind have lately taken long (an average for each kind, without the
//!   time of other threads on the processor), or
//! - requests come in faster than they are handled: the next one arrives before the last is done,
//!   or waits while a large write is being handled, or
//! - nothing was finished for a millisecond and no thread reads: one thread on the bench watches
//!   for that.
//!
//! A thread that ends a request while another thread reads goes to the bench, unless another
//! request waits already.
//!
//! # Polling before sleeping
//!
//! A program that waits for each reply sends its next request some microseconds after the reply. If
//! an idle processor halts (above all in a virtual machine), waking the reader takes longer than
//! these microseconds, and longer than the request itself. Measured: the waking took half of the
//! time of a create. So a reader polls for the next request for a while ([`Options::busy_poll`])
//! before it sleeps. While it polls, it yields to other threads that need its processor, and stops
//! if they keep the processor. It polls only while polling has lately been successful and no other
//! thread handles a request.
//!
//! The reader also goes to the processor of the program that asks (`follow`).
//!
//! # Invariants
//!
//! - **W1** `readers` counts the threads that read or will read next. A thread on its way to the
//!   bench holds the bench's lock while it checks that there is a reader and takes its seat. So no
//!   wake-up is lost.
//! - **W2** When the connection has ended, all threads leave the bench, read, get the error and
//!   end.
//! - **W3** No thread goes to the bench before it has completely handled the request that it read.
//!
//! # Locks
//!
//! The bench has one lock, held for a push or a pop. While a thread holds this lock, it takes no
//! other lock and wakes no thread.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_base::sync::Mutex;
use buttress_base::thread::{self, Thread};

use crate::Options;
use crate::placement::{Lowering, note_processors};

mod follow;
mod kind;
#[cfg(all(test, debug_assertions))]
mod seeded;
mod stopwatch;
#[cfg(test)]
mod tests;

use follow::Follower;
pub(crate) use follow::send;
pub(crate) use kind::{Costs, Kind};
pub(crate) use stopwatch::Stopwatch;

/// A request that is read within this time after the last request was handled has waited already.
const WAITING: Duration = Duration::from_micros(3);
/// This many waiting requests in a row are more than one thread can handle. A single program that
/// waits for each reply also makes short runs: it may send a request before the replying thread has
/// returned.
const BACKLOG: u32 = 12;
/// Period of the watching thread's checks while there is work, and while there is none.
const TICK: Duration = Duration::from_millis(1);
const DOZE: Duration = Duration::from_millis(200);
/// Ticks without a request after which the watching thread uses the longer period.
const QUIET_TICKS: u32 = 64;
/// Upper limit of the polling score. A successful poll adds one, and a vain poll subtracts two. A
/// thread polls only while the score is above zero.
const WORTH_MAX: u32 = 16;

/// If another thread keeps the processor for longer than this, the processors are busy. Polling
/// then delays other threads, even the program that sends the next request.
const OTHERS: Duration = Duration::from_micros(20);

/// The connection that delivers requests, with the state that is visible without reading.
pub(crate) trait Connection: Send + Sync + std::fmt::Debug {
    /// Whether a read would return at once: a request waits, or the connection has ended.
    fn has_request(&self) -> bool;

    /// Whether the kernel has ended the connection.
    fn is_gone(&self) -> bool;
}

/// The threads of one session.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    connection: Box<dyn Connection>,
    is_adaptive: bool,
    busy_poll: Duration,
    /// The polling score, up to [`WORTH_MAX`].
    poll_worth: AtomicU32,
    readers: AtomicUsize,
    /// The number of threads that handle a request.
    handling: AtomicUsize,
    finished: AtomicU64,
    costs: Costs,
    follower: Arc<Follower>,
    is_dismissed: AtomicBool,
    /// Unranked: no other lock is taken under it.
    bench: Mutex<Bench>,
}

#[derive(Debug, Default)]
struct Bench {
    /// Waiting threads. The last thread to arrive is woken first, because its caches are warmest.
    seated: Vec<Arc<Seat>>,
    watch: Option<Arc<Seat>>,
}

#[derive(Debug)]
struct Seat {
    thread: Thread,
    is_called: AtomicBool,
    is_watch: AtomicBool,
}

/// The membership of a thread in the pool. It ends with the thread, when the connection has ended
/// (W2).
struct Member {
    pool: Arc<WorkerPool>,
    seat: Arc<Seat>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.pool.dismiss();
    }
}

thread_local! {
    static MEMBER: RefCell<Option<Member>> = const { RefCell::new(None) };
    static LAST_DONE: Cell<Option<Instant>> = const { Cell::new(None) };
    static HANDLED: Cell<Option<Instant>> = const { Cell::new(None) };
    static WAITED: Cell<u32> = const { Cell::new(0) };
    static LAST_ASKER: Cell<u32> = const { Cell::new(0) };
}

/// The whole of one thread's work on one request (W3).
#[must_use = "a guard lasts until the answer is sent"]
pub(crate) struct WorkerGuard<'a> {
    pool: &'a Arc<WorkerPool>,
    kind: Kind,
    watch: Stopwatch,
}

impl WorkerPool {
    /// Creates the worker pool of a session with `threads` threads, all of them about to read.
    /// Without [`Options::handoff`] all threads read independently.
    pub(crate) fn new(
        connection: impl Connection + 'static,
        threads: usize,
        options: &Options,
    ) -> Arc<Self> {
        note_processors();
        // With one processor, polling only delays the programs that send requests.
        let has_room = thread::parallelism() > 1;
        Arc::new(Self {
            connection: Box::new(connection),
            is_adaptive: options.handoff && threads > 1,
            busy_poll: if has_room { options.busy_poll } else { Duration::ZERO },
            poll_worth: AtomicU32::new(0),
            readers: AtomicUsize::new(threads),
            handling: AtomicUsize::new(0),
            finished: AtomicU64::new(0),
            costs: Costs::new(),
            follower: Follower::new(options.handoff && threads > 1 && has_room),
            is_dismissed: AtomicBool::new(false),
            bench: Mutex::default(),
        })
    }

    /// Begins to handle a request that this thread has read. `asker` is the thread that waits for
    /// the answer, or zero.
    pub(crate) fn guard(self: &Arc<Self>, kind: Kind, asker: u32) -> WorkerGuard<'_> {
        let watch = Stopwatch::start(self.is_adaptive && self.costs.is_suspect(kind));
        let started = watch.started();
        if self.is_adaptive {
            if LAST_DONE.get().is_some_and(|done| started - done < self.busy_poll) {
                self.note_poll(true);
            }
            self.handling.fetch_add(1, Ordering::Relaxed);
            let others = self.readers.fetch_sub(1, Ordering::SeqCst).saturating_sub(1);
            if others == 0 {
                let is_long = self.costs.is_long(kind);
                if is_long || is_backlog(started, asker) || self.is_pressed(kind) {
                    // Another thread reads next.
                    follow::leave();
                    self.call_one();
                } else if self.follower.watch_dozes.load(Ordering::Relaxed) {
                    self.wake_watch();
                }
            }
            follow::ON_DUTY.set(true);
            self.follower.note(asker, kind.is_work());
        }
        WorkerGuard { pool: self, kind, watch }
    }

    /// Whether another request waits while a large write is handled. Receiving its bytes takes so
    /// long that the time between requests has no meaning. For small requests this check would cost
    /// too much.
    fn is_pressed(&self, kind: Kind) -> bool {
        kind == Kind::WriteLarge && self.connection.has_request()
    }

    fn call_one(&self) {
        let seat = {
            let mut bench = self.bench.lock();
            let Some(seat) = bench.seated.pop().or_else(|| bench.watch.take()) else { return };
            self.note_watch(&bench);
            self.readers.fetch_add(1, Ordering::SeqCst);
            seat
        };
        seat.call();
    }

    /// Notes whether there is a watch. If there is none, no policy stays low.
    fn note_watch(&self, bench: &Bench) {
        let has_watch = bench.watch.is_some();
        self.follower.has_watch.store(has_watch, Ordering::SeqCst);
        if !has_watch {
            self.follower.restore_now();
        }
    }

    fn wake_watch(&self) {
        let watch = self.bench.lock().watch.clone();
        if let Some(seat) = watch {
            seat.thread.unpark();
        }
    }

    /// Notes that a request is completely handled. Sending the reply wakes the program, which may
    /// take this processor. That time is no cost of the request.
    pub(crate) fn handled(&self) {
        if self.is_adaptive {
            HANDLED.set(Some(clock::now()));
        }
    }

    fn finish(self: &Arc<Self>, kind: Kind, watch: &Stopwatch) {
        let now = clock::now();
        let handled = HANDLED.take().unwrap_or(now);
        self.costs.learn(kind, watch.until(handled));
        self.finished.fetch_add(1, Ordering::Relaxed);
        follow::ON_DUTY.set(false);
        let is_alone = self.handling.fetch_sub(1, Ordering::Relaxed) == 1;
        if self.become_reader() {
            LAST_DONE.set(Some(now));
            self.follower.follow();
            // Other busy threads need the processor, so poll only if no other thread handles a
            // request.
            if is_alone {
                self.look_ahead(now);
            }
            return;
        }
        // There is a reader, but a request waits already. This thread becomes a second reader.
        // Going to the bench and being woken for that request would cost both threads more than the
        // check.
        if self.connection.has_request() {
            self.readers.fetch_add(1, Ordering::SeqCst);
            LAST_DONE.set(Some(now));
            self.follower.follow();
            return;
        }
        LAST_DONE.set(None);
        follow::leave();
        MEMBER.with_borrow_mut(|member| {
            let member =
                member.get_or_insert_with(|| Member { pool: Arc::clone(self), seat: Seat::new() });
            self.sit(&member.seat);
        });
    }

    /// Notes that a thread has handled a request that is too small for a guard.
    pub(crate) fn trifle_done(&self) {
        if self.is_adaptive {
            self.look_ahead(clock::now());
        }
    }

    /// Polls for the next request while it is likely to come soon.
    fn look_ahead(&self, since: Instant) {
        if self.busy_poll.is_zero() || self.poll_worth.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut yielded = Duration::ZERO;
        while !self.connection.has_request() {
            let before = clock::now();
            if yielded > OTHERS || before.saturating_duration_since(since) >= self.busy_poll {
                return self.note_poll(false);
            }
            thread::yield_now();
            yielded = clock::since(before);
        }
    }

    fn note_poll(&self, has_paid: bool) {
        // Two threads may overwrite each other's score, but the score is only an estimate.
        let old = self.poll_worth.load(Ordering::Relaxed);
        let new = if has_paid { (old + 1).min(WORTH_MAX) } else { old.saturating_sub(2) };
        if new != old {
            self.poll_worth.store(new, Ordering::Relaxed);
        }
    }

    fn become_reader(&self) -> bool {
        self.readers.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn sit(&self, seat: &Arc<Seat>) {
        {
            let mut bench = self.bench.lock();
            // W1: a thread that removes the last reader checks the bench afterwards, under this
            // lock. Either the other thread finds this seat, or this thread has become the reader.
            if self.is_dismissed.load(Ordering::SeqCst) || self.become_reader() {
                return;
            }
            if bench.watch.is_none() {
                seat.is_watch.store(true, Ordering::Relaxed);
                bench.watch = Some(Arc::clone(seat));
                self.note_watch(&bench);
            } else {
                seat.is_watch.store(false, Ordering::Relaxed);
                bench.seated.push(Arc::clone(seat));
            }
        }
        let mut quiet = 0;
        let mut lowered = None;
        while !seat.is_called.swap(false, Ordering::Acquire) {
            if !seat.is_watch.load(Ordering::Relaxed) {
                thread::park();
            } else if self.keep_watch(seat, &mut quiet, &mut lowered) {
                return;
            }
        }
    }

    /// Checks once whether work has stopped. Returns true if this thread becomes the reader.
    fn keep_watch(
        &self,
        seat: &Arc<Seat>,
        quiet: &mut u32,
        lowered: &mut Option<Lowering>,
    ) -> bool {
        let before = self.finished.load(Ordering::Relaxed);
        if *quiet < QUIET_TICKS {
            thread::park_timeout(TICK);
        } else {
            self.follower.free();
            self.follower.watch_dozes.store(true, Ordering::SeqCst);
            if !self.follower.is_lowered() {
                thread::park_timeout(DOZE);
            }
            self.follower.watch_dozes.store(false, Ordering::SeqCst);
            if self.connection.is_gone() {
                self.dismiss();
            }
        }
        self.follower.look(lowered);
        let is_unread = self.readers.load(Ordering::SeqCst) == 0;
        let nothing_done = self.finished.load(Ordering::Relaxed) == before;
        // A reader that is bound to a busy processor may not get to read.
        if nothing_done && self.follower.has_place() && self.connection.has_request() {
            self.follower.free();
        }
        *quiet = if nothing_done && !is_unread && lowered.is_none() {
            quiet.saturating_add(1)
        } else {
            0
        };
        is_unread && nothing_done && self.take_over(seat)
    }

    fn take_over(&self, seat: &Arc<Seat>) -> bool {
        let next = {
            let mut bench = self.bench.lock();
            let is_still_watch = bench.watch.as_ref().is_some_and(|watch| Arc::ptr_eq(watch, seat));
            if !is_still_watch || !self.become_reader() {
                return false;
            }
            bench.watch = bench.seated.pop();
            self.note_watch(&bench);
            bench.watch.clone()
        };
        if let Some(next) = next {
            next.is_watch.store(true, Ordering::Relaxed);
            next.thread.unpark();
        }
        true
    }

    /// Wakes all threads for good, so that they read and end (W2).
    fn dismiss(&self) {
        let seats = {
            let mut bench = self.bench.lock();
            self.is_dismissed.store(true, Ordering::SeqCst);
            let mut seats = std::mem::take(&mut bench.seated);
            seats.extend(bench.watch.take());
            self.note_watch(&bench);
            seats
        };
        for seat in seats {
            seat.call();
        }
    }
}

impl Seat {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            thread: thread::current(),
            is_called: AtomicBool::new(false),
            is_watch: AtomicBool::new(false),
        })
    }

    fn call(&self) {
        self.is_called.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Drop for WorkerGuard<'_> {
    fn drop(&mut self) {
        if self.pool.is_adaptive {
            self.pool.finish(self.kind, &self.watch);
        }
    }
}

/// Returns whether this thread has found the next request waiting after each of its last requests.
/// A program that has its answer may ask again before the thread returns: such a request has not
/// waited.
fn is_backlog(now: Instant, asker: u32) -> bool {
    let is_same = LAST_ASKER.replace(asker) == asker && asker != 0;
    let waited = !is_same && LAST_DONE.get().is_some_and(|done| now - done < WAITING);
    let count = if waited { WAITED.get().saturating_add(1) } else { 0 };
    WAITED.set(count);
    count >= BACKLOG
}
