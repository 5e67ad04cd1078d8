//! The times of operations, counted in classes that differ by an eighth. One more operation costs
//! nanoseconds and no memory.

use std::time::Duration;

use buttress_base::clock;

/// The number of classes in an octave.
const STEPS: u32 = 8;
const CLASSES: usize = (u64::BITS * STEPS) as usize;

/// The times of one thread, or of several threads together.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Box<[u64; CLASSES]>);

impl Default for Latencies {
    fn default() -> Self {
        Self(Box::new([0; CLASSES]))
    }
}

/// The class of a time: its octave, and the eighth within the octave.
fn class(nanos: u64) -> usize {
    let nanos = nanos.max(u64::from(STEPS));
    let octave = nanos.ilog2();
    let eighth = (nanos >> (octave - STEPS.ilog2())) as u32 - STEPS;
    (octave * STEPS + eighth) as usize
}

/// The longest time of a class.
fn longest(class: usize) -> u64 {
    let (octave, eighth) = (class as u32 / STEPS, u64::from(class as u32 % STEPS));
    let unit = 1_u64 << octave.saturating_sub(STEPS.ilog2());
    ((u64::from(STEPS) + eighth + 1) * unit).saturating_sub(1)
}

impl Latencies {
    pub(crate) fn add(&mut self, took: Duration) {
        self.0[class(took.as_nanos() as u64)] += 1;
    }

    /// Does something, and counts how long it took.
    pub(crate) fn time<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let start = clock::now();
        let done = work();
        self.add(clock::since(start));
        done
    }

    pub(crate) fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0.iter()).for_each(|(own, theirs)| *own += theirs);
    }

    /// The time that this share of the operations did not exceed. The result is at most an eighth
    /// too long.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let all: u64 = self.0.iter().sum();
        let mut left = (all as f64 * share).ceil() as u64;
        for (class, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            left = left.saturating_sub(*count);
            if left == 0 {
                return Duration::from_nanos(longest(class));
            }
        }
        Duration::ZERO
    }

    /// The time that 99 % of the operations did not exceed, in microseconds.
    pub(crate) fn p99(&self) -> f64 {
        self.quantile(0.99).as_secs_f64() * 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quantiles are those of the sorted times, an eighth too long at most.
    #[test]
    fn agrees_with_sorting() {
        let mut rng = buttress_base::Rng::new(1);
        let mut draw = || {
            let most = 1 << (8 + rng.below(30));
            rng.below(most)
        };
        let mut times: Vec<u64> = (0..5000).map(|_| draw()).collect();
        let (mut one, mut other) = (Latencies::default(), Latencies::default());
        for (n, nanos) in times.iter().enumerate() {
            let half = if n % 2 == 0 { &mut one } else { &mut other };
            half.add(Duration::from_nanos(*nanos));
        }
        one.join(&other);
        times.sort_unstable();
        for share in [0.01, 0.5, 0.99, 0.999, 1.0] {
            let exact = times[((5000.0 * share) as usize).max(1) - 1].max(u64::from(STEPS));
            let found = one.quantile(share).as_nanos() as u64;
            assert!((exact..=exact + exact / 8).contains(&found), "{share}: {found}, {exact}");
        }
    }
}
