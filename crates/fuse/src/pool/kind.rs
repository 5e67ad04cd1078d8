//! Kinds of requests, and their likely costs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::stopwatch::Took;

/// Handlers that take longer than this, on average, are long.
pub(super) const LONG: Duration = Duration::from_micros(40);
/// Handlers that take longer than this, on average, may be waiting for something.
const VERY_LONG: Duration = Duration::from_micros(150);
/// Above this average, `stopwatch` checks whether the thread had the processor.
const SUSPECT: Duration = Duration::from_micros(20);
/// Without the check of `stopwatch`, no sample counts for more than this. So an average does not
/// rise from below [`SUSPECT`] to above [`LONG`] without a check.
const UNSEEN_MAX: Duration = Duration::from_micros(160);
/// One stall or one preemption does not predict the next request, so no sample counts for more than
/// this.
pub(super) const SAMPLE_MAX: Duration = Duration::from_micros(200);

/// Kinds of requests, by their likely cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Names and attributes.
    Meta,
    /// Lists and extended attributes.
    List,
    /// Reading up to [`SMALL`] bytes.
    ReadSmall,
    /// Reading more.
    ReadLarge,
    /// Writing up to [`SMALL`] bytes.
    WriteSmall,
    /// Writing more.
    WriteLarge,
    /// Changing the size, the allocation, or many bytes at once.
    Space,
    /// Forgetting, which may delete.
    Forget,
    /// Making durable.
    Sync,
    /// Requests too small to hand on. They are counted, and no program waits for them.
    Trifle,
}

const KIND_COUNT: usize = 10;
/// The largest small read or write, in bytes.
const SMALL: usize = 32 << 10;

impl Kind {
    /// The kind of a read of `len` bytes.
    pub(crate) fn read(len: usize) -> Self {
        if len <= SMALL { Self::ReadSmall } else { Self::ReadLarge }
    }

    /// The kind of a write of `len` bytes.
    pub(crate) fn write(len: usize) -> Self {
        if len <= SMALL { Self::WriteSmall } else { Self::WriteLarge }
    }

    /// Whether a request of this kind has work for a second processor while its program waits:
    /// bytes to copy, or data to write out and make durable.
    pub(super) fn is_work(self) -> bool {
        matches!(self, Self::ReadLarge | Self::WriteLarge | Self::Sync)
    }

    fn first_guess(self) -> Duration {
        match self {
            Self::Sync => LONG * 4,
            _ => Duration::ZERO,
        }
    }

    const ALL: [Self; KIND_COUNT] = [
        Self::Meta,
        Self::List,
        Self::ReadSmall,
        Self::ReadLarge,
        Self::WriteSmall,
        Self::WriteLarge,
        Self::Space,
        Self::Forget,
        Self::Sync,
        Self::Trifle,
    ];
}

/// The latest costs of each kind: averages, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Costs {
    took: [AtomicU32; KIND_COUNT],
    /// The part of the time in `took` in which the thread was not on a processor.
    away: [AtomicU32; KIND_COUNT],
}

impl Costs {
    /// Starts with guessed averages, which measurements of requests replace.
    pub(crate) fn new() -> Self {
        let guesses = || Kind::ALL.map(|kind| AtomicU32::new(nanos(kind.first_guess())));
        Self { took: guesses(), away: guesses() }
    }

    /// Whether requests of a kind keep others waiting.
    pub(crate) fn is_long(&self, kind: Kind) -> bool {
        average(&self.took[kind as usize]) > LONG
    }

    /// Whether requests of a kind may take so long that checking the thread's processor time is
    /// worth it.
    pub(crate) fn is_suspect(&self, kind: Kind) -> bool {
        average(&self.took[kind as usize]) > SUSPECT
    }

    /// Whether requests of a kind take so long that a check for waiting is needed.
    pub(crate) fn is_very_long(&self, kind: Kind) -> bool {
        average(&self.took[kind as usize]) > VERY_LONG
    }

    /// Whether requests of a kind wait and do not compute, as far as this was measured.
    pub(crate) fn usually_waits(&self, kind: Kind) -> bool {
        self.is_very_long(kind) && average(&self.away[kind as usize]) > LONG
    }

    /// Records the time of one request, and how long its thread waited.
    pub(crate) fn learn(&self, kind: Kind, took: Took) {
        match took.away {
            None => learn(&self.took[kind as usize], took.time.min(UNSEEN_MAX)),
            Some(away) => {
                learn(&self.took[kind as usize], took.time);
                learn(&self.away[kind as usize], away);
            }
        }
    }
}

fn average(of: &AtomicU32) -> Duration {
    Duration::from_nanos(of.load(Ordering::Relaxed).into())
}

fn learn(of: &AtomicU32, sample: Duration) {
    let old = of.load(Ordering::Relaxed);
    let sample = nanos(sample.min(SAMPLE_MAX));
    // Two threads may overwrite each other's sample. The average tolerates that.
    of.store(old - old / 8 + sample / 8, Ordering::Relaxed);
}

fn nanos(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kind that computes for long does not count as waiting. A kind that is long off the
    /// processor counts as waiting, except if its requests are short on average.
    #[test]
    fn costs_tell_waiting_from_computing() {
        let costs = Costs::new();
        assert!(costs.usually_waits(Kind::Sync), "before anything was learned");
        let learn = |time, away| {
            (0..64).for_each(|_| costs.learn(Kind::WriteLarge, Took { time, away: Some(away) }));
        };
        learn(VERY_LONG * 2, Duration::ZERO);
        assert!(costs.is_very_long(Kind::WriteLarge) && !costs.usually_waits(Kind::WriteLarge));
        learn(VERY_LONG * 2, VERY_LONG);
        assert!(costs.usually_waits(Kind::WriteLarge));
        learn(LONG / 2, VERY_LONG);
        assert!(!costs.usually_waits(Kind::WriteLarge));
    }

    /// If other threads delay short requests, the processor time is measured before the kind of
    /// these requests can count as long.
    #[test]
    fn costs_look_before_a_kind_counts_as_long() {
        let costs = Costs::new();
        let short = |time| Took { time, away: None };
        for _ in 0..1000 {
            assert!(!costs.is_long(Kind::Meta));
            if costs.is_suspect(Kind::Meta) {
                costs.learn(Kind::Meta, Took { time: SUSPECT / 2, away: Some(Duration::ZERO) });
            } else {
                costs.learn(Kind::Meta, short(Duration::from_millis(3)));
            }
        }
    }
}
