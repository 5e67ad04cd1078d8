//! A simulated kernel: it has entries, puts requests into them, and takes answers.
//!
//! # Rules that this kernel shares with Linux
//!
//! - A request of a processor goes into an entry of that processor, and waits while no entry is
//!   free.
//! - A request arrives on the thread that gave the entry. While this thread waits uninterruptibly,
//!   the request waits, too.
//! - An entry must not outlive the thread that gave it (R5).

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use buttress_base::sync::{Condvar, Mutex, MutexGuard};
use buttress_base::{clock, thread};

use crate::ring::abi::{self, Header};
use crate::ring::port::{Bell, Done, Given, Port};

/// `ENOTCONN`.
const GONE: i32 = 107;

thread_local! {
    /// Dropped at the end of the thread.
    static LIFE: Arc<()> = Arc::default();
}

pub(super) struct Kernel {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    /// The entries, by queue and index.
    entries: HashMap<(usize, u16), Entry>,
    /// Requests without an entry, by processor.
    pending: HashMap<u16, VecDeque<Ask>>,
    /// For each queue, the completions that its driver has not seen.
    done: HashMap<usize, VecDeque<Done>>,
    /// Queues with a bell that rings.
    rung: HashSet<usize>,
    /// Threads that wait uninterruptibly, and the completions that arrived meanwhile on their
    /// entries.
    held: HashMap<usize, Vec<(usize, Done)>>,
    answers: HashMap<u64, Answer>,
    asked: u64,
    is_gone: bool,
    /// For each opcode, the longest time that the driver held a request.
    longest: HashMap<u32, Duration>,
}

struct Entry {
    processor: u16,
    /// Addresses of the entry's header and payload.
    areas: [usize; 2],
    place: Place,
}

enum Place {
    /// The kernel has the entry; `giver` is the thread that gave it.
    Free {
        giver: usize,
        life: Weak<()>,
    },
    /// The driver has the entry, since `since`.
    Holds {
        ask: Ask,
        since: Instant,
    },
    Ended,
}

#[derive(Clone, Copy)]
struct Ask {
    opcode: u32,
    unique: u64,
    node: u64,
    len: u32,
}

/// An answer of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) unique: u64,
    pub(super) error: i32,
    /// The payload's first bytes.
    pub(super) word: u64,
}

struct Side {
    kernel: Arc<Kernel>,
    queue: usize,
    /// Entries that were given but not submitted yet.
    given: Vec<(u16, u16, u32, u64, [usize; 2])>,
}

struct Ringing(Arc<Kernel>, usize);

impl Kernel {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), moved: Condvar::new() })
    }

    /// The port and the bell of one queue.
    pub(super) fn port(self: &Arc<Self>, queue: usize) -> (Box<dyn Port>, Box<dyn Bell>) {
        let side = Side { kernel: Arc::clone(self), queue, given: Vec::new() };
        (Box::new(side), Box::new(Ringing(Arc::clone(self), queue)))
    }

    /// Sends a request from a processor, and waits for the answer.
    pub(super) fn ask(&self, processor: u16, opcode: u32, node: u64, len: u32) -> Answer {
        let mut state = self.state.lock();
        state.asked += 1;
        let unique = state.asked;
        let ask = Ask { opcode, unique, node, len };
        state.pending.entry(processor).or_default().push_back(ask);
        state.deliver(processor);
        self.moved.notify_all();
        loop {
            if let Some(answer) = state.answers.remove(&unique) {
                return answer;
            }
            self.moved.wait(&mut state);
        }
    }

    /// Delays completions on this thread's entries until `work` has ended.
    pub(super) fn without_signals(&self, work: impl FnOnce()) {
        let me = thread::seeded_index().expect("a seeded run");
        self.state.lock().held.insert(me, Vec::new());
        work();
        let mut state = self.state.lock();
        for (queue, done) in state.held.remove(&me).unwrap_or_default() {
            if let Done::Request(index) = done
                && let Some(Entry { place: Place::Holds { since, .. }, .. }) =
                    state.entries.get_mut(&(queue, index))
            {
                *since = clock::now();
            }
            state.done.entry(queue).or_default().push_back(done);
        }
        self.moved.notify_all();
    }

    /// Unmounts. Free entries end at once, and held entries end when the driver returns them.
    pub(super) fn go(&self) {
        let mut state = self.state.lock();
        state.is_gone = true;
        let State { entries, done, .. } = &mut *state;
        for (&(queue, _), entry) in entries {
            if matches!(entry.place, Place::Free { .. }) {
                entry.place = Place::Ended;
                done.entry(queue).or_default().push_back(Done::Ended(GONE));
            }
        }
        self.moved.notify_all();
    }

    /// The longest time that the driver held a request with this opcode.
    pub(super) fn longest(&self, opcode: u32) -> Duration {
        self.state.lock().longest.get(&opcode).copied().unwrap_or_default()
    }
}

impl State {
    /// Puts a processor's pending requests into its free entries.
    fn deliver(&mut self, processor: u16) {
        let pending = self.pending.entry(processor).or_default();
        // Sort by number, so that the order depends only on the seed.
        let mut places: Vec<_> = self
            .entries
            .iter_mut()
            .filter(|(_, entry)| entry.processor == processor)
            .filter(|(_, entry)| matches!(entry.place, Place::Free { .. }))
            .collect();
        places.sort_by_key(|(place, _)| **place);
        for (&(queue, index), entry) in places {
            let Some(ask) = pending.pop_front() else { return };
            let Place::Free { giver, life } =
                std::mem::replace(&mut entry.place, Place::Holds { ask, since: clock::now() })
            else {
                unreachable!("free ones were looked for")
            };
            assert!(life.upgrade().is_some(), "R5: the giver of the entry has ended");
            entry.write(ask);
            let done = Done::Request(index);
            match self.held.get_mut(&giver) {
                Some(held) => held.push((queue, done)),
                None => self.done.entry(queue).or_default().push_back(done),
            }
        }
    }

    fn take(&mut self, queue: usize, given: (u16, u16, u32, u64, [usize; 2])) {
        let (index, processor, command, commit_id, areas) = given;
        let giver = thread::seeded_index().expect("a seeded run");
        let life = LIFE.with(Arc::downgrade);
        let free = Place::Free { giver, life };
        if command == abi::REGISTER {
            let before =
                self.entries.insert((queue, index), Entry { processor, areas, place: free });
            assert!(before.is_none(), "an entry is registered once");
        } else {
            let entry = self.entries.get_mut(&(queue, index)).expect("it was registered");
            let Place::Holds { ask, since } = std::mem::replace(&mut entry.place, free) else {
                panic!("R1: an entry is given that is the kernel's")
            };
            assert_eq!(ask.unique, commit_id, "the answer is to what was asked");
            let answer = entry.read();
            assert_eq!(answer.unique, ask.unique);
            let took = self.longest.entry(ask.opcode).or_default();
            *took = (*took).max(clock::since(since));
            assert!(self.answers.insert(ask.unique, answer).is_none(), "it is answered once");
            if self.is_gone {
                entry.place = Place::Ended;
                self.done.entry(queue).or_default().push_back(Done::Ended(GONE));
            }
        }
        self.deliver(processor);
    }
}

impl Entry {
    #[expect(unsafe_code, reason = "as the kernel does")]
    fn write(&self, ask: Ask) {
        // SAFETY: the kernel owns the entry, and its header lives until the entry ends (R1, R3).
        unsafe { &mut *(self.areas[0] as *mut Header) }
            .ask(ask.opcode, ask.unique, ask.node, ask.len);
    }

    #[expect(unsafe_code, reason = "as the kernel does")]
    fn read(&self) -> Answer {
        // SAFETY: the kernel owns the entry again, and both areas live until the entry ends (R1,
        // R3).
        let (header, word) =
            unsafe { (&*(self.areas[0] as *const Header), *(self.areas[1] as *const u64)) };
        let (unique, error) = header.answered();
        Answer { unique, error, word }
    }
}

impl Side {
    fn send(&mut self) -> MutexGuard<'_, State> {
        let mut state = self.kernel.state.lock();
        for given in self.given.drain(..) {
            state.take(self.queue, given);
        }
        self.kernel.moved.notify_all();
        state
    }
}

impl Port for Side {
    #[expect(unsafe_code, reason = "the memory is written later")]
    unsafe fn give(&mut self, given: Given<'_>) {
        let Given { index, processor, command, commit_id, areas } = given;
        self.given.push((index, processor, command, commit_id, [areas[0][0], areas[1][0]]));
    }

    fn submit(&mut self) -> io::Result<()> {
        drop(self.send());
        Ok(())
    }

    fn wait(&mut self) {
        let (kernel, queue) = (Arc::clone(&self.kernel), self.queue);
        let mut state = self.send();
        let is_quiet = |state: &State| {
            state.done.get(&queue).is_none_or(VecDeque::is_empty) && !state.rung.contains(&queue)
        };
        while is_quiet(&state) {
            kernel.moved.wait(&mut state);
        }
        state.rung.remove(&queue);
    }

    fn done(&mut self) -> Option<Done> {
        self.kernel.state.lock().done.get_mut(&self.queue)?.pop_front()
    }
}

impl Bell for Ringing {
    fn ring(&self) {
        self.0.state.lock().rung.insert(self.1);
        self.0.moved.notify_all();
    }
}
