//! Measures how long a thread worked on a request, and for how much of that time the thread waited.
//!
//! # What must hold
//!
//! - Time in which another thread had the processor is no cost of a request. On a busy machine most
//!   of the time between two readings of the clock belongs to other threads. A request that took
//!   long only for this reason needs no additional thread, which would need the same processor.
//! - A request that waits gives its processor back by itself. The kernel counts such waits.

use std::time::{Duration, Instant};

use buttress_base::{clock, thread};

/// The kernel's counters of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Time on a processor.
    pub(crate) computed: Duration,
    /// The number of waits.
    pub(crate) waits: u64,
}

/// A running stopwatch.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    started: Instant,
    before: Option<Usage>,
}

/// The reading of a stopwatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Took {
    /// The cost of the request: only the thread's processor time if it was measured and the thread
    /// never waited, otherwise the whole time.
    pub(crate) time: Duration,
    /// The part of `time` in which the thread was not on a processor, if that was measured.
    pub(crate) away: Option<Duration>,
}

impl Stopwatch {
    /// Starts a stopwatch. Reading the kernel's counters is a system call, which is expensive
    /// compared with a short request. So `is_suspect` is only set for kinds that may take long.
    pub(crate) fn start(is_suspect: bool) -> Self {
        Self { started: clock::now(), before: is_suspect.then(Usage::now).flatten() }
    }

    /// The time at which the stopwatch was started.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Returns the time that passed until `end`.
    pub(crate) fn until(&self, end: Instant) -> Took {
        let whole = end.saturating_duration_since(self.started);
        if thread::seeded_index().is_some() {
            // Under the seeded scheduler, time passes only while threads wait.
            return Took { time: whole, away: Some(whole) };
        }
        match self.before.zip(self.before.and_then(|_| Usage::now())) {
            Some((before, after)) => took(whole, before, after),
            None => Took { time: whole, away: None },
        }
    }
}

fn took(whole: Duration, before: Usage, after: Usage) -> Took {
    let computed = after.computed.saturating_sub(before.computed).min(whole);
    if after.waits == before.waits {
        return Took { time: computed, away: Some(Duration::ZERO) };
    }
    Took { time: whole, away: Some(whole - computed) }
}

impl Usage {
    /// Reads the counters of this thread.
    #[expect(unsafe_code, reason = "rustix has no name for this call")]
    fn now() -> Option<Self> {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: the call writes all of the structure, or fails.
        let usage = unsafe {
            if libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) != 0 {
                return None;
            }
            usage.assume_init()
        };
        let time = |time: libc::timeval| {
            let micros = time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_usec);
            Duration::from_micros(u64::try_from(micros).unwrap_or(0))
        };
        let waits = u64::try_from(usage.ru_nvcsw).unwrap_or(0);
        Some(Self { computed: time(usage.ru_utime) + time(usage.ru_stime), waits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn usage(micros: u64, waits: u64) -> Usage {
        Usage { computed: Duration::from_micros(micros), waits }
    }

    /// Preempted time is not counted, and time spent waiting is counted.
    #[test]
    fn only_own_time_is_counted() {
        let whole = Duration::from_micros(3000);
        let kept = took(whole, usage(100, 7), usage(120, 7));
        assert_eq!(kept, Took { time: Duration::from_micros(20), away: Some(Duration::ZERO) });
        let waited = took(whole, usage(100, 7), usage(120, 8));
        assert_eq!(waited, Took { time: whole, away: Some(Duration::from_micros(2980)) });
        let short = took(Duration::from_micros(5), usage(100, 7), usage(120, 7));
        assert_eq!(short.time, Duration::from_micros(5));
    }

    /// The kernel counts a wait of this thread.
    #[test]
    fn waits_are_counted() {
        let watch = Stopwatch::start(true);
        std::thread::sleep(Duration::from_millis(3));
        let took = watch.until(clock::now());
        assert!(took.time >= Duration::from_millis(3), "{took:?}");
        assert!(took.away.is_some_and(|away| away > Duration::ZERO), "{took:?}");
        assert_eq!(Stopwatch::start(false).until(clock::now()).away, None);
    }
}
