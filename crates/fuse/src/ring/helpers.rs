//! Threads that drive queues, and threads that help the drivers.
//!
//! Each queue has a driver, which takes requests and handles most of them itself. Kinds of requests
//! that were found to wait ([`Costs`]) go to helpers, up to a limit. Every millisecond a watch
//! checks whether a driver is still at the same request (`ring::R4`).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use buttress_base::clock;
use buttress_base::sync::{Condvar, Mutex};
use buttress_base::thread::{self, JoinHandle, Thread};

use super::queue::{Queue, Taken};
use crate::exchange::Exchange;
use crate::placement::Affinity;
use crate::pool::{Costs, Kind, Stopwatch};

/// How often the watch looks: `TICK` while there is work, otherwise `DOZE`.
const TICK: Duration = Duration::from_millis(1);
const DOZE: Duration = Duration::from_millis(200);
/// Ticks without a request after which the watch dozes.
const QUIET_TICKS: u32 = 64;
/// The longest time that finished answers are held back while further requests are handled.
const SEND_AFTER: Duration = Duration::from_micros(200);

/// The handler of requests.
pub(crate) trait RequestHandler: Send + Sync {
    /// Returns the kind of a request, which tells its likely cost.
    fn kind(&self, taken: &Taken) -> Kind;

    /// Handles a request. It may wait for anything except a request that only this queue's driver
    /// could take.
    fn work(&self, taken: Taken);
}

/// The state that all threads of a connection share.
pub(super) struct Shared {
    handler: Box<dyn RequestHandler>,
    queues: Vec<(u16, Arc<Queue>)>,
    costs: Costs,
    /// The number of threads that work on a request.
    working: AtomicUsize,
    helpers_max: usize,
    /// Unranked: a helper may be started under it, and no other lock is taken.
    jobs: Mutex<Jobs>,
    called: Condvar,
    /// The number of queues that have not ended.
    left: AtomicUsize,
    /// Unranked: the watch is woken under it, and no other lock is taken.
    watch: Mutex<Option<Thread>>,
    /// The number of queues with entries that the kernel has accepted, or its first refusal.
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
    /// The driver of a queue is held up: drive that queue. Fields: the number of the queue, and the
    /// new term.
    Drive(usize, u64),
}

impl Shared {
    pub(super) fn new(
        handler: Box<dyn RequestHandler>,
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
            handler,
            queues,
            costs: Costs::new(),
            working: AtomicUsize::new(0),
            helpers_max,
            jobs: Mutex::new(jobs),
            called: Condvar::new(),
            left,
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
                    // `ring::R5`: this thread lives on, because it gave entries to the kernel.
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

    /// Gives the entries of a queue to the kernel; says whether the kernel took them.
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

    /// Drives a queue until the queue has ended or another thread drives it.
    fn drive(self: &Arc<Self>, number: usize, term: u64) {
        let (processor, queue) = &self.queues[number];
        let mut affinity = Affinity::new(*processor);
        let mut driver = queue.lock_driver();
        driver.thread = affinity.thread();
        let mut sent = clock::now();
        while let Some(taken) = queue.next(&mut driver) {
            if driver.has_unsent && clock::since(sent) > SEND_AFTER {
                queue.send(&mut driver);
                sent = clock::now();
            } else if !driver.has_unsent {
                sent = clock::now();
            }
            let others_wait = driver.has_waiting();
            let kind = self.handler.kind(&taken);
            queue.moves.note(taken.head().task, *processor);
            affinity.note_request(matches!(kind, Kind::ReadLarge | Kind::WriteLarge));
            queue.term.leave(term);
            drop(driver);
            self.work_or_hand_over(kind, taken, others_wait);
            if !queue.term.come_back(term) {
                // `ring::driver_term::R6`: this thread must not lock the driver state. The new
                // driver may hold that lock while it waits for the kernel.
                return;
            }
            queue.finished.fetch_add(1, Ordering::Relaxed);
            driver = queue.lock_driver();
        }
        drop(driver);
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.jobs.lock().is_over = true;
            self.called.notify_all();
            // The watch may be dozing, and the end of the mount waits for the watch to end.
            if let Some(watch) = &*self.watch.lock() {
                watch.unpark();
            }
        }
    }

    /// Handles a request, or hands it to a helper.
    fn work_or_hand_over(self: &Arc<Self>, kind: Kind, taken: Taken, others_wait: bool) {
        if self.watch_dozes().load(Ordering::Relaxed)
            && let Some(watch) = &*self.watch.lock()
        {
            watch.unpark();
        }
        match self.should_hand_over(kind, others_wait) {
            true => self.give_to_helper(Job::Work(kind, taken)),
            false => self.work(kind, taken),
        }
    }

    /// Whether a driver hands a request of this kind to a helper. A kind that usually waits for
    /// something always goes to a helper. A kind that takes long goes to a helper only if three
    /// conditions hold: other requests wait, a processor is idle, and a helper is idle or may be
    /// started. In all other cases handing over costs more than the other requests gain.
    fn should_hand_over(&self, kind: Kind, others_wait: bool) -> bool {
        let has_idle = || self.working.load(Ordering::Relaxed) < self.queues.len();
        self.costs.usually_waits(kind)
            || others_wait && self.costs.is_long(kind) && has_idle() && self.has_helper()
    }

    /// Whether the watch dozes.
    fn watch_dozes(&self) -> &AtomicBool {
        // There is a queue for each processor, and all have the same `Moves`.
        &self.queues[0].1.moves.watch_dozes
    }

    /// Whether a helper is idle, or may be started.
    fn has_helper(&self) -> bool {
        let jobs = self.jobs.lock();
        jobs.idle > jobs.waiting.len() || jobs.helpers < self.helpers_max
    }

    fn work(&self, kind: Kind, taken: Taken) {
        self.working.fetch_add(1, Ordering::Relaxed);
        let watch = Stopwatch::start(self.costs.is_suspect(kind));
        self.handler.work(taken);
        self.costs.learn(kind, watch.until(clock::now()));
        self.working.fetch_sub(1, Ordering::Relaxed);
    }

    /// Gives a job to a helper.
    fn give_to_helper(self: &Arc<Self>, job: Job) {
        let mut jobs = self.jobs.lock();
        // A queue must wait neither for busy helpers nor for earlier jobs.
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
            // An existing helper takes the job when it has time.
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

    /// Replaces drivers that make no progress (`ring::R4`), and gives drivers their policy back
    /// (`placement::A1`).
    fn keep_watch(self: &Arc<Self>) {
        // For each driver that was away: its term, and the count of finished requests, at the last
        // look.
        let mut before = vec![None; self.queues.len()];
        let mut lowered = vec![None; self.queues.len()];
        let mut quiet = 0;
        while !self.jobs.lock().is_over {
            if quiet < QUIET_TICKS {
                thread::park_timeout(TICK);
            } else {
                let since = clock::now();
                self.watch_dozes().store(true, Ordering::SeqCst);
                let is_busy = |(_, queue): &(u16, Arc<Queue>)| {
                    queue.policy.is_lowered() || queue.term.away().is_some()
                };
                if !self.queues.iter().any(is_busy) {
                    thread::park_timeout(DOZE);
                }
                self.watch_dozes().store(false, Ordering::SeqCst);
                // A request woke the watch. It may be answered before the next look, but its driver
                // may then have a low policy.
                if clock::since(since) < DOZE {
                    quiet = 0;
                }
            }
            quiet += 1;
            for (number, (_, queue)) in self.queues.iter().enumerate() {
                let away = queue.term.away();
                let at = away.map(|term| (term, queue.finished.load(Ordering::Relaxed)));
                let was_at = std::mem::replace(&mut before[number], at);
                queue.policy.look(&mut lowered[number]);
                if lowered[number].is_some() {
                    quiet = 0;
                }
                if was_at != at {
                    quiet = 0;
                } else if let Some((term, _)) = at
                    && let Some(next) = queue.term.replace(term)
                {
                    self.give_to_helper(Job::Drive(number, next));
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
