//! Tests that run in orders which seeds decide: `BUTTRESS_SEED=n` runs seed `n` alone, `BUTTRESS_SEEDS=first..last` several. A
//! failing seed is printed, and fails again.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use buttress_base::seeded;
use buttress_sim::campaign;

fn seeds(by_default: Range<u64>) -> Range<u64> {
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("no seed: {text}"));
    if let Ok(seed) = std::env::var("BUTTRESS_SEED") {
        let seed = number(&seed);
        return seed..seed + 1;
    }
    match std::env::var("BUTTRESS_SEEDS") {
        Ok(text) => {
            let (first, last) = text.split_once("..").expect("first..last");
            number(first)..number(last)
        }
        Err(_) => campaign::seeds(by_default),
    }
}

/// Has a test look at each of its seeds.
pub(crate) fn each(by_default: Range<u64>, test: &str, mut look: impl FnMut(u64)) {
    let seeds = seeds(by_default);
    for seed in seeds.clone() {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| look(seed))) {
            eprintln!("again: BUTTRESS_SEED={seed} cargo test -p buttress-txn --test it {test}");
            resume_unwind(panic);
        }
    }
    campaign::count("orders", (seeds.end - seeds.start) as usize);
}

/// Runs something in the order that a seed decides.
pub(crate) fn run<T: Send + 'static>(seed: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (outcome, _) = seeded::run(seed, seeded::Options::default(), work)
        .unwrap_or_else(|stuck| panic!("{stuck}"));
    outcome
}
