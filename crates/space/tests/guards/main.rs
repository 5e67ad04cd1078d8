//! Guards of writers in place, and the transition to read-only, under a scheduler that tries the
//! orders in which threads may run. The guards are the real code; the group is a flag.

#[allow(
    dead_code,
    unreachable_pub,
    clippy::modulo_one,
    reason = "the crate's own source, of which models use a part: one bucket, for instance"
)]
#[path = "../../src/guard.rs"]
mod guard;
mod sync;

use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::thread;

use guard::Writers;

fn runs() -> usize {
    std::env::var("BUTTRESS_MODEL_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(1500)
}

#[derive(Default)]
struct Group {
    writers: Arc<Writers>,
    read_only: AtomicBool,
    /// Writers at this moment.
    active: AtomicUsize,
}

impl Group {
    fn write(&self, shard: usize) {
        sync::set_shard(shard);
        let counted = self.writers.enter(0);
        if self.read_only.load(Ordering::SeqCst) {
            return;
        }
        self.active.fetch_add(1, Ordering::SeqCst);
        thread::yield_now();
        self.active.fetch_sub(1, Ordering::SeqCst);
        drop(counted);
    }
}

/// W1: after a drain no thread writes, whatever the shard and the phase in which the writers
/// entered.
#[test]
fn a_drained_group_is_quiet() {
    shuttle::check_random(
        || {
            let group = Arc::new(Group::default());
            let threads: Vec<_> = (0..3)
                .map(|index| {
                    let group = Arc::clone(&group);
                    thread::spawn(move || (0..2).for_each(|_| group.write(index)))
                })
                .collect();
            group.read_only.store(true, Ordering::SeqCst);
            group.writers.drain(0);
            assert_eq!(group.active.load(Ordering::SeqCst), 0, "W1");
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        },
        runs(),
    );
}

/// W1, W2: two threads drain one after the other, and allow writers again in between.
#[test]
fn drains_take_turns() {
    shuttle::check_random(
        || {
            let group = Arc::new(Group::default());
            let holds = Arc::new(shuttle::sync::Mutex::new(0));
            let writers: Vec<_> = (0..2)
                .map(|index| {
                    let group = Arc::clone(&group);
                    thread::spawn(move || (0..2).for_each(|_| group.write(index)))
                })
                .collect();
            let drains: Vec<_> = (0..2)
                .map(|_| {
                    let (group, holds) = (Arc::clone(&group), Arc::clone(&holds));
                    let change = move |by: i32| {
                        let mut holds = holds.lock().expect("no poison");
                        *holds += by;
                        group.read_only.store(*holds > 0, Ordering::SeqCst);
                        Arc::clone(&group)
                    };
                    thread::spawn(move || {
                        let group = change(1);
                        group.writers.drain(0);
                        assert_eq!(group.active.load(Ordering::SeqCst), 0, "W1");
                        change(-1);
                    })
                })
                .collect();
            let all = writers.into_iter().chain(drains);
            all.for_each(|thread| thread.join().expect("no panic"));
        },
        runs(),
    );
}
