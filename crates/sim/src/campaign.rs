//! A test as one round of a long search: which seeds it takes, and what it counts.
//!
//! # Place
//!
//! `cargo xtask crash` runs the same tests again and again with other rounds until its time is
//! over, and adds up what they count. Without it a test runs round zero, the same every time.

use std::ops::Range;

/// A number: each round uses other seeds.
pub const ROUND: &str = "BUTTRESS_ROUND";

/// Begins a line that says how much a test has seen: `BUTTRESS_COUNT states 312`.
pub const COUNT: &str = "BUTTRESS_COUNT";

/// Seeds of one round. No test takes so many.
const STRIDE: u64 = 1000;

/// Returns which round this is.
///
/// # Panics
///
/// If the variable is set to something that is no number.
#[must_use]
pub fn round() -> u64 {
    let number = |text: String| text.parse().unwrap_or_else(|_| panic!("{ROUND}={text}"));
    std::env::var(ROUND).map_or(0, number)
}

/// Says whether to run a check that tests run only now and then: by chance, and always in a long
/// search.
#[must_use]
pub fn always_or(drawn: bool) -> bool {
    drawn || round() > 0
}

/// Returns the seeds of this round, as many as `first` has: those themselves in round zero.
#[must_use]
pub fn seeds(first: Range<u64>) -> Range<u64> {
    let more = round().saturating_mul(STRIDE);
    first.start + more..first.end + more
}

/// Returns the seeds that were asked for: `BUTTRESS_SEED` is one, `BUTTRESS_SEEDS` is
/// `first..last`; else those of this round ([`seeds`]).
///
/// # Panics
///
/// When either is no number.
#[must_use]
pub fn seeds_or(by_default: Range<u64>) -> Range<u64> {
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
        Err(_) => seeds(by_default),
    }
}

/// Says how many of something a test has seen.
pub fn count(what: &str, number: usize) {
    eprintln!("{COUNT} {what} {number}");
}
