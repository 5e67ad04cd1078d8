//! Operations that race with a freeze, under a scheduler that tries the orders in which threads may
//! run. The gate is the real code. The transaction is a count of puts, and the view is a lock
//! around the transaction.

#[allow(dead_code, unreachable_pub, reason = "the crate's own source, of which models use a part")]
#[path = "../../src/gate.rs"]
mod gate;
mod sync;

use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

use gate::Gate;

fn model(world: impl Fn() + Send + Sync + 'static) {
    let runs = std::env::var("BUTTRESS_MODEL_RUNS").ok().and_then(|n| n.parse().ok());
    shuttle::check_random(world, runs.unwrap_or(1500));
}

#[derive(Default)]
struct Transaction {
    generation: u64,
    puts: AtomicU64,
    frozen: AtomicBool,
}

#[derive(Default)]
struct Engine {
    gate: Gate,
    running: Mutex<Arc<Transaction>>,
    /// One thread at a time freezes a transaction, and commits it.
    commit: Mutex<()>,
    published: AtomicU64,
}

impl Engine {
    fn running(&self) -> Arc<Transaction> {
        Arc::clone(&self.running.lock().expect("the view"))
    }

    /// Makes two puts that belong together. Returns the transaction that has both puts.
    fn operate(&self) -> u64 {
        let (inside, transaction) = self.gate.enter(|| self.running());
        for _ in 0..2 {
            assert!(!transaction.frozen.load(Ordering::SeqCst), "G1: a put into what was frozen");
            transaction.puts.fetch_add(1, Ordering::SeqCst);
        }
        drop(inside);
        transaction.generation
    }

    fn freeze(&self) -> Arc<Transaction> {
        self.gate.alone(|| {
            let mut running = self.running.lock().expect("the view");
            let frozen = Arc::clone(&running);
            frozen.frozen.store(true, Ordering::SeqCst);
            *running = Arc::new(Transaction {
                generation: frozen.generation + 1,
                ..Transaction::default()
            });
            frozen
        })
    }

    /// Makes all puts durable that were made before the call; callers that come together share a
    /// commit.
    fn commit(&self) {
        let wanted = self.running().generation + 1;
        let _one = self.commit.lock().expect("commits");
        if self.published.load(Ordering::SeqCst) >= wanted {
            return;
        }
        let frozen = self.freeze();
        let puts = frozen.puts.load(Ordering::SeqCst);
        assert!(puts.is_multiple_of(2), "G1: {puts} puts: half of an operation");
        thread::yield_now();
        assert_eq!(frozen.puts.load(Ordering::SeqCst), puts, "G1: it grew");
        self.published.store(frozen.generation + 1, Ordering::SeqCst);
    }
}

fn together(engine: &Arc<Engine>, works: Vec<fn(&Engine)>) {
    let threads = works.into_iter().enumerate().map(|(index, work)| {
        let engine = Arc::clone(engine);
        thread::spawn(move || {
            sync::set_shard(index);
            work(&engine);
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// G1: all puts of one operation are in one transaction, and no transaction changes after it was
/// frozen.
#[test]
fn an_operation_is_in_one_commit() {
    model(|| {
        let engine = Arc::new(Engine::default());
        let operate: fn(&Engine) = |engine| (0..3).for_each(|_| _ = engine.operate());
        let commit: fn(&Engine) = |engine| (0..2).for_each(|_| engine.commit());
        together(&engine, vec![operate, operate, commit]);
        engine.commit();
    });
}

/// A thread that commits after its own operation finds the operation durable, whichever thread did
/// the commit. No thread is left waiting.
#[test]
fn a_commit_holds_what_came_before() {
    model(|| {
        let engine = Arc::new(Engine::default());
        let work: fn(&Engine) = |engine| {
            for _ in 0..2 {
                let put_in = engine.operate();
                engine.commit();
                assert!(engine.published.load(Ordering::SeqCst) > put_in, "it is not durable");
            }
        };
        together(&engine, vec![work, work, work]);
    });
}
