//! An experiment on a number of simulated processors.
//!
//! # Place
//!
//! The engine's own threads, locks and clock take turns under the scheduler of
//! `buttress_base::seeded`. One thread runs at a time, on one real processor, and its time there
//! counts as the time of one simulated processor. The shown time is the time of the run. Caches and
//! memory are this machine's, and simulated processors do not compete for them.

use std::time::Duration;

/// The instructions for building a program with the scheduler.
const HOW: &str = "this program was built without a scheduler of its own; build one that has it: \
    RUSTFLAGS='--cfg buttress_seeded' cargo build --release -p buttress-bench --target-dir target/processors";

/// The maximum number of places of waiting that are named.
#[cfg(any(debug_assertions, buttress_seeded))]
const MOST: usize = 5;

/// Runs `work` on `count` processors. Returns its result, and the places where its threads waited
/// most for locks.
///
/// # Errors
///
/// The error of `work`; a deadlock of its threads; or a program without a scheduler.
#[cfg(any(debug_assertions, buttress_seeded))]
pub(crate) fn run<T: Send + 'static>(
    count: usize,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<(T, Vec<String>), String> {
    use buttress_base::seeded::{self, Options};
    use buttress_sim::processors::{Cost, Processors};
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    if cfg!(not(buttress_seeded)) {
        return Err(HOW.to_owned());
    }
    let cost = Cost::of_this_machine();
    // Threads stay on one real processor: a switch to another one would cost cache misses, which
    // would be counted.
    let all = sched_getaffinity(None).map_err(|error| error.to_string())?;
    let mut one = CpuSet::new();
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| all.is_set(*cpu));
    one.set(last.ok_or("there is no processor")?);
    sched_setaffinity(None, &one).map_err(|error| error.to_string())?;
    let options = Options {
        steps_max: u64::MAX,
        processors: Some(Processors { count, cost }.machine()),
        ..Options::default()
    };
    let done = seeded::run(0, options, || {
        seeded::learn_overhead();
        work()
    });
    sched_setaffinity(None, &all).map_err(|error| error.to_string())?;
    let (value, report) = done.map_err(|stuck| stuck.to_string())?;
    let waited = report.waited.iter().take(MOST).map(|waited| {
        let (times, seconds) = (waited.count, waited.time.as_secs_f64());
        format!("waited {seconds:.3} s for a lock, {times} times, at {}", waited.at)
    });
    value.map(|value| (value, waited.collect()))
}

/// Refuses, in a program without the scheduler.
#[cfg(not(any(debug_assertions, buttress_seeded)))]
pub(crate) fn run<T: Send + 'static>(
    _: usize,
    _: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<(T, Vec<String>), String> {
    Err(HOW.to_owned())
}

/// The busy time of the simulated processors. Without them, the busy time of the machine's
/// processors.
pub(crate) fn busy() -> f64 {
    buttress_base::thread::processors_busy()
        .as_ref()
        .map_or_else(crate::cpu::busy, Duration::as_secs_f64)
}

/// Whether this run is on simulated processors.
pub(crate) fn is_run() -> bool {
    buttress_base::thread::processors_busy().is_some()
}
