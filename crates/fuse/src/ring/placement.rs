//! Where drivers run, and where the programs run that they answer.
//!
//! # Why
//!
//! The kernel wakes a program on an idle processor if it finds one. A driver answers on the
//! program's own processor, which is therefore not idle. So a program that waits for each of its
//! requests moves to another processor with each answer, and each move wakes a halted processor.
//! The kernel takes a processor as idle if all its threads have the policy `SCHED_IDLE`. So a
//! driver that answers with this policy leaves the program where it is.
//!
//! # Invariants
//!
//! - **R8** A driver has the policy `SCHED_IDLE` only while it sends answers. With that policy, a
//!   busy program on the same processor could keep the driver from running for long. If the driver
//!   does not return within two ticks of the watch, the watch gives it its policy back.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use buttress_base::clock;
use buttress_base::sync::Mutex;
use rustix::thread::CpuSet;

/// The processors on which a driver runs.
///
/// Short requests are handled on the processor of the asking program. The answer then only switches
/// threads there, and wakes no other processor. A program that reads or writes much at once has
/// other work to do while the driver copies its data. If the driver copied the data on the same
/// processor, the driver and the program would each run at half speed. So after many large requests
/// the driver may run on any processor.
///
/// A driver does not preempt the program that has just asked. That program mostly has more to send
/// before it waits: a close, and the next request. The driver then takes all these requests at
/// once. `SCHED_BATCH` tells the kernel not to preempt.
pub(super) struct Affinity {
    thread: Thread,
    local: CpuSet,
    anywhere: Option<CpuSet>,
    is_local: bool,
    /// Recent large requests minus recent small ones, from `-MANY` to `MANY`.
    large: i8,
}

impl Affinity {
    /// The driver changes its set of processors after this many more requests of one size than of
    /// the other.
    const MANY: i8 = 16;

    pub(super) fn new(processor: u16) -> Self {
        let mut local = CpuSet::new();
        local.set(usize::from(processor));
        let anywhere = rustix::thread::sched_getaffinity(None).ok();
        let thread = Thread::this();
        let mut affinity = Self { thread, local, anywhere, is_local: false, large: 0 };
        affinity.set_local(true);
        thread.set_policy(libc::SCHED_BATCH);
        affinity
    }

    /// The thread that drives.
    pub(super) fn thread(&self) -> Thread {
        self.thread
    }

    pub(super) fn note_request(&mut self, is_large: bool) {
        let step = if is_large { 1 } else { -1 };
        self.large = (self.large + step).clamp(-Self::MANY, Self::MANY);
        if self.large.abs() == Self::MANY {
            self.set_local(self.large < 0);
        }
    }

    fn set_local(&mut self, is_local: bool) {
        let Some(anywhere) = &self.anywhere else { return };
        if self.is_local != is_local {
            self.is_local = is_local;
            let place = if is_local { &self.local } else { anywhere };
            // If this process may not use the processor, the driver runs on another one.
            let _ = rustix::thread::sched_setaffinity(None, place);
        }
    }
}

impl Drop for Affinity {
    fn drop(&mut self) {
        self.set_local(false);
        self.thread.set_policy(libc::SCHED_OTHER);
    }
}

/// A thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thread(libc::pid_t);

impl Thread {
    /// The thread that asks.
    pub(super) fn this() -> Self {
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

/// Programs that move between processors while their requests are answered.
#[derive(Debug)]
pub(super) struct Moves {
    /// Whether drivers may lower their policy.
    is_allowed: bool,
    /// The thread that asked last, and its processor.
    last: AtomicU64,
    /// How many more answers are sent with the lower policy.
    left: AtomicU32,
}

impl Moves {
    /// After a move, this many answers are sent with the lower policy.
    const ANSWERS: u32 = 256;
    /// Bits of a processor's number in `last`.
    const SHIFT: u32 = 16;

    /// Lowers no policy unless the kernel lets this process raise it again. Without privilege it
    /// mostly does not.
    pub(super) fn new() -> Self {
        let trial = std::thread::Builder::new().name("fuse-ring-trial".to_owned()).spawn(|| {
            let this = Thread::this();
            this.set_policy(libc::SCHED_IDLE) && this.set_policy(libc::SCHED_BATCH)
        });
        let is_allowed = trial.is_ok_and(|trial| trial.join().unwrap_or(false));
        Self { is_allowed, ..Self::none() }
    }

    /// Never lowers a policy.
    pub(super) fn none() -> Self {
        Self { is_allowed: false, last: AtomicU64::new(0), left: AtomicU32::new(0) }
    }

    /// Notes that a thread has asked from a processor. Zero is no thread.
    pub(super) fn note(&self, thread: u32, processor: u16) {
        let now = u64::from(thread) << Self::SHIFT | u64::from(processor);
        let last = self.last.load(Ordering::Relaxed);
        if !self.is_allowed || thread == 0 || last == now {
            return;
        }
        self.last.store(now, Ordering::Relaxed);
        if last >> Self::SHIFT == u64::from(thread) {
            self.left.store(Self::ANSWERS, Ordering::Relaxed);
        }
    }

    /// Whether the next answers are to be sent with the lower policy. Counts them.
    pub(super) fn should_lower(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        // Mostly there is no move, and then this line is only read.
        self.left.load(Ordering::Relaxed) > 0
            && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    /// Sends no more answers with the lower policy until the next move.
    pub(super) fn stop(&self) {
        self.left.store(0, Ordering::Relaxed);
    }
}

/// The policy of the driver of a queue.
#[derive(Debug, Default)]
pub(super) struct Policy {
    /// The driver, while its policy is lowered. Unranked: nothing is taken under it.
    lowered: Mutex<Option<Thread>>,
    times: AtomicU64,
}

/// One time that the policy of a driver is lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lowering {
    thread: Thread,
    time: u64,
}

impl Policy {
    /// Lowers the policy of this thread, which is `thread`, while it sends answers. Returns the
    /// time that this took, with the time in which programs ran instead.
    pub(super) fn lower_while(&self, thread: Thread, send: impl FnOnce()) -> Duration {
        let start = clock::now();
        self.times.fetch_add(1, Ordering::Relaxed);
        *self.lowered.lock() = Some(thread);
        thread.set_policy(libc::SCHED_IDLE);
        send();
        thread.set_policy(libc::SCHED_BATCH);
        *self.lowered.lock() = None;
        clock::since(start)
    }

    /// The driver whose policy is lowered now.
    pub(super) fn lowering(&self) -> Option<Lowering> {
        let thread = (*self.lowered.lock())?;
        Some(Lowering { thread, time: self.times.load(Ordering::Relaxed) })
    }

    /// Gives a driver its policy back, if it is still sending the same answers (R8).
    pub(super) fn restore(&self, lowering: Lowering) {
        // Under the lock, the thread does not do anything else meanwhile.
        let lowered = self.lowered.lock();
        if *lowered == Some(lowering.thread) && self.times.load(Ordering::Relaxed) == lowering.time
        {
            lowering.thread.set_policy(libc::SCHED_BATCH);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn allowed() -> Moves {
        Moves { is_allowed: true, ..Moves::none() }
    }

    fn policy_of(thread: Thread) -> String {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", thread.0));
        let stat = stat.expect("the thread lives");
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        // Field 41 of proc(5), where the state is field 3.
        fields.split_whitespace().nth(41 - 3).expect("a policy").to_owned()
    }

    /// A thread that asks from two processors in turn has moved. Two threads that ask in turn have
    /// not.
    #[test]
    fn moves_are_those_of_one_thread() {
        let moves = allowed();
        for _ in 0..4 {
            moves.note(7, 0);
            moves.note(8, 1);
        }
        moves.note(0, 0);
        moves.note(0, 1);
        assert!(!moves.should_lower());
        moves.note(8, 1);
        moves.note(8, 0);
        for _ in 0..Moves::ANSWERS {
            assert!(moves.should_lower());
        }
        assert!(!moves.should_lower());
        moves.note(8, 1);
        assert!(moves.should_lower());
        moves.stop();
        assert!(!moves.should_lower());
        let forbidden = Moves::none();
        forbidden.note(8, 0);
        forbidden.note(8, 1);
        assert!(!forbidden.should_lower());
    }

    /// A driver has the lower policy only while it sends. If it does not come back, the watch gives
    /// its policy back. The watch leaves a driver alone that sends other answers meanwhile.
    #[test]
    fn policy_is_given_back() {
        if !Moves::new().is_allowed {
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
                    policy.lower_while(this, || {
                        said.send(this).expect("the test waits");
                        gone.recv().expect("the test answers");
                    });
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
}
