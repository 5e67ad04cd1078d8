//! The worker pool: how many threads read from the kernel. As few read as keep up, and never none.
//!
//! # Place
//!
//! The protocol library starts a number of threads that each read a request, handle it and read the
//! next. The kernel wakes waiting readers in turn. With several readers every small request wakes
//! another cold thread, on another processor. Measured: a create took three times as long with
//! eight readers as with one. But while a single reader waits for the disk, all other requests
//! wait.
//! So one thread reads and handles what it reads itself; the others sit on a bench. Every handler
//! holds a [`Duty`]. A thread is called from the bench to read on when
//!
//! - requests of this kind have lately taken long (an average for each kind, without the time in
//!   which other threads had the processor), or
//! - requests come in faster than they are handled: the next was there before the last was done, or
//!   is there when a large write was taken, or
//! - nothing was finished for a millisecond and no thread reads: one on the bench keeps watch for
//!   that.
//!
//! A thread that ends a duty while another thread reads sits down, unless another request is
//! waiting already. After a `forget` it reads on beside the other until the next request (W3).
//!
//! # Looking before sleeping
//!
//! A program that waits for each answer asks again some microseconds after it has one. Where an
//! idle processor halts (a virtual machine above all), waking the reader costs more than that and
//! more than the request. Measured: half of the time of a create. So a reader looks for the next
//! request for a while ([`Options::busy_poll`]) before it sleeps. While it looks, it gives way to
//! threads that want its processor, and stops looking where these keep it. It looks only while that
//! has lately been worth it and no other thread handles a request.
//!
//! # Invariants
//!
//! - **W1** `readers` counts the threads that read or are on their way to. A thread that sits down
//!   has seen one, under the bench's lock, after taking its seat. So no call is lost.
//! - **W2** When the connection is gone all threads get up, read, are told so and end.
//! - **W3** No thread sits down before the request that it read is worked out.
//!
//! # Locks
//!
//! The bench's, for a push or a pop. Nothing is called with it held.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_base::sync::Mutex;
use buttress_base::thread::{self, Thread};

use crate::Options;

mod kind;
#[cfg(all(test, debug_assertions))]
mod seeded;
mod stopwatch;
#[cfg(test)]
mod tests;

pub(crate) use kind::{Costs, Kind};
pub(crate) use stopwatch::Stopwatch;

/// A request read within this time after the last was waiting already.
const WAITING: Duration = Duration::from_micros(3);
/// So many in a row are more than one thread can do. One program that waits for each answer gives
/// short runs, too: it may have asked again before the thread that answered comes back from that.
const BACKLOG: u32 = 12;
/// How often the watch looks while there is work, and while there is none.
const TICK: Duration = Duration::from_millis(1);
const DOZE: Duration = Duration::from_millis(200);
/// Ticks without a request after which the watch dozes.
const QUIET_TICKS: u32 = 64;
/// Looking for the next request is worth it above zero. A look that found a request adds one, a
/// look in vain takes two away, and the sum stays at or below this.
const WORTH_MAX: u32 = 16;

/// Another thread has the processor for longer than this where there are more than enough to do.
/// Looking then keeps others from working, the program that is to ask among them.
const OTHERS: Duration = Duration::from_micros(20);

/// The connection that requests come by, as far as one can see without reading.
pub(crate) trait Line: Send + Sync + std::fmt::Debug {
    /// Whether a read would not wait: a request is there, or the connection is gone.
    fn has_request(&self) -> bool;

    /// Whether the kernel has ended the connection.
    fn is_gone(&self) -> bool;
}

/// The threads of one session.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    link: Box<dyn Line>,
    is_adaptive: bool,
    busy_poll: Duration,
    /// How well looking for the next request has paid, up to [`WORTH_MAX`].
    poll_worth: AtomicU32,
    readers: AtomicUsize,
    /// How many threads handle a request.
    handling: AtomicUsize,
    finished: AtomicU64,
    costs: Costs,
    watch_dozes: AtomicBool,
    is_dismissed: AtomicBool,
    /// Unranked: nothing is taken under it.
    bench: Mutex<Bench>,
}

#[derive(Debug, Default)]
struct Bench {
    /// The thread that came last is called first: its caches are warmest.
    seated: Vec<Arc<Seat>>,
    watch: Option<Arc<Seat>>,
}

#[derive(Debug)]
struct Seat {
    thread: Thread,
    is_called: AtomicBool,
    is_watch: AtomicBool,
}

/// A thread's membership; it ends with the thread, which happens when the connection is gone (W2).
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
}

/// One thread handling one request.
#[must_use = "a duty lasts until the answer is sent"]
pub(crate) struct Duty<'a> {
    pool: &'a Arc<WorkerPool>,
    kind: Kind,
    watch: Stopwatch,
}

impl WorkerPool {
    /// Creates the worker pool of a session with `threads` threads, all of them about to read.
    /// Without [`Options::handoff`] they just go on reading, each for itself.
    pub(crate) fn new(link: impl Line + 'static, threads: usize, options: &Options) -> Arc<Self> {
        // On one processor looking only keeps the others from asking.
        let has_room = thread::parallelism() > 1;
        Arc::new(Self {
            link: Box::new(link),
            is_adaptive: options.handoff && threads > 1,
            busy_poll: if has_room { options.busy_poll } else { Duration::ZERO },
            poll_worth: AtomicU32::new(0),
            readers: AtomicUsize::new(threads),
            handling: AtomicUsize::new(0),
            finished: AtomicU64::new(0),
            costs: Costs::new(),
            watch_dozes: AtomicBool::new(false),
            is_dismissed: AtomicBool::new(false),
            bench: Mutex::default(),
        })
    }

    /// Begins to handle a request that this thread has read.
    pub(crate) fn duty(self: &Arc<Self>, kind: Kind) -> Duty<'_> {
        let watch = Stopwatch::start(self.is_adaptive && self.costs.is_suspect(kind));
        let started = watch.started();
        if self.is_adaptive {
            if LAST_DONE.get().is_some_and(|done| started - done < self.busy_poll) {
                self.note_poll(true);
            }
            self.handling.fetch_add(1, Ordering::Relaxed);
            let others = self.readers.fetch_sub(1, Ordering::SeqCst).saturating_sub(1);
            if others == 0 {
                if self.costs.is_long(kind) || is_backlog(started) || self.is_pressed(kind) {
                    self.call_one();
                } else if self.watch_dozes.load(Ordering::Relaxed) {
                    self.wake_watch();
                }
            }
        }
        Duty { pool: self, kind, watch }
    }

    /// Whether another request waits while a large write is handled. Its bytes take so long to come
    /// in that the time between requests says nothing. For small requests the look would cost too
    /// much.
    fn is_pressed(&self, kind: Kind) -> bool {
        kind == Kind::WriteLarge && self.link.has_request()
    }

    fn call_one(&self) {
        let seat = {
            let mut bench = self.bench.lock();
            let Some(seat) = bench.seated.pop().or_else(|| bench.watch.take()) else { return };
            self.readers.fetch_add(1, Ordering::SeqCst);
            seat
        };
        seat.call();
    }

    fn wake_watch(&self) {
        let watch = self.bench.lock().watch.clone();
        if let Some(seat) = watch {
            seat.thread.unpark();
        }
    }

    /// Notes that a request is worked out. What follows, sending the answer, wakes the asking
    /// program, which may take this processor: that is no cost of the request.
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
        let is_alone = self.handling.fetch_sub(1, Ordering::Relaxed) == 1;
        if self.become_reader() {
            LAST_DONE.set(Some(now));
            // Other threads that are at work need the processor.
            if is_alone {
                self.look_ahead(now);
            }
            return;
        }
        // More are waiting than the other reader has taken: sitting down, to be called again for
        // one of them, would cost both of them more than looking.
        if self.link.has_request() {
            self.readers.fetch_add(1, Ordering::SeqCst);
            LAST_DONE.set(Some(now));
            return;
        }
        LAST_DONE.set(None);
        // The kernel forgets many in one request, of which the protocol library makes a call each.
        // A thread that sat down in between would leave the rest undone. It reads beside the other
        // until the next request (W3).
        if kind == Kind::Forget {
            self.readers.fetch_add(1, Ordering::SeqCst);
            return;
        }
        MEMBER.with_borrow_mut(|member| {
            let member =
                member.get_or_insert_with(|| Member { pool: Arc::clone(self), seat: Seat::new() });
            self.sit(&member.seat);
        });
    }

    /// Notes that a request was answered that is too little for a duty.
    pub(crate) fn trifle_done(&self) {
        if self.is_adaptive {
            self.look_ahead(clock::now());
        }
    }

    /// Waits awake for the next request, as long as that is likely to come soon.
    fn look_ahead(&self, since: Instant) {
        if self.busy_poll.is_zero() || self.poll_worth.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut yielded = Duration::ZERO;
        while !self.link.has_request() {
            let before = clock::now();
            if yielded > OTHERS || before.saturating_duration_since(since) >= self.busy_poll {
                return self.note_poll(false);
            }
            thread::yield_now();
            yielded = clock::since(before);
        }
    }

    fn note_poll(&self, has_paid: bool) {
        // Two threads may overwrite each other's note: it is a guess either way.
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
            // W1: a thread that takes the last reader's place away looks at the bench afterwards,
            // under this lock. So it finds this seat, or this thread has become the reader.
            if self.is_dismissed.load(Ordering::SeqCst) || self.become_reader() {
                return;
            }
            if bench.watch.is_none() {
                seat.is_watch.store(true, Ordering::Relaxed);
                bench.watch = Some(Arc::clone(seat));
            } else {
                seat.is_watch.store(false, Ordering::Relaxed);
                bench.seated.push(Arc::clone(seat));
            }
        }
        let mut quiet = 0;
        while !seat.is_called.swap(false, Ordering::Acquire) {
            if !seat.is_watch.load(Ordering::Relaxed) {
                thread::park();
            } else if self.keep_watch(seat, &mut quiet) {
                return;
            }
        }
    }

    /// Looks once whether work has come to a stop; true when this thread takes over.
    fn keep_watch(&self, seat: &Arc<Seat>, quiet: &mut u32) -> bool {
        let before = self.finished.load(Ordering::Relaxed);
        if *quiet < QUIET_TICKS {
            thread::park_timeout(TICK);
        } else {
            self.watch_dozes.store(true, Ordering::SeqCst);
            thread::park_timeout(DOZE);
            self.watch_dozes.store(false, Ordering::SeqCst);
            if self.link.is_gone() {
                self.dismiss();
            }
        }
        let is_unread = self.readers.load(Ordering::SeqCst) == 0;
        let nothing_done = self.finished.load(Ordering::Relaxed) == before;
        *quiet = if nothing_done && !is_unread { quiet.saturating_add(1) } else { 0 };
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
            bench.watch.clone()
        };
        if let Some(next) = next {
            next.is_watch.store(true, Ordering::Relaxed);
            next.thread.unpark();
        }
        true
    }

    /// Sends all threads back to read, once and for all (W2).
    fn dismiss(&self) {
        let seats = {
            let mut bench = self.bench.lock();
            self.is_dismissed.store(true, Ordering::SeqCst);
            let mut seats = std::mem::take(&mut bench.seated);
            seats.extend(bench.watch.take());
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

impl Drop for Duty<'_> {
    fn drop(&mut self) {
        if self.pool.is_adaptive {
            self.pool.finish(self.kind, &self.watch);
        }
    }
}

/// Says whether this thread has lately found the next request waiting whenever it was done.
fn is_backlog(now: Instant) -> bool {
    let waited = LAST_DONE.get().is_some_and(|done| now - done < WAITING);
    let count = if waited { WAITED.get().saturating_add(1) } else { 0 };
    WAITED.set(count);
    count >= BACKLOG
}
