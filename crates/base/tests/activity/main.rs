//! The slot of a thread under a scheduler that tries the orders in which threads may run: one
//! thread works and waits, and another looks. A failure prints the schedule that led to it, which
//! `shuttle::replay` runs again.

#[allow(dead_code, unreachable_pub, reason = "the crate's own source, of which models use a part")]
#[path = "../../src/activity/slot.rs"]
mod slot;

use shuttle::sync::Arc;
pub(crate) use shuttle::sync::atomic;
use shuttle::thread;

use slot::{Slot, Word};

/// The kinds of requests are below this, and causes are not.
const CAUSES: u64 = 64;

fn model(world: impl Fn() + Send + Sync + 'static) {
    let runs = std::env::var("BUTTRESS_MODEL_RUNS").ok().and_then(|n| n.parse().ok());
    shuttle::check_random(world, runs.unwrap_or(3000));
}

/// SL1 and SL2: whatever is seen belongs together. The time of each request is twenty times its
/// number, and the times of its waits lie after it. Each cause follows from the time of its wait.
#[test]
fn a_look_sees_one_request_and_one_wait() {
    let cause_of = |time: u64| CAUSES + time % 20;
    model(move || {
        let slot = Arc::new(Slot::new());
        let seen_by = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                for _ in 0..4 {
                    let Some(seen) = slot.look() else { continue };
                    let number = seen.request.kind();
                    assert_eq!(seen.request, Word::new(number, number * 20));
                    assert_eq!(seen.subject, number * 100);
                    let Some(wait) = seen.wait else { continue };
                    let time = number * 20 + wait.kind() - CAUSES;
                    assert_eq!(wait, Word::new(cause_of(time), time));
                }
            })
        };
        for number in 1..4 {
            slot.begin(Word::new(number, number * 20), number * 100);
            for step in [1, 3] {
                let time = number * 20 + step;
                let before = slot.wait(cause_of(time), || time);
                let inner = slot.wait(cause_of(time + 1), || time + 1);
                slot.resume(inner);
                slot.resume(before);
            }
            slot.end();
        }
        seen_by.join().expect("nothing else was seen");
    });
}
