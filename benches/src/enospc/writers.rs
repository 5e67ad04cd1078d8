//! Threads that write small blocks at random places until the time is over, where no file stands between.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use buttress_base::{AlignedBuf, clock, thread};

use super::{BLOCK, Enospc, MIB, SAMPLE};
use crate::{fio::Seen, work::is_measured};

/// Writes a block of a job at an offset.
type Write<'w> = dyn Fn(usize, u64, &[u8]) -> Result<(), String> + Sync + 'w;

impl Enospc {
    /// Lets the jobs write for so long. What the processors spend is not looked at.
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
            let mut rates = Vec::new();
            let start = clock::now();
            let mut before = 0;
            while is_measured(start, time, &done) {
                thread::sleep(SAMPLE);
                let now = done.load(Ordering::Relaxed);
                rates.push((now - before) as f64 / SAMPLE.as_secs_f64());
                before = now;
            }
            let seconds = clock::since(start).as_secs_f64();
            stop.store(true, Ordering::Relaxed);
            let mut times = Vec::new();
            for thread in threads {
                times.extend(thread.join().map_err(|_| "a job panicked".to_string())??);
            }
            times.sort_by(f32::total_cmp);
            Ok(summary(before as f64, seconds, &times, rates))
        })
    }
}

/// What was seen, by times that are sorted.
fn summary(bytes: f64, seconds: f64, times: &[f32], rates: Vec<f64>) -> Seen {
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
        rates,
        spent: 0.0,
    }
}
