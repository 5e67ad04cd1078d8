//! The bitmaps of the index under a scheduler that tries the orders in which threads may run. The
//! bitmaps are the real code.

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the crate's own source, of which the model uses a part"
)]
#[path = "../../src/plane_bits.rs"]
mod plane_bits;
mod sync;

use shuttle::sync::Arc;
use shuttle::thread;

use plane_bits::{MissReasons, PlaneBits};

const ORDER: usize = 3;

fn runs() -> usize {
    std::env::var("BUTTRESS_MODEL_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(1500)
}

/// Runs a model in many orders. The threads need large stacks, because a segment is made on the
/// stack.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::default();
    config.stack_size = 4 << 20;
    let scheduler = shuttle::scheduler::RandomScheduler::new(runs());
    shuttle::Runner::new(scheduler, config).run(model);
}

/// I3: while another group leaves, a search finds an entered group, or sees that it may have missed
/// this group. The two groups share a word or a segment, or each group is alone in its segment. The
/// search may start anywhere.
#[test]
fn entered_group_is_found_or_doubted() {
    for (stays, leaves) in [(65, 64), (65, 200), (5000, 5001), (5000, 4200), (70_000 * 64, 4096)] {
        check(move || {
            let shared = Arc::new((PlaneBits::default(), MissReasons::default()));
            shared.0.set(ORDER, leaves);
            let other = Arc::clone(&shared);
            let leaver = thread::spawn(move || {
                let (bits, doubts) = &*other;
                bits.clear(ORDER, leaves, doubts);
            });
            let (bits, doubts) = &*shared;
            bits.set(ORDER, stays);
            doubts.arrived();
            let begun = doubts.arrival_count();
            // Looks at all entries, because a search goes on behind a group that has too little
            // space.
            let next = |slot: &usize| bits.next(ORDER, slot + 1);
            let found: Vec<_> = std::iter::successors(bits.next(ORDER, 0), next).collect();
            let sees = found.contains(&stays);
            assert!(
                sees || doubts.may_have_missed(begun),
                "I3: {stays} beside {leaves}: {found:?}"
            );
            leaver.join().expect("no panic");
            assert_eq!(bits.next(ORDER, 0), Some(stays), "I2");
            let begun = doubts.arrival_count();
            assert!(!doubts.may_have_missed(begun), "a doubt that does not end");
        });
    }
}
