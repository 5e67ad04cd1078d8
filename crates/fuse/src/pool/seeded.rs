//! Runs all threads of a worker pool on a simulated device. One seed decides which thread runs
//! when, how long each request takes, and what it waits for.
//!
//! Each request is answered. A request that waits for nothing is answered soon. Without requests
//! each thread reads or sits on the bench. When the simulated kernel ends the connection, all
//! threads end.

use std::collections::{HashMap, HashSet, VecDeque};

use buttress_base::sync::Condvar;
use buttress_base::{Rng, seeded};

use super::*;

/// How long a request that waits for nothing may take. The watch sees after two ticks, of a
/// millisecond each, that no thread reads. The next reader may be held up in turn, and so may the
/// reader after it.
const SOON: Duration = Duration::from_millis(7);
/// A gate opens after at most this many microseconds. That is longer than `SOON`, so the test
/// notices a request that waits behind a request at a gate.
const LATE: u64 = 30_000;
/// The longest pause between requests, in milliseconds: long enough for the watch to doze.
const QUIET: u64 = 300;

/// How the test handles a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    AtOnce,
    Trifle,
    Computes,
    Sleeps,
    AtAGate,
    /// Makes the kernel send another request, and waits for its answer.
    Nested,
    /// Forgets this many nodes in one request. No program waits for it.
    Forgets(u32),
}

#[derive(Clone, Copy, Debug)]
struct Ask {
    unique: u64,
    what: What,
    kind: Kind,
}

/// The source of requests, as `/dev/fuse` is.
#[derive(Debug)]
struct Device {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pending: VecDeque<Ask>,
    asked: HashMap<u64, Instant>,
    answered: HashSet<u64>,
    uniques: u64,
    forgotten: u32,
    to_forget: u32,
    is_gone: bool,
    longest: Duration,
}

impl Device {
    fn send(&self, what: What, kind: Kind) -> u64 {
        let mut state = self.state.lock();
        state.uniques += 1;
        let unique = state.uniques;
        if let What::Forgets(count) = what {
            state.to_forget += count;
        }
        state.asked.insert(unique, clock::now());
        state.pending.push_back(Ask { unique, what, kind });
        self.moved.notify_all();
        unique
    }

    fn ask(&self, what: What, kind: Kind) {
        let unique = self.send(what, kind);
        if matches!(what, What::Forgets(_)) {
            return;
        }
        let mut state = self.state.lock();
        while !state.answered.remove(&unique) {
            self.moved.wait(&mut state);
        }
    }

    fn read(&self) -> Option<Ask> {
        let mut state = self.state.lock();
        loop {
            if state.is_gone {
                return None;
            }
            if let Some(ask) = state.pending.pop_front() {
                return Some(ask);
            }
            self.moved.wait(&mut state);
        }
    }

    fn answer(&self, ask: Ask) {
        let mut state = self.state.lock();
        let asked = state.asked.remove(&ask.unique).expect("it is answered once");
        if ask.what == What::AtOnce {
            state.longest = state.longest.max(clock::since(asked));
        }
        assert!(state.answered.insert(ask.unique), "it is answered once");
        self.moved.notify_all();
    }

    fn go(&self) {
        self.state.lock().is_gone = true;
        self.moved.notify_all();
    }
}

#[derive(Debug)]
struct TestConnection(Arc<Device>);

impl Connection for TestConnection {
    fn has_request(&self) -> bool {
        let state = self.0.state.lock();
        state.is_gone || !state.pending.is_empty()
    }

    fn is_gone(&self) -> bool {
        self.0.state.lock().is_gone
    }
}

/// A thread as `Device::serve` starts it: it reads a request, handles it and reads the next.
struct Worker {
    device: Arc<Device>,
    pool: Arc<WorkerPool>,
    rng: Rng,
    gate: Arc<Gate>,
}

/// The gates of requests that wait, and the lock for nested requests, of which one runs at a time.
#[derive(Default)]
struct Gate {
    open: Mutex<HashSet<u64>>,
    opened: Condvar,
    nested: Mutex<()>,
}

impl Worker {
    fn run(mut self) {
        while let Some(ask) = self.device.read() {
            self.handle(ask);
        }
        // The thread's end would drop the membership too, but at a moment that the seed does not
        // choose.
        drop(MEMBER.take());
    }

    fn handle(&mut self, ask: Ask) {
        match ask.what {
            What::Forgets(count) => {
                let pool = Arc::clone(&self.pool);
                let _guard = pool.guard(Kind::Forget, 0);
                for _ in 0..count {
                    thread::yield_now();
                    self.device.state.lock().forgotten += 1;
                }
                self.device.state.lock().asked.remove(&ask.unique);
            }
            What::Trifle => {
                self.device.answer(ask);
                self.pool.trifle_done();
            }
            _ => {
                let pool = Arc::clone(&self.pool);
                let _guard = pool.guard(ask.kind, 0);
                self.work(ask);
                pool.handled();
                self.device.answer(ask);
            }
        }
    }

    fn work(&mut self, ask: Ask) {
        match ask.what {
            What::Computes => (0..self.rng.below(200)).for_each(|_| thread::yield_now()),
            What::Sleeps => thread::sleep(Duration::from_micros(self.rng.below(3_000))),
            What::AtAGate => {
                let (gate, late) = (Arc::clone(&self.gate), self.rng.below(LATE));
                thread::scope(|scope| {
                    scope.spawn(|| {
                        thread::sleep(Duration::from_micros(late));
                        gate.open.lock().insert(ask.unique);
                        gate.opened.notify_all();
                    });
                    let mut open = gate.open.lock();
                    while !open.contains(&ask.unique) {
                        gate.opened.wait(&mut open);
                    }
                });
            }
            What::Nested => {
                // If every thread handled a nested request, no thread would be left to read,
                // whatever the pool does.
                if let Some(_one) = self.gate.nested.try_lock() {
                    self.device.ask(What::AtOnce, Kind::WriteSmall);
                }
            }
            _ => thread::yield_now(),
        }
    }
}

fn ask_some(device: &Device, rng: &mut Rng, requests: u64) {
    for _ in 0..requests {
        if rng.chance(1, 16) {
            thread::sleep(Duration::from_millis(rng.below(QUIET)));
        }
        let what = match rng.below(10) {
            0 => What::Trifle,
            1 => What::Computes,
            2 => What::Sleeps,
            3 => What::AtAGate,
            4 => What::Nested,
            5 => What::Forgets(1 + rng.below(5) as u32),
            _ => What::AtOnce,
        };
        let kinds = [Kind::Meta, Kind::ReadLarge, Kind::WriteSmall, Kind::WriteLarge, Kind::Sync];
        device.ask(what, *rng.choose(&kinds).expect("one of them"));
    }
}

/// W1, W3: no request is left, all nodes are forgotten, and each thread reads or sits on the bench.
fn is_quiet(device: &Device, pool: &WorkerPool, threads: usize) -> bool {
    let (seated, reading) = {
        let bench = pool.bench.lock();
        let seated = bench.seated.len() + usize::from(bench.watch.is_some());
        (seated, pool.readers.load(Ordering::SeqCst))
    };
    let state = device.state.lock();
    let is_done = state.pending.is_empty() && state.asked.is_empty();
    is_done && state.forgotten == state.to_forget && reading > 0 && seated + reading == threads
}

fn start(name: String, work: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    thread::Builder::new().name(name).spawn(work).expect("a thread")
}

/// Runs everything that one seed decides. Returns how long a request that waits for nothing took at
/// most.
fn whole(seed: u64) -> Duration {
    let mut rng = Rng::new(seed ^ 0x00c4_e3f0);
    // One thread must be able to read, so there are fewer clients than threads.
    let threads = 3 + rng.below(4) as usize;
    let clients = 1 + rng.below(threads as u64 - 1);
    let busy_poll = *rng.choose(&[0, 20, 100]).expect("one of them");
    let options = Options {
        handoff: true,
        busy_poll: Duration::from_micros(busy_poll),
        ..Options::default()
    };
    let device = Arc::new(Device { state: Mutex::default(), moved: Condvar::new() });
    let pool = WorkerPool::new(TestConnection(Arc::clone(&device)), threads, &options);
    let gate = Arc::new(Gate::default());
    let workers: Vec<_> = (0..threads)
        .map(|number| {
            let worker = Worker {
                device: Arc::clone(&device),
                pool: Arc::clone(&pool),
                rng: Rng::new(rng.next_u64()),
                gate: Arc::clone(&gate),
            };
            start(format!("worker {number}"), move || worker.run())
        })
        .collect();
    let clients: Vec<_> = (0..clients)
        .map(|number| {
            let (device, requests) = (Arc::clone(&device), 4 + rng.below(24));
            let mut rng = Rng::new(rng.next_u64());
            start(format!("client {number}"), move || ask_some(&device, &mut rng, requests))
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("a client"));
    let mut looks = 0;
    while !is_quiet(&device, &pool, threads) {
        thread::sleep(Duration::from_millis(1));
        looks += 1;
        assert!(looks < 1_000, "a worker is neither reading nor sitting: {pool:?} {device:?}");
    }
    device.go();
    workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
    device.state.lock().longest
}

/// W1 to W3: all requests are answered, whatever they wait for. Requests that wait for nothing are
/// answered soon, and all threads end.
#[test]
fn every_request_is_answered() {
    for seed in crate::seeds::seeds() {
        // With a clock that leaps, the measured time does not tell how long a request had to wait.
        let leaps = seed % 2 == 0;
        let options = seeded::Options { steps_max: 2_000_000, leaps, ..seeded::Options::default() };
        let (took, _) = seeded::run(seed, options, move || whole(seed))
            .unwrap_or_else(|stuck| panic!("BUTTRESS_SEED={seed}: {stuck}"));
        if !leaps {
            assert!(took < SOON, "BUTTRESS_SEED={seed}: {took:?} for what waits for nothing");
        }
    }
}
