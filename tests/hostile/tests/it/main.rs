//! Every target, many times, from seeds. A failure names its seed. `BUTTRESS_HOSTILE_SEED` runs
//! that seed alone. `BUTTRESS_HOSTILE_ROUNDS` runs many more seeds. `BUTTRESS_HOSTILE_SECONDS` runs
//! as many as fit into the time.

mod parsers;
mod regressions;
mod sample;
mod volumes;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use buttress_base::Rng;
use buttress_sim::campaign;
use parking_lot::Mutex;

/// Panics of all threads since the last check, also of threads that are never joined.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// One case runs at a time, so that a panic of a background thread belongs to the present case.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// No case takes this long. Endless requests are found by counting steps, and this limit finds all
/// other endless cases.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The duration of each target, whatever its number of rounds.
const SECONDS: &str = "BUTTRESS_HOSTILE_SECONDS";

fn watch_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            // A failing test reports itself, and must not count as a panic of the next case.
            if info.location().is_some_and(|at| at.file().contains("tests/it/")) {
                eprintln!("{info}");
            } else {
                PANICS.lock().push(info.to_string());
            }
        }));
        // With this limit of address space, an allocation fails loudly if its size is a wrong
        // number of the input.
        let limit = rustix::process::getrlimit(rustix::process::Resource::As);
        let current = Some(12 << 30);
        let _ = rustix::process::setrlimit(
            rustix::process::Resource::As,
            rustix::process::Rlimit { current, ..limit },
        );
    });
}

/// Runs a target on one input, in a thread of its own.
fn case(what: &str, target: impl FnOnce() + Send + 'static) -> Option<String> {
    watch_panics();
    let _one = ONE_AT_A_TIME.lock();
    let (answer, wait) = channel();
    let thread = std::thread::spawn(move || {
        let _ = answer.send(catch_unwind(AssertUnwindSafe(target)).is_ok());
    });
    let outcome = wait.recv_timeout(TIMEOUT);
    let panics = std::mem::take(&mut *PANICS.lock());
    let ends = match outcome {
        Ok(_) => thread.join().is_ok(),
        Err(RecvTimeoutError::Timeout) => false,
        Err(RecvTimeoutError::Disconnected) => true,
    };
    if !ends {
        // Later cases could not be told apart from this one, so the process ends.
        eprintln!("{what} does not end; {panics:#?}");
        std::process::exit(101);
    }
    let is_good = panics.is_empty() && matches!(outcome, Ok(true));
    (!is_good).then(|| format!("{what}: {panics:#?}"))
}

/// The distance between the seeds of two rounds. No target uses so many seeds in one round.
const STRIDE: u64 = 10_000_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok())
}

/// The seeds of a target, as many as it has rounds. The range is endless if a duration is set.
fn seeds(first: u64, rounds: u64) -> std::ops::Range<u64> {
    if let Some(seed) = number("BUTTRESS_HOSTILE_SEED") {
        return seed..seed + 1;
    }
    let first = first + campaign::round() * STRIDE;
    if number(SECONDS).is_some() {
        return first..first + STRIDE;
    }
    first..first + number("BUTTRESS_HOSTILE_ROUNDS").unwrap_or(rounds)
}

/// The bytes of a seed.
fn choices(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// Runs a target from seeds.
fn each(
    name: &str,
    (first, rounds): (u64, u64),
    input: impl Fn(u64) -> Vec<u8>,
    target: impl Fn(&[u8]) + Send + Sync + 'static,
) {
    let target = Arc::new(target);
    let mut found = Vec::new();
    let began = Instant::now();
    let is_over = || number(SECONDS).is_some_and(|time| began.elapsed().as_secs() >= time);
    let mut count = 0;
    for seed in seeds(first, rounds) {
        if is_over() {
            break;
        }
        count += 1;
        let (bytes, target) = (input(seed), Arc::clone(&target));
        found.extend(case(&format!("{name}, seed {seed}"), move || target(&bytes)));
    }
    campaign::count("mutations", count);
    if !found.is_empty() {
        // The text is printed directly, because the panic hook would swallow it.
        eprintln!("{} found:\n{}", found.len(), found.join("\n"));
        panic!("{name}: see above");
    }
}
