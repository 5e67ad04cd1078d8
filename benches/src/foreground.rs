//! What a program in front of a cache notices of a flush of everything: latencies of 4 KiB requests while
//! nothing happens, and while millions of blocks are written back. And how writes scale with threads.
//!
//! The devices take no time: what is measured is the cache itself, its locks and its threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use buttress_block::Device;
use buttress_cache::layout::{ENTRY_LEN, HEADER_LEN};
use buttress_cache::{CacheDevice, CacheOptions, format};
use serde_json::{Value, json};

use crate::disk::Forgetful;

const BLOCK: u64 = 4096;
/// Blocks that the foreground works on, beside those that are flushed.
const HOT: u64 = 100_000;
const IDLE: Duration = Duration::from_secs(3);

/// Runs it with so many cached blocks.
pub(crate) fn run(blocks: u64) -> Result<Value, String> {
    measure(blocks).map_err(|error| error.to_string())
}

fn measure(blocks: u64) -> Result<Value, Box<dyn std::error::Error>> {
    let slots = blocks + 4 * HOT;
    let front = (HEADER_LEN as u64 + slots * ENTRY_LEN as u64).next_multiple_of(BLOCK);
    let memory = Arc::new(Forgetful::new(front, front + slots * BLOCK));
    format(Arc::clone(&memory) as _, None, BLOCK as u32, 0, false)?;
    let origin = Arc::new(Forgetful::new(0, (blocks + 4 * HOT) * BLOCK));
    let list = "high_watermark=100,low_watermark=99";
    let cached = CacheDevice::open(origin, memory, CacheOptions::parse(list)?)?;
    eprintln!("filling the cache with {blocks} blocks");
    let piece = vec![1; 256 * BLOCK as usize];
    let begin = Instant::now();
    for at in (0..blocks / 256).map(|piece| piece * 256 * BLOCK) {
        cached.write_at(at, &piece)?;
    }
    let filled = begin.elapsed();
    cached.flush()?;

    let hot = blocks * BLOCK;
    let idle_until = Instant::now() + IDLE;
    let mut idle = requests(&cached, hot, &|| Instant::now() < idle_until)?;
    eprintln!("flushing it");
    let is_flushing = AtomicBool::new(true);
    let (mut busy, flushed) = std::thread::scope(|scope| {
        let flush = scope.spawn(|| {
            let begin = Instant::now();
            let drained = cached.drain(|_| {});
            is_flushing.store(false, Ordering::SeqCst);
            drained.map(|drained| (drained.blocks, begin.elapsed()))
        });
        let busy = requests(&cached, hot, &|| is_flushing.load(Ordering::SeqCst));
        let flushed = flush.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (busy, flushed)
    })
    .into_results()?;
    let scaling = [1, 2, 4].map(|threads| scale(&cached, hot, threads));
    let scaling: Result<Vec<f64>, _> = scaling.into_iter().collect();
    Ok(json!({
        "blocks": blocks,
        "fill_blocks_per_second": blocks as f64 / filled.as_secs_f64(),
        "flush_seconds": flushed.1.as_secs_f64(),
        "flush_blocks": flushed.0,
        "idle_us": latencies(&mut idle),
        "flushing_us": latencies(&mut busy),
        "writes_per_second_by_threads": { "1": scaling.as_ref().map_or(0.0, |all| all[0]),
            "2": scaling.as_ref().map_or(0.0, |all| all[1]), "4": scaling.as_ref().map_or(0.0, |all| all[2]) },
    }))
}

/// Two results of a scope as one.
trait IntoResults<A, B> {
    fn into_results(self) -> Result<(A, B), Box<dyn std::error::Error>>;
}

impl<A, B, E: std::error::Error + 'static> IntoResults<A, B>
    for (Result<A, buttress_block::Error>, Result<B, E>)
{
    fn into_results(self) -> Result<(A, B), Box<dyn std::error::Error>> {
        Ok((self.0?, self.1?))
    }
}

/// Random reads and writes one at a time; returns what each took.
fn requests(
    cached: &CacheDevice,
    hot: u64,
    goes_on: &dyn Fn() -> bool,
) -> Result<Vec<Duration>, buttress_block::Error> {
    let mut rng = buttress_base::Rng::new(4);
    let mut buf = [2; BLOCK as usize];
    let mut took = Vec::new();
    while goes_on() {
        let at = hot + rng.below(HOT) * BLOCK;
        let begin = Instant::now();
        if rng.chance(1, 2) {
            cached.write_at(at, &buf)?;
        } else {
            cached.read_at(at, &mut buf)?;
        }
        took.push(begin.elapsed());
        // A program has something else to do in between; and the flush must end some time.
        std::thread::sleep(Duration::from_micros(20));
    }
    Ok(took)
}

/// Random writes a second by so many threads, each in a place of its own.
fn scale(cached: &CacheDevice, hot: u64, threads: u64) -> Result<f64, Box<dyn std::error::Error>> {
    const TIME: Duration = Duration::from_secs(2);
    let write = |thread: u64| -> Result<u64, buttress_block::Error> {
        let mut rng = buttress_base::Rng::new(thread);
        let buf = [3; BLOCK as usize];
        let begin = Instant::now();
        let mut count = 0;
        while begin.elapsed() < TIME {
            for _ in 0..64 {
                let at = (thread * HOT / 4 + rng.below(HOT / 4)) * BLOCK;
                cached.write_at(hot + at, &buf)?;
            }
            count += 64;
        }
        Ok(count)
    };
    let total: Result<u64, _> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || write(thread))).collect();
        all.into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .sum()
    });
    Ok(total? as f64 / TIME.as_secs_f64())
}

fn latencies(took: &mut [Duration]) -> Value {
    took.sort_unstable();
    let at = |share: f64| {
        let index = ((took.len() as f64 * share) as usize).min(took.len().saturating_sub(1));
        took.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    };
    json!({ "requests": took.len(), "p50": at(0.5), "p99": at(0.99), "p999": at(0.999), "max": at(1.0) })
}
