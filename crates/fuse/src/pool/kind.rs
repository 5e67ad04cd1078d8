//! Requests by what they may cost.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::stopwatch::Took;

/// Handlers that take longer than this, on average, are long.
pub(super) const LONG: Duration = Duration::from_micros(40);
/// Those that take longer than this may be waiting for something.
const VERY_LONG: Duration = Duration::from_micros(150);
/// Above this average it is looked whether the thread had the processor (`stopwatch`).
const SUSPECT: Duration = Duration::from_micros(20);
/// Where that was not looked at, no sample counts for more than this. So an average does not go
/// from below [`SUSPECT`] to above [`LONG`] without a look.
const UNSEEN_MAX: Duration = Duration::from_micros(160);
/// One stall, or being preempted once, says nothing about the next request: no sample counts for
/// more than this.
pub(super) const SAMPLE_MAX: Duration = Duration::from_micros(200);

/// Kinds of requests, by what they may cost.
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
    /// Too little for a duty: it counts, and no program waits for it.
    Trifle,
}

const KIND_COUNT: usize = 10;
/// What a small read or write is, in bytes.
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

/// What each kind has cost lately: averages, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Costs {
    took: [AtomicU32; KIND_COUNT],
    /// For how long of this the thread was not on a processor.
    away: [AtomicU32; KIND_COUNT],
}

impl Costs {
    /// Averages that are guesses, until requests are measured.
    pub(crate) fn new() -> Self {
        let guesses = || Kind::ALL.map(|kind| AtomicU32::new(nanos(kind.first_guess())));
        Self { took: guesses(), away: guesses() }
    }

    /// Whether requests of a kind keep others waiting.
    pub(crate) fn is_long(&self, kind: Kind) -> bool {
        average(&self.took[kind as usize]) > LONG
    }

    /// Whether they may take so long that it is worth a look whether the thread had the processor.
    pub(crate) fn is_suspect(&self, kind: Kind) -> bool {
        average(&self.took[kind as usize]) > SUSPECT
    }

    /// Whether they take so long that one should look whether they wait for something.
    pub(crate) fn is_very_long(&self, kind: Kind) -> bool {
        average(&self.took[kind as usize]) > VERY_LONG
    }

    /// Whether they wait for something, and do not compute, as far as it was measured.
    pub(crate) fn waits(&self, kind: Kind) -> bool {
        self.is_very_long(kind) && average(&self.away[kind as usize]) > LONG
    }

    /// Notes what one took, and for how long the thread that worked it out waited.
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
    // Two threads may overwrite each other's sample: an average does not mind.
    of.store(old - old / 8 + sample / 8, Ordering::Relaxed);
}

fn nanos(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What computes for long does not wait, what is away for long does, and what is short is not
    /// looked at.
    #[test]
    fn costs_tell_waiting_from_computing() {
        let costs = Costs::new();
        assert!(costs.waits(Kind::Sync), "before anything was learned");
        let learn = |time, away| {
            (0..64).for_each(|_| costs.learn(Kind::WriteLarge, Took { time, away: Some(away) }));
        };
        learn(VERY_LONG * 2, Duration::ZERO);
        assert!(costs.is_very_long(Kind::WriteLarge) && !costs.waits(Kind::WriteLarge));
        learn(VERY_LONG * 2, VERY_LONG);
        assert!(costs.waits(Kind::WriteLarge));
        learn(LONG / 2, VERY_LONG);
        assert!(!costs.waits(Kind::WriteLarge));
    }

    /// Short ones that were held up by others are looked at before they count as long.
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
