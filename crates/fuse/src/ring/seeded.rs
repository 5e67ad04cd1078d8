//! Runs all threads of a ring against a simulated kernel. One seed decides which thread runs when,
//! how long each request takes, and what it waits for.
//!
//! Each request is answered once, with the right content. A request that waits for nothing is
//! answered soon. When the kernel ends the connection, all threads end at once. `BUTTRESS_SEED=n`
//! runs seed `n` alone, and `BUTTRESS_SEEDS=first..last` runs several seeds. The number of a
//! failing seed is printed, and the same seed fails again.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use buttress_base::sync::{Condvar, Mutex};
use buttress_base::{Rng, clock, seeded, thread};
use buttress_protocol::Errno;

use super::helpers::{RequestHandler, Shared};
use super::moves::Moves;
use super::queue::{EntryPermit, Queue, Taken};
use crate::exchange::Exchange;
use crate::pool::Kind;

mod kernel;

use kernel::{Answer, Kernel};

/// Opcodes of requests. The name of each opcode says how this test handles the request.
const AT_ONCE: u32 = 3;
const FORGOTTEN: u32 = 14;
const COMPUTES: u32 = 15;
const STALLS: u32 = 16;
const SLEEPS: u32 = 20;
const AT_A_GATE: u32 = 22;
const DEAF: u32 = 43;
const FLUSHES: u32 = 46;

/// The longest time for a request that waits for nothing. After two ticks of a millisecond each,
/// the watch sees that a driver is held up. The helper that takes its place may be held up next,
/// and so may the helper after that.
const SOON: Duration = Duration::from_millis(7);
/// A gate opens after at most this many microseconds. That is longer than `SOON`, so the test
/// notices a request that waits behind a request at a gate.
const LATE: u64 = 30_000;

/// Handles requests as their opcodes say.
struct TestHandler {
    kernel: Arc<Kernel>,
    rng: Mutex<Rng>,
    open: Mutex<HashSet<u64>>,
    opened: Condvar,
    flushes: TaskQueue<(Taken, EntryPermit)>,
    processors: u16,
}

/// The tasks that another thread is to run, in order.
struct TaskQueue<T> {
    waiting: Mutex<(VecDeque<T>, bool)>,
    called: Condvar,
}

impl<T> TaskQueue<T> {
    fn new() -> Self {
        Self { waiting: Mutex::new((VecDeque::new(), false)), called: Condvar::new() }
    }

    fn put(&self, task: T) {
        self.waiting.lock().0.push_back(task);
        self.called.notify_one();
    }

    fn end(&self) {
        self.waiting.lock().1 = true;
        self.called.notify_all();
    }

    fn next(&self) -> Option<T> {
        let mut waiting = self.waiting.lock();
        loop {
            match waiting.0.pop_front() {
                None if waiting.1 => return None,
                None => self.called.wait(&mut waiting),
                some => return some,
            }
        }
    }
}

/// The first bytes of the answer to a request.
fn word(unique: u64, opcode: u32) -> u64 {
    unique * 31 + u64::from(opcode)
}

fn answer(mut taken: Taken) {
    let request = taken.head();
    taken.answer_buffer()[..8].copy_from_slice(&word(request.unique, request.opcode).to_ne_bytes());
    taken.answer(Ok(8));
}

impl TestHandler {
    fn sleep(&self) {
        thread::sleep(Duration::from_micros(self.below(3_000)));
    }

    fn below(&self, bound: u64) -> u64 {
        self.rng.lock().below(bound)
    }

    /// Acts as the thread that makes the kernel send its unsent data.
    fn flush(&self) {
        while let Some((taken, permit)) = self.flushes.next() {
            for _ in 0..=self.below(3) {
                let processor = self.below(u64::from(self.processors)) as u16;
                let sent = self.kernel.ask(processor, STALLS, 0, 4096);
                assert_eq!(sent.error, 0);
            }
            answer(taken);
            drop(permit);
        }
    }
}

impl RequestHandler for Arc<TestHandler> {
    fn kind(&self, taken: &Taken) -> Kind {
        match taken.head().opcode {
            COMPUTES => Kind::ReadLarge,
            STALLS => Kind::WriteSmall,
            SLEEPS => Kind::Sync,
            AT_A_GATE => Kind::List,
            DEAF => Kind::Space,
            _ => Kind::Meta,
        }
    }

    fn work(&self, taken: Taken) {
        let request = taken.head();
        match request.opcode {
            // Dropping `taken` answers the request.
            FORGOTTEN => return,
            COMPUTES => (0..self.below(200)).for_each(|_| thread::yield_now()),
            STALLS if self.below(8) == 0 => self.sleep(),
            SLEEPS => self.sleep(),
            AT_A_GATE => {
                let mut open = self.open.lock();
                while !open.contains(&request.node) {
                    self.opened.wait(&mut open);
                }
            }
            DEAF => self.kernel.without_signals(|| self.sleep()),
            FLUSHES => {
                if let Some(permit) = taken.hold_permit() {
                    return self.flushes.put((taken, permit));
                }
            }
            _ => thread::yield_now(),
        }
        answer(taken);
    }
}

/// The settings that one seed decides, besides the order of threads.
struct Setting {
    /// Processors of each queue, and entries for each.
    queues: Vec<Vec<(u16, usize)>>,
    processors: u16,
    helpers: usize,
    clients: usize,
    requests: u64,
}

impl Setting {
    fn new(rng: &mut Rng) -> Self {
        let depth = 1 + rng.below(3) as usize;
        let mut queues = vec![vec![(0, depth)], vec![(1, depth)]];
        if rng.chance(1, 2) {
            // Processor 2 is offline, and may be brought online.
            queues[0].push((2, 1));
        }
        let processors = queues.iter().map(Vec::len).sum::<usize>() as u16;
        let helpers = 1 + rng.below(3) as usize;
        let clients = 2 + rng.below(5) as usize;
        Self { queues, processors, helpers, clients, requests: 4 + rng.below(24) }
    }
}

struct Client {
    kernel: Arc<Kernel>,
    rng: Rng,
    processors: u16,
    handler: Arc<TestHandler>,
    number: u64,
}

impl Client {
    fn processor(&mut self) -> u16 {
        self.rng.below(u64::from(self.processors)) as u16
    }

    fn one(&mut self, round: u64) {
        let kinds = [AT_ONCE, FORGOTTEN, COMPUTES, STALLS, SLEEPS, AT_A_GATE, DEAF, FLUSHES];
        let opcode = *self.rng.choose(&kinds).expect("one of them");
        let processor = self.processor();
        let len = if opcode == COMPUTES { 1 << 20 } else { 4096 };
        let node = self.number << 32 | round;
        let ask = || self.kernel.ask(processor, opcode, node, len);
        let answer = if opcode == AT_A_GATE {
            let (handler, late) = (Arc::clone(&self.handler), self.rng.below(LATE));
            thread::scope(|scope| {
                scope.spawn(move || {
                    thread::sleep(Duration::from_micros(late));
                    handler.open.lock().insert(node);
                    handler.opened.notify_all();
                });
                ask()
            })
        } else {
            ask()
        };
        check(opcode, answer);
    }
}

fn check(opcode: u32, answer: Answer) {
    if opcode == FORGOTTEN {
        assert_eq!(answer.error, -Errno::EIO.code());
    } else {
        assert_eq!(answer.error, 0);
        assert_eq!(answer.word, word(answer.unique, opcode), "the answer to another request");
    }
}

fn start(name: String, work: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    thread::Builder::new().name(name).spawn(work).expect("a thread")
}

/// Runs everything that one seed decides. Returns the longest time for a request that waits for
/// nothing, and how long the end took.
fn whole(seed: u64) -> (Duration, Duration) {
    let mut rng = Rng::new(seed ^ 0x0041_11e5);
    let setting = Setting::new(&mut rng);
    let kernel = Kernel::new();
    let queues = setting.queues.iter().enumerate().map(|(number, processors)| {
        let queue =
            Queue::new(kernel.port(number), processors, Arc::new(Moves::none())).expect("memory");
        (processors[0].0, Arc::new(queue))
    });
    let handler = Arc::new(TestHandler {
        kernel: Arc::clone(&kernel),
        rng: Mutex::new(Rng::new(rng.next_u64())),
        open: Mutex::default(),
        opened: Condvar::new(),
        flushes: TaskQueue::new(),
        processors: setting.processors,
    });
    let shared = Shared::new(Box::new(Arc::clone(&handler)), queues.collect(), setting.helpers);
    shared.start().expect("this kernel has rings");
    let flush = Arc::clone(&handler);
    let beside = start("flush".into(), move || flush.flush());
    let clients: Vec<_> = (0..setting.clients as u64)
        .map(|number| {
            let mut client = Client {
                kernel: Arc::clone(&kernel),
                rng: Rng::new(rng.next_u64()),
                processors: setting.processors,
                handler: Arc::clone(&handler),
                number,
            };
            start(format!("client {number}"), move || {
                for round in 0..setting.requests {
                    if client.rng.chance(1, 16) {
                        thread::sleep(Duration::from_millis(client.rng.below(300)));
                    }
                    client.one(round);
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("a client"));
    // After a pause the watch dozes.
    thread::sleep(Duration::from_millis(rng.below(300)));
    let begun = clock::now();
    kernel.go();
    shared.join();
    let ended_in = clock::since(begun);
    handler.flushes.end();
    beside.join().expect("no panic");
    (kernel.longest(AT_ONCE), ended_in)
}

/// R1 to R7: all requests are answered, whatever they wait for. Requests that wait for nothing are
/// answered soon, and all threads end at once.
#[test]
fn every_request_is_answered() {
    for seed in crate::seeds::seeds() {
        // With a clock that leaps, the measured time does not tell how long a request had to wait.
        let leaps = seed % 2 == 0;
        let options = seeded::Options { steps_max: 2_000_000, leaps, ..seeded::Options::default() };
        let ((took, ended_in), _) = seeded::run(seed, options, move || whole(seed))
            .unwrap_or_else(|stuck| panic!("BUTTRESS_SEED={seed}: {stuck}"));
        if !leaps {
            assert!(took < SOON, "BUTTRESS_SEED={seed}: {took:?} for what waits for nothing");
            assert!(ended_in < SOON, "BUTTRESS_SEED={seed}: the end took {ended_in:?}");
        }
    }
}
