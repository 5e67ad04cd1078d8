//! What a program in front of a cache notices of a flush of everything: latencies of 4 KiB requests while
//! nothing happens, and while millions of blocks are written back. And how writes scale with threads.
//!
//! The devices take no time: what is measured is the cache itself, its locks and its threads.

use std::fmt::Write as _;
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
/// Each has a place of its own.
pub const THREADS_MAX: u64 = 64;
const IDLE: Duration = Duration::from_secs(3);

/// Runs it with so many cached blocks, and writes by so many threads. `say` is told what is being done.
///
/// # Errors
///
/// What stopped it, in words.
pub fn run(blocks: u64, threads: &[u64], say: &mut dyn FnMut(&str)) -> Result<Value, String> {
    measure(blocks, threads, say).map_err(|error| error.to_string())
}

/// The figures for people.
#[must_use]
pub fn table(value: &Value) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let mut text = format!(
        "{} blocks of 4 KiB cached in {:.1} s, flushed in {:.1} s\n\n\
         latency, us        requests      p50      p99     p999       max\n",
        value["blocks"],
        number(&value["blocks"]) / number(&value["fill_blocks_per_second"]),
        number(&value["flush_seconds"]),
    );
    for (what, name) in [("idle", "idle_us"), ("during the flush", "flushing_us")] {
        let row = &value[name];
        // Into a string: nothing can fail.
        let _ = writeln!(
            text,
            "{what:<18}{:>9}{:>9.1}{:>9.1}{:>9.1}{:>10.1}",
            row["requests"],
            number(&row["p50"]),
            number(&row["p99"]),
            number(&row["p999"]),
            number(&row["max"]),
        );
    }
    let _ = writeln!(
        text,
        "p99 during the flush: {:.2} times idle\n",
        number(&value["p99_times_idle"])
    );
    let _ = writeln!(text, "threads    writes/s");
    for row in value["scaling"].as_array().into_iter().flatten() {
        let _ = writeln!(text, "{:>7}{:>12.0}", row["threads"], number(&row["writes_per_second"]));
    }
    text
}

fn measure(
    blocks: u64,
    threads: &[u64],
    say: &mut dyn FnMut(&str),
) -> Result<Value, Box<dyn std::error::Error>> {
    let slots = blocks + 4 * HOT;
    let front = (HEADER_LEN as u64 + slots * ENTRY_LEN as u64).next_multiple_of(BLOCK);
    let memory = Arc::new(Forgetful::new(front, front + slots * BLOCK));
    format(Arc::clone(&memory) as _, None, BLOCK as u32, 0, false)?;
    let origin = Arc::new(Forgetful::new(0, (blocks + 4 * HOT) * BLOCK));
    let list = "high_watermark=100,low_watermark=99";
    let cached = CacheDevice::open(origin, memory, CacheOptions::parse(list)?)?;
    say(&format!("filling the cache with {blocks} blocks"));
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
    say("flushing it");
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
    let mut scaling = Vec::new();
    for &threads in threads {
        say(&format!("writes by {threads} threads"));
        let rate = scale(&cached, hot, threads)?;
        scaling.push(json!({ "threads": threads, "writes_per_second": rate }));
    }
    let (idle, busy) = (latencies(&mut idle), latencies(&mut busy));
    let p99 = |row: &Value| row["p99"].as_f64().unwrap_or(f64::NAN);
    Ok(json!({
        "blocks": blocks,
        "fill_blocks_per_second": blocks as f64 / filled.as_secs_f64(),
        "flush_seconds": flushed.1.as_secs_f64(),
        "flush_blocks": flushed.0,
        "p99_times_idle": p99(&busy) / p99(&idle),
        "idle_us": idle,
        "flushing_us": busy,
        "scaling": scaling,
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
                let at = (thread * HOT / threads + rng.below(HOT / threads)) * BLOCK;
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
