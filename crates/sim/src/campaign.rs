//! A test that uses this module is one round of a long search. The module chooses the seeds of the
//! test and prints the counts of the test.
//!
//! # Place
//!
//! `cargo xtask crash` runs the same tests again and again with different rounds until its time is
//! over. The command adds up the counts of the tests. Without that command a test always runs round
//! zero.

use std::ops::Range;

/// Environment variable with the number of the round. Each round uses different seeds.
pub const ROUND: &str = "BUTTRESS_ROUND";

/// Prefix of an output line with a count: `BUTTRESS_COUNT states 312`.
pub const COUNT: &str = "BUTTRESS_COUNT";

/// Distance between the seeds of two rounds. No test takes that many seeds.
const STRIDE: u64 = 1000;

/// Returns which round this is.
///
/// # Panics
///
/// If the variable is not a number.
#[must_use]
pub fn round() -> u64 {
    let number = |text: String| text.parse().unwrap_or_else(|_| panic!("{ROUND}={text}"));
    std::env::var(ROUND).map_or(0, number)
}

/// Returns whether to run an optional check: if `drawn` says so, and always in rounds after round
/// zero.
#[must_use]
pub fn always_or(drawn: bool) -> bool {
    drawn || round() > 0
}

/// Returns as many seeds as `first` has, for this round. Round zero uses `first` itself.
#[must_use]
pub fn seeds(first: Range<u64>) -> Range<u64> {
    let more = round().saturating_mul(STRIDE);
    first.start + more..first.end + more
}

/// Returns the requested seeds: `BUTTRESS_SEED` has one, `BUTTRESS_SEEDS` has `first..last`. If
/// neither is set, returns the seeds of this round ([`seeds`]).
///
/// # Panics
///
/// When one of the variables is not a number.
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

/// Prints a count of a test.
pub fn count(what: &str, number: usize) {
    eprintln!("{COUNT} {what} {number}");
}
