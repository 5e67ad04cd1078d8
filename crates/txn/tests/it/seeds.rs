//! Tests that run in orders which seeds decide. `BUTTRESS_SEED=n` runs seed `n` alone,
//! `BUTTRESS_SEEDS=first..last` runs several. A failing seed is printed, and fails again in the
//! next run.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use buttress_base::seeded;
use buttress_sim::campaign;

/// Runs a test with each of its seeds.
pub(crate) fn each(by_default: Range<u64>, test: &str, mut look: impl FnMut(u64)) {
    let seeds = campaign::seeds_or(by_default);
    for seed in seeds.clone() {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| look(seed))) {
            eprintln!("again: BUTTRESS_SEED={seed} cargo test -p buttress-txn --test it {test}");
            resume_unwind(panic);
        }
    }
    campaign::count("orders", (seeds.end - seeds.start) as usize);
}

/// Runs `work` with its threads in the order that a seed decides.
pub(crate) fn run<T: Send + 'static>(seed: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (outcome, _) = seeded::run(seed, seeded::Options::default(), work)
        .unwrap_or_else(|stuck| panic!("{stuck}"));
    outcome
}
