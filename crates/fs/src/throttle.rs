//! Limits the rate at which writers dirty memory. Less free memory means a lower rate, but the rate
//! is never zero.
//!
//! # Invariants
//!
//! - **H1** Below half of the limit no writer is delayed.
//! - **H2** All writers share one clock. Their total rate follows from the amount of dirty data,
//!   for any number of writers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_data::Written;

/// The longest delay of one write. Longer delays would be wrong, because the amount of dirty data
/// changes meanwhile.
const HOLD_MAX: Duration = Duration::from_millis(100);

/// A shorter delay is added to the next delay.
const HOLD_MIN: Duration = Duration::from_micros(200);

/// How often the rate is measured.
const SAMPLE: Duration = Duration::from_millis(50);

/// One clock for all writers. It admits the writers one after the other (H2).
#[derive(Debug)]
struct Queue {
    start: Instant,
    /// The moment until which the admitted writes use up the allowed rate, in nanoseconds from the
    /// start.
    taken_until: AtomicU64,
}

impl Default for Queue {
    fn default() -> Self {
        Self { start: clock::now(), taken_until: AtomicU64::new(0) }
    }
}

impl Queue {
    fn now(&self) -> u64 {
        clock::since(self.start).as_nanos() as u64
    }

    /// Admits a write that takes `fills` nanoseconds at the allowed rate, and returns its delay.
    fn enter(&self, now: u64, fills: u64) -> Duration {
        let max = HOLD_MAX.as_nanos() as u64;
        let next = |until: u64| until.clamp(now, now + max).saturating_add(fills);
        let before = self
            .taken_until
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| Some(next(until)));
        let delay = Duration::from_nanos((next(before.unwrap_or(now)) - now).min(max));
        if delay < HOLD_MIN { Duration::ZERO } else { delay }
    }
}

/// Delays the writers of a mount by the amount of dirty data.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    queue: Queue,
    /// Bytes written back since the mount.
    drained: AtomicU64,
    /// `drained` at the last sample, the time of that sample, and the measured rate.
    sampled: AtomicU64,
    sampled_at: AtomicU64,
    rate: AtomicU64,
    /// The part of the time of a batch that the devices take, in thousandths.
    device_share: AtomicU64,
}

impl Throttle {
    /// Counts a batch of writeback that took `took`, and measures the rate of writeback from the
    /// batch. Only time spent writing counts. `more_waits` tells whether more data waits, so that
    /// writing goes on after this batch.
    pub(crate) fn note_written(&self, written: &Written, took: Duration, more_waits: bool) {
        self.note_at(self.queue.now(), written, took, more_waits);
    }

    fn note_at(&self, now: u64, written: &Written, took: Duration, more_waits: bool) {
        let took = (took.as_nanos() as u64).max(1);
        if more_waits && written.bytes > 0 {
            let share = (written.device.as_nanos() as u64).saturating_mul(1000) / took;
            let old = self.device_share.load(Ordering::Relaxed);
            let mean = (old * 3 + share.min(1000)) / 4;
            self.device_share.store(mean, Ordering::Relaxed);
        }
        let drained = self.drained.fetch_add(written.bytes, Ordering::Relaxed) + written.bytes;
        let since = self.sampled_at.load(Ordering::Relaxed);
        let elapsed = now.saturating_sub(since);
        if elapsed < SAMPLE.as_nanos() as u64 {
            return;
        }
        if self
            .sampled_at
            .compare_exchange(since, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        let before = self.sampled.swap(drained, Ordering::Relaxed);
        if !more_waits {
            return;
        }
        // Other threads may have written during this batch, so the rate is that of all data since
        // the last sample. After a pause, only this batch counts.
        let was_at_it = elapsed < took.saturating_add(4 * SAMPLE.as_nanos() as u64);
        let (bytes, nanos) = match was_at_it {
            true => (drained.saturating_sub(before), elapsed),
            false => (written.bytes, took.max(SAMPLE.as_nanos() as u64)),
        };
        let rate = bytes as f64 * 1e9 / nanos as f64;
        let old = self.rate.load(Ordering::Relaxed) as f64;
        let mean = if old > 0.0 { old + (rate - old) / 4.0 } else { rate };
        self.rate.store(mean as u64, Ordering::Relaxed);
    }

    /// Whether writeback waits for devices more than for processors.
    pub(crate) fn waits_for_devices(&self) -> bool {
        self.device_share.load(Ordering::Relaxed) > 500
    }

    /// The measured rate of writeback in bytes a second; zero before the first sample.
    pub(crate) fn rate(&self) -> u64 {
        self.rate.load(Ordering::Relaxed)
    }

    /// The delay of a writer that has just made `bytes` dirty.
    pub(crate) fn delay(&self, bytes: u64, dirty: u64, limit: u64) -> Duration {
        self.delay_at(self.queue.now(), bytes, dirty, limit)
    }

    fn delay_at(&self, now: u64, bytes: u64, dirty: u64, limit: u64) -> Duration {
        let rate = self.rate();
        let soft = limit / 2;
        if rate == 0 || dirty <= soft {
            return Duration::ZERO;
        }
        // At half of the limit, the allowed rate is four times the rate of writeback. At the limit,
        // the allowed rate is a quarter of the rate of writeback.
        let full = ((dirty - soft) as f64 / (limit - soft).max(1) as f64).min(1.0);
        let allowed = rate as f64 * 4.0_f64.powf(1.0 - 2.0 * full);
        self.queue.enter(now, (bytes as f64 / allowed * 1e9) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn throttle(rate: u64) -> Throttle {
        let throttle = Throttle::default();
        throttle.rate.store(rate, Ordering::Relaxed);
        throttle
    }

    /// A batch that takes long shows the rate of the device, both after an idle time and beside
    /// other batches.
    #[test]
    fn slow_batches_show_the_rate() {
        let throttle = Throttle::default();
        let second = 1_000_000_000;
        let written = Written { files: 1, bytes: 16 * MIB, device: Duration::from_millis(900) };
        let took = Duration::from_secs(1);
        throttle.note_at(100 * second, &written, took, true);
        assert_eq!(throttle.rate(), 16 * MIB);
        // Batches of four threads, which end one after the other.
        for quarter in 1..80 {
            throttle.note_at(100 * second + quarter * second / 4, &written, took, true);
        }
        let rate = throttle.rate();
        assert!((60 * MIB..=64 * MIB).contains(&rate), "{} MiB/s", rate / MIB);
        assert!(throttle.waits_for_devices());
        // The last batch does not show the rate, since no more data waits.
        throttle.note_at(121 * second, &Written { bytes: 1, ..written }, took, false);
        assert_eq!(throttle.rate(), rate);
    }

    /// H1: no writer is delayed below half of the limit, nor before a rate is known.
    #[test]
    fn below_half_is_free() {
        assert_eq!(throttle(MIB).delay(MIB, 64 * MIB, 128 * MIB), Duration::ZERO);
        assert_eq!(throttle(0).delay(MIB, 128 * MIB, 128 * MIB), Duration::ZERO);
    }

    /// H2: writers reach a balance below the limit, at the rate of writeback. This holds for one
    /// writer and for sixteen.
    #[test]
    fn writers_settle_at_the_rate_of_writeback() {
        for writers in [1, 4, 16] {
            let (rate, limit) = (100 * MIB, 128 * MIB);
            let throttle = throttle(rate);
            let mut wakes = vec![0_u64; writers];
            let (mut dirty, mut highest, mut let_in) = (0_u64, 0, 0_u64);
            let step = 100_000;
            for now in (0..4_000_000_000_u64).step_by(step) {
                dirty = dirty.saturating_sub(rate * step as u64 / 1_000_000_000);
                for wake in &mut wakes {
                    while *wake <= now {
                        dirty += 64 << 10;
                        let_in += u64::from(now > 2_000_000_000) * (64 << 10);
                        let delay = throttle.delay_at(now, 64 << 10, dirty, limit);
                        // Copying takes time, too.
                        *wake = (*wake).max(now) + 20_000 + delay.as_nanos() as u64;
                    }
                }
                highest = highest.max(dirty);
            }
            assert!(highest < limit, "{writers}: {} MiB", highest / MIB);
            let seen = let_in / 2;
            assert!(
                seen > rate * 9 / 10 && seen < rate * 11 / 10,
                "{writers}: {} MiB/s",
                seen / MIB
            );
        }
    }
}
