//! Threads that write small blocks at random places until the time is over, without a mount in
//! between.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use buttress_base::{AlignedBuf, clock, thread};

use super::{BLOCK, CLOSE, Enospc, MIB, SAMPLE};
use crate::{fio::Seen, work::is_measured};

/// Writes a block of a job at an offset.
type Write<'w> = dyn Fn(usize, u64, &[u8]) -> Result<(), String> + Sync + 'w;

impl Enospc {
    /// Lets the jobs write for `time`. Processor time is not measured.
    pub(super) fn write(&self, time: Duration, write: &Write<'_>) -> Result<Seen, String> {
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let blocks = self.mib * MIB / BLOCK as u64;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.jobs)
                .map(|job| {
                    let (stop, done) = (&stop, &done);
                    scope.spawn(move || {
                        let mut state = job as u64 * 2 + 1;
                        let mut times = Vec::new();
                        let mut data = AlignedBuf::copy_of(&[job as u8; BLOCK]);
                        while !stop.load(Ordering::Relaxed) {
                            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            data[..8].copy_from_slice(&state.to_le_bytes());
                            let at = (state >> 33) % blocks * BLOCK as u64;
                            let start = clock::now();
                            write(job, at, &data)?;
                            times.push(clock::since(start).as_secs_f32());
                            done.fetch_add(BLOCK as u64, Ordering::Relaxed);
                        }
                        Ok::<_, String>(times)
                    })
                })
                .collect();
            let mut looks = vec![(0.0, 0.0)];
            let start = clock::now();
            while is_measured(start, time, &done) {
                thread::sleep(CLOSE);
                let now = done.load(Ordering::Relaxed) as f64;
                looks.push((clock::since(start).as_secs_f64(), now));
            }
            let (seconds, bytes) = looks[looks.len() - 1];
            stop.store(true, Ordering::Relaxed);
            let mut times = Vec::new();
            for thread in threads {
                times.extend(thread.join().map_err(|_| "a job panicked".to_string())??);
            }
            times.sort_by(f32::total_cmp);
            let close = rates(&looks, CLOSE);
            Ok(Seen { rates: rates(&looks, SAMPLE), close, ..summary(bytes, seconds, &times) })
        })
    }
}

/// The summary of a measurement, from sorted times.
fn summary(bytes: f64, seconds: f64, times: &[f32]) -> Seen {
    let quantile = |share: f64| {
        let at = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
        times.get(at).copied().map_or(0.0, f64::from)
    };
    let sum: f64 = times.iter().copied().map(f64::from).sum();
    Seen {
        bytes,
        seconds,
        mean: sum / times.len().max(1) as f64,
        p50: quantile(0.5),
        p99: quantile(0.99),
        p999: quantile(0.999),
        longest: quantile(1.0),
        ..Seen::default()
    }
}

/// Rates in steps of equal length, from samples of the work done so far. A sample may be late.
fn rates(looks: &[(f64, f64)], step: Duration) -> Vec<f64> {
    let step = step.as_secs_f64();
    let over = looks.last().map_or(0.0, |(at, _)| *at);
    let (mut rates, mut next, mut before) = (Vec::new(), 1, 0.0);
    for index in 1..=(over / step) as usize {
        let end = index as f64 * step;
        while next + 1 < looks.len() && looks[next].0 < end {
            next += 1;
        }
        let ((from, low), (to, high)) = (looks[next - 1], looks[next]);
        let done = low + (high - low) * (end - from) / (to - from).max(f64::MIN_POSITIVE);
        rates.push((done - before) / step);
        before = done;
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A late sample moves only the work between two samples from one step to another.
    #[test]
    fn late_looks_make_even_steps() {
        let looks = [(0.0, 0.0), (0.1, 10.0), (0.25, 25.0), (0.3, 25.0), (0.42, 49.0)];
        let found = rates(&looks, Duration::from_millis(100));
        let wanted = [100.0, 100.0, 50.0, 200.0];
        assert_eq!(found.len(), wanted.len(), "{found:?}");
        assert!(found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
    }
}
