//! The reader runs on the processor of the program that asks.
//!
//! # Why
//!
//! A request that is read on another processor wakes that processor, and the answer wakes the
//! program's processor. A halted processor takes longer to wake than most requests take. If the
//! reader runs on the program's processor, neither has to wake: the kernel switches from the
//! program to the reader and back. The kernel does not bring the two together by itself.
//!
//! # What must hold
//!
//! - The reader follows a program that waits for each of its requests and moves few bytes. While
//!   several programs ask, bytes are copied, or files are synced, processors are better used side
//!   by side. The sync of a file writes its pages by requests of the kernel meanwhile.
//! - The watch of the pool frees the reader if a request waits and nothing was done since its last
//!   look, and before the watch dozes. A busy processor could otherwise keep the reader from
//!   running, while other processors are idle.

use std::cell::{Cell, RefCell};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use buttress_base::sync::Mutex;

use crate::placement::{Bound, LOWERED_MAX, Lowering, Policy, Thread, free_other, may_lower};

/// The program that the reader follows.
#[derive(Debug)]
pub(super) struct Follower {
    /// Whether readers follow programs at all.
    is_on: bool,
    /// The thread that sent most of the latest requests.
    asker: AtomicU32,
    /// How likely the next request comes from that thread.
    score: AtomicU32,
    /// Requests of that thread until its processor is looked up.
    until_look: AtomicU32,
    /// Its processor, or [`NOWHERE`].
    place: AtomicU32,
    /// The thread that was bound last. Unranked: nothing is taken under it.
    bound: Mutex<Option<Thread>>,
    policy: Policy,
    /// Whether a thread on the bench watches.
    pub(super) has_watch: AtomicBool,
    /// Whether the watch dozes.
    pub(super) watch_dozes: AtomicBool,
}

/// No processor.
const NOWHERE: u32 = u32::MAX;
/// From this score on the reader follows.
const LIKELY: u32 = 32;
const SCORE_MAX: u32 = 128;
/// Another program, a request with work for two or a busy processor takes so much from the score.
const UNLIKE: u32 = 8;
/// A look at a program's processor costs as much as a request.
const LOOK_EVERY: u32 = 64;

/// The thread follows a program.
struct Following {
    follower: Arc<Follower>,
    bound: Bound,
    place: u32,
}

thread_local! {
    /// Whether this thread handles a request, so that the watch sees that it makes no progress.
    pub(super) static ON_DUTY: Cell<bool> = const { Cell::new(false) };
    static FOLLOWING: RefCell<Option<Following>> = const { RefCell::new(None) };
}

impl Follower {
    /// Follows programs if `is_on`, and if `/proc` shows threads by the numbers that this process
    /// knows.
    pub(super) fn new(is_on: bool) -> Arc<Self> {
        let own = fs::read_link("/proc/self").ok();
        let own = own.and_then(|own| own.to_str().and_then(|own| own.parse::<u32>().ok()));
        let is_on = is_on && own == Some(std::process::id());
        if is_on {
            // The first call takes long.
            may_lower();
        }
        Arc::new(Self {
            is_on,
            asker: AtomicU32::new(0),
            score: AtomicU32::new(0),
            until_look: AtomicU32::new(0),
            place: AtomicU32::new(NOWHERE),
            bound: Mutex::default(),
            policy: Policy::default(),
            has_watch: AtomicBool::new(false),
            watch_dozes: AtomicBool::new(false),
        })
    }

    /// Notes that a thread has asked. Zero is the kernel, which mostly waits for nothing. Threads
    /// may overwrite each other's notes: the score is only an estimate.
    pub(super) fn note(&self, asker: u32, is_work: bool) {
        if self.is_on {
            self.note_at(asker, is_work, processor_of);
        }
    }

    fn note_at(&self, asker: u32, is_work: bool, processor_of: impl FnOnce(u32) -> Option<u32>) {
        if asker == 0 && !is_work {
            return;
        }
        if is_work || asker != self.asker.load(Ordering::Relaxed) {
            if self.lose(UNLIKE) == 0 {
                self.asker.store(asker, Ordering::Relaxed);
            }
            return;
        }
        let score = (self.score.load(Ordering::Relaxed) + 1).min(SCORE_MAX);
        self.score.store(score, Ordering::Relaxed);
        if score < LIKELY {
            return;
        }
        let left = self.until_look.load(Ordering::Relaxed);
        self.until_look.store(left.checked_sub(1).unwrap_or(LOOK_EVERY), Ordering::Relaxed);
        if left == 0 {
            self.place.store(processor_of(asker).unwrap_or(NOWHERE), Ordering::Relaxed);
        }
    }

    /// Lowers the score, and returns what is left.
    fn lose(&self, loss: u32) -> u32 {
        let score = self.score.load(Ordering::Relaxed).saturating_sub(loss);
        self.score.store(score, Ordering::Relaxed);
        if score == 0 {
            self.place.store(NOWHERE, Ordering::Relaxed);
            self.until_look.store(0, Ordering::Relaxed);
        }
        score
    }

    /// Goes to the processor of the program that is followed. The thread reads next.
    pub(super) fn follow(self: &Arc<Self>) {
        let place = self.place.load(Ordering::Relaxed);
        FOLLOWING.with_borrow_mut(|following| match following {
            Some(there) if there.place == place => {}
            None if place == NOWHERE => {}
            Some(_) if place == NOWHERE => *following = None,
            Some(elsewhere) if elsewhere.bound.go_to(place as usize) => elsewhere.place = place,
            Some(_) => {
                *following = None;
                self.place.store(NOWHERE, Ordering::Relaxed);
            }
            None => {
                let (follower, bound) = (Arc::clone(self), Bound::new());
                if bound.go_to(place as usize) {
                    *self.bound.lock() = Some(bound.thread());
                    *following = Some(Following { follower, bound, place });
                } else {
                    self.place.store(NOWHERE, Ordering::Relaxed);
                }
            }
        });
    }

    /// Frees the reader, for the watch. The reader itself learns it after its next request.
    pub(super) fn free(&self) {
        if self.place.load(Ordering::Relaxed) == NOWHERE {
            return;
        }
        self.lose(SCORE_MAX);
        let bound = self.bound.lock();
        if let Some(thread) = *bound {
            free_other(thread);
        }
    }

    /// Whether the reader follows a program.
    pub(super) fn has_place(&self) -> bool {
        self.place.load(Ordering::Relaxed) != NOWHERE
    }

    /// Whether a policy is low now.
    pub(super) fn is_lowered(&self) -> bool {
        self.policy.is_lowered()
    }

    /// As [`Policy::restore_now`].
    pub(super) fn restore_now(&self) {
        self.policy.restore_now();
    }

    /// As [`Policy::look`].
    pub(super) fn look(&self, seen: &mut Option<Lowering>) {
        self.policy.look(seen);
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        // The watch frees no thread that is bound to something else, or gone.
        let mut bound = self.follower.bound.lock();
        if *bound == Some(self.bound.thread()) {
            *bound = None;
        }
    }
}

/// The thread may run anywhere again.
pub(super) fn leave() {
    FOLLOWING.set(None);
}

/// Sends an answer. If this thread follows the program, the program stays on its processor. The
/// watch does not see requests without a guard, so answers to these are sent as usual.
pub(crate) fn send(send: impl FnOnce()) {
    FOLLOWING.with_borrow(|following| match following {
        Some(Following { follower, bound, .. }) if ON_DUTY.get() => {
            let is_watched = || {
                let dozes = follower.watch_dozes.load(Ordering::SeqCst);
                follower.has_watch.load(Ordering::SeqCst) && !dozes
            };
            if follower.policy.lower_while(bound.thread(), is_watched, send) > LOWERED_MAX {
                follower.lose(UNLIKE);
            }
        }
        _ => send(),
    });
}

/// The processor on which a thread ran last. `None` if the thread has ended, or may not be seen.
fn processor_of(thread: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    // The name may have spaces; it ends with the last parenthesis. The next field is field 3 of
    // proc(5), and the processor is field 39.
    stat.rsplit_once(')')?.1.split_whitespace().nth(39 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use rustix::thread::CpuSet;

    use super::*;
    use crate::placement::note_processors;

    fn place(follower: &Follower) -> u32 {
        follower.place.load(Ordering::Relaxed)
    }

    /// A program that asks alone is followed, also to another processor. Work for a second
    /// processor and other programs end that.
    #[test]
    fn one_program_is_followed() {
        let follower = Follower::new(true);
        let ask = |asker, at, times| {
            for _ in 0..times {
                follower.note_at(asker, false, |_| Some(at));
            }
        };
        ask(0, 1, 1000);
        assert_eq!(place(&follower), NOWHERE, "the kernel");
        ask(5, 1, LIKELY);
        assert_eq!(place(&follower), NOWHERE);
        ask(5, 1, 2);
        assert_eq!(place(&follower), 1);
        ask(5, 3, LOOK_EVERY + 1);
        assert_eq!(place(&follower), 3);
        for _ in 0..SCORE_MAX {
            follower.note_at(5, true, |_| Some(3));
        }
        assert_eq!(place(&follower), NOWHERE, "requests with work for two");
        for _ in 0..1000 {
            ask(5, 3, 1);
            ask(6, 2, 1);
        }
        assert_eq!(place(&follower), NOWHERE, "two programs");
        ask(6, 2, LIKELY + UNLIKE);
        assert_eq!(place(&follower), 2);
    }

    /// The processor of this very thread is the one that the kernel tells.
    #[test]
    fn processors_are_looked_up() {
        let told = std::thread::spawn(|| {
            let mut there = CpuSet::new();
            let at = rustix::thread::sched_getcpu();
            there.set(at);
            rustix::thread::sched_setaffinity(None, &there).expect("a processor in use");
            (processor_of(rustix::thread::gettid().as_raw_nonzero().get() as u32), at)
        });
        let (told, at) = told.join().expect("no panic");
        assert_eq!(told, Some(at as u32));
        assert_eq!(processor_of(u32::MAX), None);
    }

    /// A reader is bound while the follower has a place, and free again when it leaves. A thread
    /// that the reader starts is free (A2).
    #[test]
    fn readers_are_bound_and_freed() {
        let reader = std::thread::spawn(|| {
            let processors = || rustix::thread::sched_getaffinity(None).expect("a set");
            let before = processors();
            note_processors();
            let follower = Follower::new(true);
            let at = rustix::thread::sched_getcpu();
            follower.place.store(at as u32, Ordering::Relaxed);
            follower.follow();
            assert!(processors().is_set(at) && processors().count() == 1);
            let child = buttress_base::thread::Builder::new().spawn(processors).expect("a thread");
            assert_eq!(child.join().expect("no panic"), before);
            let mut sent = 0;
            ON_DUTY.set(true);
            follower.has_watch.store(true, Ordering::SeqCst);
            send(|| sent += 1);
            follower.free();
            assert_eq!(processors(), before, "freed by the watch");
            follower.place.store(at as u32, Ordering::Relaxed);
            follower.lose(SCORE_MAX);
            follower.follow();
            assert_eq!(processors(), before);
            follower.place.store(CpuSet::MAX_CPU as u32 - 1, Ordering::Relaxed);
            follower.follow();
            assert_eq!((processors(), follower.has_place()), (before, false), "no such processor");
            send(|| sent += 1);
            assert_eq!(sent, 2);
        });
        reader.join().expect("no panic");
    }
}
