//! Where threads that answer requests run, and where the programs run that they answer.
//!
//! # Why
//!
//! The kernel wakes a program on an idle processor if it finds one. A thread that answers on the
//! program's own processor keeps that processor from being idle. So a program that waits for each
//! of its requests moves to another processor with each answer, and each move wakes a halted
//! processor. The kernel takes a processor as idle if all its threads have the policy `SCHED_IDLE`.
//! So a thread that answers with this policy leaves the program where it is.
//!
//! # Invariants
//!
//! - **A1** A thread has the policy `SCHED_IDLE` only while it sends answers. With that policy, a
//!   busy program on the same processor could keep the thread from running for long. If the policy
//!   is still low at the next look of the watch, the watch restores it. No policy is lowered where
//!   no watch is awake, and a watch does not doze while a policy is low.
//! - **A2** A thread that a bound thread starts is not bound, and has the usual policy.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use buttress_base::sync::Mutex;
use buttress_base::{clock, thread};
use rustix::thread::CpuSet;

thread_local! {
    static IS_BOUND: Cell<bool> = const { Cell::new(false) };
}

/// The processors that this process may use.
static ANYWHERE: OnceLock<Option<CpuSet>> = OnceLock::new();

/// Notes which processors this process may use. Threads that bound threads start are free again
/// (`buttress_base::thread`). Only a thread that is not bound may call this function.
pub(crate) fn note_processors() {
    ANYWHERE.get_or_init(|| rustix::thread::sched_getaffinity(None).ok());
    thread::on_spawn_by(|| IS_BOUND.get(), run_anywhere);
}

/// Frees this thread if a bound thread has started it.
pub(crate) fn run_anywhere() {
    drop(Bound::take_over());
}

/// Frees another thread that is bound.
pub(crate) fn free_other(thread: Thread) {
    if let Some(Some(anywhere)) = ANYWHERE.get() {
        let pid = rustix::thread::Pid::from_raw(thread.0);
        let _ = rustix::thread::sched_setaffinity(pid, anywhere);
        thread.set_policy(libc::SCHED_OTHER);
    }
}

/// The calling thread, while it serves one processor. It does not preempt a program that has just
/// asked. That program mostly has more to send before it waits: a close, and the next request. The
/// thread then takes all these requests at once. `SCHED_BATCH` tells the kernel not to preempt.
#[derive(Debug)]
pub(crate) struct Bound {
    thread: Thread,
}

impl Bound {
    /// Binds this thread to no processor yet.
    pub(crate) fn new() -> Self {
        let bound = Self::take_over();
        bound.thread.set_policy(libc::SCHED_BATCH);
        IS_BOUND.set(true);
        bound
    }

    fn take_over() -> Self {
        Self { thread: Thread::this() }
    }

    pub(crate) fn thread(&self) -> Thread {
        self.thread
    }

    /// Goes to a processor, and stays there. Returns false if this process may not use the
    /// processor; then the thread stays where it is.
    pub(crate) fn go_to(&self, processor: usize) -> bool {
        // The set is also what the administrator gave this process.
        let is_ours = |anywhere: &CpuSet| processor < CpuSet::MAX_CPU && anywhere.is_set(processor);
        if !ANYWHERE.get().is_some_and(|known| known.as_ref().is_some_and(is_ours)) {
            return false;
        }
        let mut there = CpuSet::new();
        there.set(processor);
        rustix::thread::sched_setaffinity(None, &there).is_ok()
    }

    /// May run on any processor.
    pub(crate) fn go_anywhere(&self) {
        if let Some(Some(anywhere)) = ANYWHERE.get() {
            let _ = rustix::thread::sched_setaffinity(None, anywhere);
        }
    }

    fn free(&self) {
        self.go_anywhere();
        self.thread.set_policy(libc::SCHED_OTHER);
        IS_BOUND.set(false);
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.free();
    }
}

/// The processors on which a driver runs.
///
/// Short requests are handled on the processor of the asking program. The answer then only switches
/// threads there, and wakes no other processor. A program that reads or writes much at once has
/// other work to do while the driver copies its data. If the driver copied the data on the same
/// processor, the driver and the program would each run at half speed. So after many large requests
/// the driver may run on any processor.
pub(crate) struct Affinity {
    bound: Bound,
    processor: u16,
    is_local: bool,
    /// Recent large requests minus recent small ones, from `-MANY` to `MANY`.
    large: i8,
}

impl Affinity {
    /// The driver changes its set of processors after this many more requests of one size than of
    /// the other.
    const MANY: i8 = 16;

    pub(crate) fn new(processor: u16) -> Self {
        let mut affinity = Self { bound: Bound::new(), processor, is_local: false, large: 0 };
        affinity.set_local(true);
        affinity
    }

    /// The thread that drives.
    pub(crate) fn thread(&self) -> Thread {
        self.bound.thread()
    }

    pub(crate) fn note_request(&mut self, is_large: bool) {
        let step = if is_large { 1 } else { -1 };
        self.large = (self.large + step).clamp(-Self::MANY, Self::MANY);
        if self.large.abs() == Self::MANY {
            self.set_local(self.large < 0);
        }
    }

    fn set_local(&mut self, is_local: bool) {
        if self.is_local != is_local {
            self.is_local = is_local;
            match is_local {
                // Elsewhere the driver is only slower.
                true => _ = self.bound.go_to(usize::from(self.processor)),
                false => self.bound.go_anywhere(),
            }
        }
    }
}

/// If a thread takes longer to send answers, its processor has other work. Then moves cost little.
pub(crate) const LOWERED_MAX: Duration = Duration::from_micros(500);

/// Whether the kernel lets a thread raise its policy again.
static RAISES: AtomicBool = AtomicBool::new(true);

/// Whether threads may lower their policy. They may if the kernel lets this process raise it again.
/// Without privilege it mostly does not. The first call takes long.
pub(crate) fn may_lower() -> bool {
    static TRIED: OnceLock<()> = OnceLock::new();
    TRIED.get_or_init(|| {
        let trial = std::thread::Builder::new().name("fuse-trial".to_owned()).spawn(|| {
            run_anywhere();
            let this = Thread::this();
            this.set_policy(libc::SCHED_IDLE) && this.set_policy(libc::SCHED_BATCH)
        });
        let raises = trial.is_ok_and(|trial| trial.join().unwrap_or(false));
        RAISES.store(raises, Ordering::Relaxed);
    });
    RAISES.load(Ordering::Relaxed)
}

/// A thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thread(libc::pid_t);

impl Thread {
    /// The thread that asks.
    pub(crate) fn this() -> Self {
        Self(rustix::thread::gettid().as_raw_nonzero().get())
    }

    /// Sets how the kernel schedules the thread, and says whether the kernel did it. If the kernel
    /// refuses, the thread keeps its policy and is only slower. The call goes to the kernel: musl's
    /// function of this name always refuses.
    #[expect(unsafe_code, reason = "rustix has no name for this call")]
    fn set_policy(self, policy: libc::c_int) -> bool {
        // The kernel's `struct sched_param` is this number alone.
        let priority: libc::c_int = 0;
        // SAFETY: the call reads the number, which lives until it returns.
        let answer = unsafe {
            libc::syscall(libc::SYS_sched_setscheduler, self.0, policy, &raw const priority)
        };
        answer == 0
    }
}

/// The policy of the thread that sends answers.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    /// The thread, while its policy is lowered. Unranked: nothing is taken under it.
    lowered: Mutex<Option<Thread>>,
    times: AtomicU64,
}

/// One time that the policy of a thread is lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lowering {
    thread: Thread,
    time: u64,
}

impl Policy {
    /// Lowers the policy of this thread, which is `thread`, while it sends answers. Returns how
    /// long this took. Programs may have run meanwhile, and that time counts. If another thread is
    /// sending with this policy, or no watch is awake, this call sends the answers and changes no
    /// policy.
    pub(crate) fn lower_while(
        &self,
        thread: Thread,
        is_watched: impl FnOnce() -> bool,
        send: impl FnOnce(),
    ) -> Duration {
        {
            let mut lowered = self.lowered.lock();
            // A watch says that it dozes or leaves before it looks for lowered policies. So either
            // the watch sees this one, or this thread sees that no watch is awake.
            if lowered.is_some() || !RAISES.load(Ordering::Relaxed) {
                drop(lowered);
                send();
                return Duration::ZERO;
            }
            *lowered = Some(thread);
        }
        let start = clock::now();
        self.times.fetch_add(1, Ordering::Relaxed);
        let raise = Raise { policy: self, thread };
        if !is_watched() {
            send();
            return Duration::ZERO;
        }
        thread.set_policy(libc::SCHED_IDLE);
        send();
        drop(raise);
        clock::since(start)
    }

    /// Whether a policy is low now.
    pub(crate) fn is_lowered(&self) -> bool {
        self.lowered.lock().is_some()
    }

    /// Restores a policy that is low now, at once.
    pub(crate) fn restore_now(&self) {
        if let Some(lowering) = self.lowering() {
            self.restore(lowering);
        }
    }

    /// Restores the policy that was lowered already when the watch looked last (A1). `seen` is for
    /// the watch, one for each policy.
    pub(crate) fn look(&self, seen: &mut Option<Lowering>) {
        let lowering = self.lowering();
        if let Some(lasting) = lowering
            && *seen == lowering
        {
            self.restore(lasting);
        }
        *seen = lowering;
    }

    /// The thread that has the lower policy now.
    fn lowering(&self) -> Option<Lowering> {
        let thread = (*self.lowered.lock())?;
        Some(Lowering { thread, time: self.times.load(Ordering::Relaxed) })
    }

    /// Gives a thread its policy back, if it is still sending the same answers.
    fn restore(&self, lowering: Lowering) {
        // Under the lock, the thread does not do anything else meanwhile.
        let lowered = self.lowered.lock();
        if *lowered == Some(lowering.thread) && self.times.load(Ordering::Relaxed) == lowering.time
        {
            lowering.thread.set_policy(libc::SCHED_BATCH);
        }
    }
}

/// Raises the policy of a thread when dropped.
struct Raise<'a> {
    policy: &'a Policy,
    thread: Thread,
}

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        if !self.thread.set_policy(libc::SCHED_BATCH) {
            // The process has lost its privilege.
            RAISES.store(false, Ordering::Relaxed);
        }
        *self.policy.lowered.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn policy_of(thread: Thread) -> String {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", thread.0));
        let stat = stat.expect("the thread lives");
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        // Field 41 of proc(5), where the state is field 3.
        fields.split_whitespace().nth(41 - 3).expect("a policy").to_owned()
    }

    /// A driver has the lower policy only while it sends. If it does not come back, the watch gives
    /// its policy back. The watch leaves a driver alone that sends other answers meanwhile.
    #[test]
    fn policy_is_given_back() {
        if !may_lower() {
            return;
        }
        let (idle, batch) = (libc::SCHED_IDLE.to_string(), libc::SCHED_BATCH.to_string());
        let policy = Policy::default();
        let (said, heard) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let policy = &policy;
            scope.spawn(move || {
                let this = Thread::this();
                for _ in 0..2 {
                    policy.lower_while(
                        this,
                        || true,
                        || {
                            said.send(this).expect("the test waits");
                            gone.recv().expect("the test answers");
                        },
                    );
                }
                said.send(this).expect("the test waits");
                gone.recv().expect("the test answers");
            });
            let thread = heard.recv().expect("the thread lives");
            let first = policy.lowering().expect("lowered");
            assert_eq!(policy_of(thread), idle);
            go.send(()).expect("the thread lives");
            heard.recv().expect("the thread lives");
            policy.restore(first);
            assert_eq!(policy_of(thread), idle, "other answers");
            policy.restore(policy.lowering().expect("lowered"));
            assert_eq!(policy_of(thread), batch);
            go.send(()).expect("the thread lives");
            heard.recv().expect("the thread lives");
            assert_eq!((policy.lowering(), policy_of(thread)), (None, batch));
            go.send(()).expect("the thread lives");
        });
    }

    /// Of two threads that send at once, one has the lower policy. Nothing is low afterwards.
    #[test]
    fn one_thread_is_lowered_at_once() {
        let policy = Policy::default();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let this = Thread::this();
                    for _ in 0..2_000 {
                        policy.lower_while(this, || true, || {});
                    }
                });
            }
        });
        assert!(!policy.is_lowered());
        let this = Thread::this();
        let idle = libc::SCHED_IDLE.to_string();
        policy.lower_while(this, || false, || assert_ne!(policy_of(this), idle, "no watch"));
        assert!(!policy.is_lowered());
    }
}
