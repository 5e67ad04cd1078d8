//! The queue of tickets under a scheduler that tries the orders in which threads may run. A failure
//! prints the schedule that led to it, which `shuttle::replay` runs again.
//!
//! The account is a lock around a number; everything else is the real code.

#[allow(dead_code, unreachable_pub, reason = "the crate's own source, of which models use a part")]
#[path = "../../src/ticket.rs"]
mod ticket;
mod waiting;

use std::time::Duration;

use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

use ticket::{Priority, Queue, Verdict};

const FOREVER: Duration = Duration::from_secs(1);

fn runs() -> usize {
    std::env::var("BUTTRESS_MODEL_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(1500)
}

/// An account, and the queue of requests for its space.
struct World {
    free: Mutex<u64>,
    queue: Queue<u64>,
}

impl World {
    fn new(free: u64) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new(free), queue: Queue::new() })
    }

    fn take(&self, bytes: u64) -> bool {
        let mut free = self.free.lock().expect("free");
        let fits = bytes <= *free;
        if fits {
            *free -= bytes;
        }
        fits
    }

    fn serve(&self) -> u64 {
        self.queue.serve(|bytes| self.take(*bytes))
    }

    fn give(&self, bytes: u64) {
        *self.free.lock().expect("free") += bytes;
        self.serve();
    }

    /// Waits until the demand is granted, without a limit.
    fn get(&self, priority: Priority, bytes: u64) {
        let Some(mut ticket) = self.queue.ask(priority, bytes, |bytes| self.take(*bytes)) else {
            return;
        };
        assert_eq!(ticket.wait_for(FOREVER), Some(Verdict::Granted));
    }

    fn free(&self) -> u64 {
        *self.free.lock().expect("free")
    }
}

fn model(world: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random(world, runs());
}

/// Q5: no waiter sleeps while its demand fits.
#[test]
fn no_wake_up_is_lost() {
    model(|| {
        let world = World::new(2);
        let users: Vec<_> = (0..3)
            .map(|user| {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    let priority = if user == 0 { Priority::High } else { Priority::Normal };
                    for bytes in [2, 1] {
                        world.get(priority, bytes);
                        world.give(bytes);
                    }
                })
            })
            .collect();
        for user in users {
            user.join().expect("no panic");
        }
        assert_eq!(world.free(), 2);
        assert!(world.queue.is_empty());
    });
}

/// Q1, Q2, E8: a small demand never overtakes an earlier large demand, neither by `at_once` nor by
/// its place in the queue. A demand with priority overtakes the large one.
#[test]
fn waiters_do_not_overtake() {
    model(|| {
        let world = World::new(1);
        let served = Arc::new(AtomicBool::new(false));
        let mut first =
            world.queue.ask(Priority::Normal, 3, |bytes| world.take(*bytes)).expect("waits");
        let small = {
            let (world, served) = (Arc::clone(&world), Arc::clone(&served));
            thread::spawn(move || {
                assert!(
                    !world.queue.at_once(Priority::Normal, || world.take(1))
                        || served.load(Ordering::SeqCst)
                );
                world.get(Priority::Normal, 1);
                assert!(served.load(Ordering::SeqCst), "it came later and fitted earlier");
            })
        };
        let urgent = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.get(Priority::High, 1);
                world.give(1);
            })
        };
        urgent.join().expect("it does not wait for the others");
        served.store(true, Ordering::SeqCst);
        world.give(3);
        assert_eq!(first.wait_for(FOREVER), Some(Verdict::Granted));
        small.join().expect("what is left is enough");
        assert_eq!(world.free(), 0);
    });
}

/// Q3, E6: a waiter that gives up leaves no entry and keeps no space, even if it was granted
/// meanwhile. It also unblocks the waiters behind it.
#[test]
fn waiter_that_gives_up_leaves_no_trace() {
    model(|| {
        let world = World::new(0);
        let hurried = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let Some(mut ticket) =
                    world.queue.ask(Priority::Normal, 2, |bytes| world.take(*bytes))
                else {
                    return world.give(2);
                };
                let verdict = ticket.wait_for(Duration::ZERO).or_else(|| ticket.leave());
                if verdict == Some(Verdict::Granted) {
                    world.give(2);
                } else {
                    world.serve();
                }
            })
        };
        let steady = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.get(Priority::Normal, 1))
        };
        // This byte is enough only for the waiter that stays, which is served only because the
        // other waiter leaves.
        world.give(1);
        hurried.join().expect("it leaves");
        steady.join().expect("it is served");
        assert_eq!(world.free(), 0);
        assert!(world.queue.is_empty());
    });
}

/// E7: a demand that can never be met is refused from the head, and the small demand behind it is
/// granted.
#[test]
fn refused_head_unblocks_the_queue() {
    model(|| {
        let world = World::new(1);
        let mut large =
            world.queue.ask(Priority::Normal, 10, |bytes| world.take(*bytes)).expect("waits");
        let small = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.get(Priority::Normal, 1))
        };
        // Refuses the first request, as the flusher does after its last step.
        while world.queue.served() == 0 && world.free() > 0 {
            if world.queue.refuse_first(Priority::Normal, world.queue.next_ticket()) {
                world.serve();
                break;
            }
        }
        assert_eq!(large.wait_for(FOREVER), Some(Verdict::Refused));
        small.join().expect("granted");
        assert_eq!(world.queue.refused(), 1);
    });
}

/// F2: a request that came during the last flush step for other requests is not refused together
/// with those requests.
#[test]
fn late_request_is_not_refused() {
    model(|| {
        let world = World::new(0);
        let mut early =
            world.queue.ask(Priority::Normal, 1, |bytes| world.take(*bytes)).expect("waits");
        let begun = world.queue.next_ticket();
        let late = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.get(Priority::Normal, 1))
        };
        assert!(world.queue.refuse_first(Priority::Normal, begun));
        assert!(!world.queue.refuse_first(Priority::Normal, begun), "nothing was tried for it");
        assert_eq!(early.wait_for(FOREVER), Some(Verdict::Refused));
        world.give(1);
        late.join().expect("granted");
        assert_eq!(world.queue.refused(), 1);
    });
}

/// F3: when nothing will ever be granted, every waiter is refused.
#[test]
fn the_end_reaches_every_waiter() {
    model(|| {
        let world = World::new(0);
        let over = Arc::new(AtomicBool::new(false));
        let waiters: Vec<_> = [Priority::High, Priority::Normal]
            .into_iter()
            .map(|priority| {
                let (world, over) = (Arc::clone(&world), Arc::clone(&over));
                thread::spawn(move || {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    let ticket = world.queue.ask(priority, 1, |_| over.load(Ordering::SeqCst));
                    let Some(mut ticket) = ticket else { return };
                    assert_eq!(ticket.wait_for(FOREVER), Some(Verdict::Refused));
                })
            })
            .collect();
        over.store(true, Ordering::SeqCst);
        world.queue.refuse_all();
        for waiter in waiters {
            waiter.join().expect("told");
        }
    });
}
