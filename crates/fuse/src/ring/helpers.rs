//! Threads that drive queues, and threads that help the drivers.
//!
//! Each queue has a driver, which takes requests and works them out itself. What kinds wait for
//! something is learnt ([`Costs`]); those go to helpers, as many as needed up to a limit. A watch
//! looks every millisecond whether a driver is still at the request that it was at (R4).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use buttress_base::clock;
use buttress_base::sync::{Condvar, Mutex};
use buttress_base::thread::{self, JoinHandle, Thread};
use rustix::thread::CpuSet;

use super::queue::{Queue, Taken};
use crate::pool::{Costs, Kind, Stopwatch};

/// How often the watch looks while there is work, and while there is none.
const TICK: Duration = Duration::from_millis(1);
const DOZE: Duration = Duration::from_millis(200);
/// Ticks without a request after which the watch dozes.
const QUIET_TICKS: u32 = 64;
/// An answer is not held back for longer than this because others are being worked out.
const SEND_AFTER: Duration = Duration::from_micros(200);

/// The handler of requests.
pub(crate) trait Office: Send + Sync {
    /// Returns the kind of a request, which tells its likely cost.
    fn kind(&self, taken: &Taken) -> Kind;

    /// Works one out; may wait for anything but another request that only this queue's driver could
    /// take.
    fn work(&self, taken: Taken);
}

/// What all threads of a connection share.
pub(super) struct Shared {
    office: Box<dyn Office>,
    queues: Vec<(u16, Arc<Queue>)>,
    costs: Costs,
    /// The number of threads that work on a request.
    working: AtomicUsize,
    helpers_max: usize,
    /// Unranked: a helper may be started under it; nothing else is done.
    jobs: Mutex<Jobs>,
    called: Condvar,
    /// The number of queues that have not ended.
    left: AtomicUsize,
    watch_dozes: AtomicBool,
    /// Unranked: the watch is woken under it; nothing is taken.
    watch: Mutex<Option<Thread>>,
    /// Queues with entries that the kernel has, or why a queue has none there.
    /// Unranked: nothing is taken under it.
    registered: Mutex<io::Result<usize>>,
    has_registered: Condvar,
}

struct Jobs {
    waiting: VecDeque<Job>,
    idle: usize,
    helpers: usize,
    is_over: bool,
    threads: Vec<JoinHandle<()>>,
}

enum Job {
    /// A request that takes long.
    Work(Kind, Taken),
    /// A queue with a driver that is held up: the number of the queue, and the term.
    Drive(usize, u64),
}

impl Shared {
    pub(super) fn new(
        office: Box<dyn Office>,
        queues: Vec<(u16, Arc<Queue>)>,
        helpers_max: usize,
    ) -> Arc<Self> {
        let left = AtomicUsize::new(queues.len());
        let jobs = Jobs {
            waiting: VecDeque::new(),
            idle: 0,
            helpers: 0,
            is_over: false,
            threads: Vec::new(),
        };
        Arc::new(Self {
            office,
            queues,
            costs: Costs::new(),
            working: AtomicUsize::new(0),
            helpers_max,
            jobs: Mutex::new(jobs),
            called: Condvar::new(),
            left,
            watch_dozes: AtomicBool::new(false),
            watch: Mutex::default(),
            registered: Mutex::new(Ok(0)),
            has_registered: Condvar::new(),
        })
    }

    /// Starts a driver for each queue; returns when the kernel has all entries.
    pub(super) fn start(self: &Arc<Self>) -> io::Result<()> {
        for number in 0..self.queues.len() {
            let shared = Arc::clone(self);
            let name = format!("fuse-ring-{}", self.queues[number].0);
            let thread = thread::Builder::new().name(name).spawn(move || {
                if shared.register(number) {
                    shared.drive(number, 0);
                    // R5: entries that this thread gave to the kernel stay valid.
                    shared.help();
                }
            })?;
            self.jobs.lock().threads.push(thread);
        }
        let mut registered = self.registered.lock();
        while registered.as_ref().is_ok_and(|&count| count < self.queues.len()) {
            self.has_registered.wait(&mut registered);
        }
        std::mem::replace(&mut *registered, Ok(0))?;
        drop(registered);
        let shared = Arc::clone(self);
        let watch = thread::Builder::new().name("fuse-ring-watch".to_owned());
        let watch = watch.spawn(move || shared.keep_watch())?;
        *self.watch.lock() = Some(watch.thread().clone());
        self.jobs.lock().threads.push(watch);
        Ok(())
    }

    /// Gives the entries of a queue to the kernel; says whether it took them.
    fn register(&self, number: usize) -> bool {
        let answer = self.queues[number].1.register();
        let is_well = answer.is_ok();
        let mut registered = self.registered.lock();
        match (&mut *registered, answer) {
            (Ok(count), Ok(())) => *count += 1,
            (Ok(_), Err(error)) => *registered = Err(error),
            // Only the first refusal is reported.
            (Err(_), _) => {}
        }
        self.has_registered.notify_one();
        is_well
    }

    /// Waits until all threads have ended.
    pub(super) fn join(&self) {
        loop {
            let threads = std::mem::take(&mut self.jobs.lock().threads);
            if threads.is_empty() {
                break;
            }
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
    }

    /// Drives a queue until it has ended, or another thread drives it.
    fn drive(self: &Arc<Self>, number: usize, term: u64) {
        let (processor, queue) = &self.queues[number];
        let mut seat = Seat::new(*processor);
        let mut reins = queue.reins();
        let mut sent = clock::now();
        while let Some(taken) = queue.next(&mut reins) {
            if reins.has_unsent && clock::since(sent) > SEND_AFTER {
                queue.send(&mut reins);
                sent = clock::now();
            } else if !reins.has_unsent {
                sent = clock::now();
            }
            let others_wait = reins.has_waiting();
            let kind = self.office.kind(&taken);
            seat.choose(matches!(kind, Kind::ReadLarge | Kind::WriteLarge));
            queue.turn.leave(term);
            drop(reins);
            self.take(kind, taken, others_wait);
            if !queue.turn.come_back(term) {
                // R6: another thread has the reins, and may be waiting for the kernel with them.
                return;
            }
            queue.finished.fetch_add(1, Ordering::Relaxed);
            reins = queue.reins();
        }
        drop(reins);
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.jobs.lock().is_over = true;
            self.called.notify_all();
            // It may doze, and the end of the mount waits for it.
            if let Some(watch) = &*self.watch.lock() {
                watch.unpark();
            }
        }
    }

    /// Handles a request, or hands it to a helper.
    fn take(self: &Arc<Self>, kind: Kind, taken: Taken, others_wait: bool) {
        if self.watch_dozes.load(Ordering::Relaxed)
            && let Some(watch) = &*self.watch.lock()
        {
            watch.unpark();
        }
        match self.is_for_a_helper(kind, others_wait) {
            true => self.call(Job::Work(kind, taken)),
            false => self.work(kind, taken),
        }
    }

    /// Whether a driver should not work this out itself. That is so if it would be waiting for
    /// something. It is so, too, if others wait for it while a processor has nothing to do, and a
    /// helper too. Else handing it on costs more than the others gain, however long it takes.
    fn is_for_a_helper(&self, kind: Kind, others_wait: bool) -> bool {
        let has_idle = || self.working.load(Ordering::Relaxed) < self.queues.len();
        self.costs.waits(kind)
            || others_wait && self.costs.is_long(kind) && has_idle() && self.has_helper()
    }

    /// Whether a helper is there for one job more, or may be.
    fn has_helper(&self) -> bool {
        let jobs = self.jobs.lock();
        jobs.idle > jobs.waiting.len() || jobs.helpers < self.helpers_max
    }

    fn work(&self, kind: Kind, taken: Taken) {
        self.working.fetch_add(1, Ordering::Relaxed);
        let watch = Stopwatch::start(self.costs.is_suspect(kind));
        self.office.work(taken);
        self.costs.learn(kind, watch.until(clock::now()));
        self.working.fetch_sub(1, Ordering::Relaxed);
    }

    /// Gives a job to a helper.
    fn call(self: &Arc<Self>, job: Job) {
        let mut jobs = self.jobs.lock();
        // A queue must not wait until helpers have done what they are at, or what came before.
        let is_urgent = matches!(job, Job::Drive(..));
        let must_start = is_urgent || jobs.helpers < self.helpers_max;
        if is_urgent {
            jobs.waiting.push_front(job);
        } else {
            jobs.waiting.push_back(job);
        }
        if jobs.idle >= jobs.waiting.len() || !must_start {
            drop(jobs);
            self.called.notify_one();
            return;
        }
        let shared = Arc::clone(self);
        let thread = thread::Builder::new().name("fuse-ring-help".to_owned());
        match thread.spawn(move || shared.help()) {
            Ok(thread) => {
                jobs.helpers += 1;
                jobs.threads.push(thread);
            }
            // It is done when one of those that there are has time.
            Err(error) => tracing::warn!(%error, "no thread to help with requests"),
        }
    }

    fn help(self: &Arc<Self>) {
        let mut jobs = self.jobs.lock();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                drop(jobs);
                match job {
                    Job::Work(kind, taken) => self.work(kind, taken),
                    Job::Drive(number, term) => self.drive(number, term),
                }
                jobs = self.jobs.lock();
            } else if jobs.is_over {
                return;
            } else {
                jobs.idle += 1;
                self.called.wait(&mut jobs);
                jobs.idle -= 1;
            }
        }
    }

    /// Looks whether drivers get on (R4).
    fn keep_watch(self: &Arc<Self>) {
        // What each driver was at when the watch looked last.
        let mut before = vec![None; self.queues.len()];
        let mut quiet = 0;
        while !self.jobs.lock().is_over {
            if quiet < QUIET_TICKS {
                thread::park_timeout(TICK);
            } else {
                self.watch_dozes.store(true, Ordering::SeqCst);
                thread::park_timeout(DOZE);
                self.watch_dozes.store(false, Ordering::SeqCst);
            }
            quiet += 1;
            for (number, (_, queue)) in self.queues.iter().enumerate() {
                let away = queue.turn.away();
                let at = away.map(|term| (term, queue.finished.load(Ordering::Relaxed)));
                let was_at = std::mem::replace(&mut before[number], at);
                if was_at != at {
                    quiet = 0;
                } else if let Some((term, _)) = at
                    && let Some(next) = queue.turn.replace(term)
                {
                    self.call(Job::Drive(number, next));
                }
            }
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("queues", &self.queues.len()).finish_non_exhaustive()
    }
}

/// Where a driver runs.
///
/// Short requests are worked out on the processor of the asking program: an answer is a change of
/// threads there, and no other processor has to be woken. A program that asks for much at once has
/// something to do meanwhile. A driver beside it, with all that is copied, would halve what both
/// can do. Then the driver runs wherever there is room.
///
/// A driver does not push the program aside that has just asked, since that program mostly has
/// more to say before it waits: that it closed the file, and the next request. The driver then
/// takes all of it at once. `SCHED_BATCH` says so to the kernel.
struct Seat {
    there: CpuSet,
    anywhere: Option<CpuSet>,
    is_there: bool,
    /// Large requests in a row, minus small ones.
    large: i8,
}

impl Seat {
    /// So many more of one kind than of the other decide.
    const MANY: i8 = 16;

    fn new(processor: u16) -> Self {
        let mut there = CpuSet::new();
        there.set(usize::from(processor));
        let anywhere = rustix::thread::sched_getaffinity(None).ok();
        let mut seat = Self { there, anywhere, is_there: false, large: 0 };
        seat.go(true);
        set_policy(libc::SCHED_BATCH);
        seat
    }

    fn choose(&mut self, is_large: bool) {
        let step = if is_large { 1 } else { -1 };
        self.large = (self.large + step).clamp(-Self::MANY, Self::MANY);
        if self.large.abs() == Self::MANY {
            self.go(self.large < 0);
        }
    }

    fn go(&mut self, is_there: bool) {
        let Some(anywhere) = &self.anywhere else { return };
        if self.is_there != is_there {
            self.is_there = is_there;
            let place = if is_there { &self.there } else { anywhere };
            // Where we may not use a processor, the driver runs on another.
            let _ = rustix::thread::sched_setaffinity(None, place);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.go(false);
        set_policy(libc::SCHED_OTHER);
    }
}

/// Sets how the kernel schedules this thread. Without the right to it all works as before.
#[expect(unsafe_code, reason = "rustix has no name for this call")]
fn set_policy(policy: libc::c_int) {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the structure, which lives until it returns.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
}
