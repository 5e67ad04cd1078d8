//! Counts the requests of each kind to this process, their bytes, and the time until the answer.
//!
//! # What must hold
//!
//! - Each request is counted once, whichever transport brought it.
//! - A request that the server answers is timed once. A request without an answer is not timed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use buttress_protocol::{KINDS, Opcode};

/// All opcodes of requests are below this.
const OPCODES: usize = 64;

/// Classes of times. Each class counts times below a power of two of microseconds, and the last
/// class counts everything longer than about four seconds, too.
const CLASSES: usize = 24;

static COUNTS: [AtomicU64; OPCODES] = [const { AtomicU64::new(0) }; OPCODES];
static TIMES: [Times; OPCODES] = [const { Times::new() }; OPCODES];

/// The times of the answers to one kind of request. Each `Times` is aligned to 128 bytes: threads
/// update different kinds at once and must not share a cache line.
#[repr(align(128))]
struct Times {
    classes: [AtomicU64; CLASSES],
    nanos: AtomicU64,
    max_nanos: AtomicU64,
    bytes: AtomicU64,
}

impl Times {
    const fn new() -> Self {
        Self {
            classes: [const { AtomicU64::new(0) }; CLASSES],
            nanos: AtomicU64::new(0),
            max_nanos: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }
}

/// How long the answers to one kind of request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Answers.
    pub answers: u64,
    /// Bytes of file data that were read or written.
    pub bytes: u64,
    /// The sum of the times in microseconds.
    pub total_us: u64,
    /// The longest time in microseconds.
    pub max_us: u64,
    /// At least half of the answers took no longer than this, in microseconds. The value is a power
    /// of two, or `max_us` if `max_us` is less. Times above eight seconds count as eight seconds.
    pub p50_us: u64,
    /// At least 99 % of the answers took no longer than this, in microseconds. The value is a power
    /// of two, or `max_us` if `max_us` is less. Times above eight seconds count as eight seconds.
    pub p99_us: u64,
}

/// Counts a request.
pub(crate) fn count(of: Opcode) {
    if let Some(count) = COUNTS.get(of as usize) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// The number of requests of each kind to all mounts of this process. Kinds without requests are
/// left out.
#[must_use]
pub fn requests() -> Vec<(&'static str, u64)> {
    let counted = |(of, name): (Opcode, &'static str)| {
        let count = COUNTS[of as usize].load(Ordering::Relaxed);
        (count > 0).then_some((name, count))
    };
    KINDS.into_iter().filter_map(counted).collect()
}

/// Counts an answer, with the bytes of file data that the request moved.
pub(crate) fn answered(of: Opcode, time: Duration, bytes: u64) {
    let Some(times) = TIMES.get(of as usize) else { return };
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    times.classes[class(nanos / 1_000)].fetch_add(1, Ordering::Relaxed);
    times.nanos.fetch_add(nanos, Ordering::Relaxed);
    if nanos > times.max_nanos.load(Ordering::Relaxed) {
        times.max_nanos.fetch_max(nanos, Ordering::Relaxed);
    }
    if bytes > 0 {
        times.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The class of a time in microseconds: the first class with a limit above it.
fn class(us: u64) -> usize {
    ((u64::BITS - us.leading_zeros()) as usize).min(CLASSES - 1)
}

/// The times of the answers to each kind of request, over all mounts of this process. Kinds without
/// answers are left out.
#[must_use]
pub fn latencies() -> Vec<(&'static str, Latency)> {
    let timed = |(of, name): (Opcode, &'static str)| {
        let latency = latency(TIMES.get(of as usize)?);
        (latency.answers > 0).then_some((name, latency))
    };
    KINDS.into_iter().filter_map(timed).collect()
}

fn latency(times: &Times) -> Latency {
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let classes: Vec<u64> = times.classes.iter().map(load).collect();
    let answers = classes.iter().sum();
    let max_us = load(&times.max_nanos) / 1_000;
    Latency {
        answers,
        bytes: load(&times.bytes),
        total_us: load(&times.nanos) / 1_000,
        max_us,
        p50_us: limit_of(&classes, answers - answers / 2, max_us),
        p99_us: limit_of(&classes, answers - answers / 100, max_us),
    }
}

/// The limit of the class in which the answer with the number `rank` lies, counted from the
/// shortest answer. No limit is above the longest time.
fn limit_of(classes: &[u64], rank: u64, max_us: u64) -> u64 {
    let mut below = 0;
    for (class, count) in classes.iter().enumerate() {
        below += count;
        if below >= rank && below > 0 {
            return (1 << class).min(max_us.max(1));
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use buttress_protocol::opcode;

    use super::*;

    /// Each kind of request has a counter.
    #[test]
    fn kinds_have_counters() {
        assert!(KINDS.iter().all(|(of, _)| (*of as usize) < OPCODES));
    }

    #[test]
    fn requests_are_counted_once_each() {
        let statx = || requests().iter().find(|(name, _)| *name == "statx").map_or(0, |(_, n)| *n);
        let before = statx();
        count(opcode::STATX);
        count(u32::MAX);
        assert_eq!(statx(), before + 1);
    }

    #[test]
    fn times_fall_into_classes() {
        assert_eq!([0, 1, 2, 3, 4, 1 << 40].map(class), [0, 1, 2, 2, 3, CLASSES - 1]);
        let times = Times::new();
        assert_eq!(latency(&times), Latency::default());
        for us in [1, 1, 1, 5_000] {
            times.classes[class(us)].fetch_add(1, Ordering::Relaxed);
            times.nanos.fetch_add(us * 1_000, Ordering::Relaxed);
            times.max_nanos.fetch_max(us * 1_000, Ordering::Relaxed);
        }
        let wanted = Latency {
            answers: 4,
            bytes: 0,
            total_us: 5_003,
            max_us: 5_000,
            p50_us: 2,
            p99_us: 5_000,
        };
        assert_eq!(latency(&times), wanted);
    }
}
