//! The effect of a flush of a whole cache on a program that uses the cache. Measures latencies of 4
//! KiB requests on an idle cache, and while millions of blocks are written back. Also measures how
//! writes scale with threads.
//!
//! The devices take no time, so the experiment measures only the cache, its locks and its threads.

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
/// Blocks that the foreground uses, besides the blocks that are flushed.
const HOT: u64 = 100_000;
/// The distance between successive scattered blocks, a prime.
const STEP: u64 = 15_485_863;
/// The most threads. Each thread has a place of its own.
pub const THREADS_MAX: u64 = 64;
const IDLE: Duration = Duration::from_secs(2);

/// The plan of the experiment.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// Blocks to be cached and flushed.
    pub blocks: u64,
    /// Whether blocks are written in random order, so that neighbours on the origin lie apart in
    /// the cache.
    pub scattered: bool,
    /// The number of runs, each after an idle time. Medians are shown.
    pub runs: usize,
    /// The numbers of writer threads in the second part.
    pub threads: &'a [u64],
}

/// Runs the experiment. `say` gets messages about the progress.
///
/// # Errors
///
/// The cause of the failure, in words.
pub fn run(plan: &Plan<'_>, say: &mut dyn FnMut(&str)) -> Result<Value, String> {
    measure(plan, say).map_err(|error| error.to_string())
}

/// The figures as text.
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
        // Writing into a string cannot fail.
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
        "p99 during the flush: {:.2} times idle (median of {})\n",
        number(&value["p99_times_idle"]),
        each(&value["p99_times_idle_of_runs"]),
    );
    let _ = writeln!(text, "threads    writes/s");
    for row in value["scaling"].as_array().into_iter().flatten() {
        let _ = writeln!(text, "{:>7}{:>12.0}", row["threads"], number(&row["writes_per_second"]));
    }
    text
}

fn each(list: &Value) -> String {
    let all = list.as_array().into_iter().flatten().filter_map(Value::as_f64);
    all.map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(", ")
}

fn measure(
    plan: &Plan<'_>,
    say: &mut dyn FnMut(&str),
) -> Result<Value, Box<dyn std::error::Error>> {
    let &Plan { blocks, scattered, runs, threads } = plan;
    let slots = blocks + 4 * HOT;
    let front = (HEADER_LEN as u64 + slots * ENTRY_LEN as u64).next_multiple_of(BLOCK);
    let memory = Arc::new(Forgetful::new(front, front + slots * BLOCK));
    format(Arc::clone(&memory) as _, None, BLOCK as u32, 0, false)?;
    let origin = Arc::new(Forgetful::new(0, (blocks + 4 * HOT) * BLOCK));
    let list = "high_watermark=100,low_watermark=99";
    let cached = CacheDevice::open(origin, memory, CacheOptions::parse(list)?)?;
    let rounds = (1..=runs).map(|run| round(&cached, plan, &format!(" ({run} of {runs})"), say));
    let rounds = rounds.collect::<Result<Vec<_>, _>>()?;
    let hot = blocks * BLOCK;
    let mut scaling = Vec::new();
    for &threads in threads {
        say(&format!("writes by {threads} threads"));
        let rate = scale(&cached, hot, threads)?;
        scaling.push(json!({ "threads": threads, "writes_per_second": rate }));
    }
    let of_all = |figure: &dyn Fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
    let row = |pick: fn(&Round) -> &Latencies| {
        let all = || rounds.iter().map(pick);
        json!({
            "requests": all().map(|row| row.requests).sum::<usize>(),
            "p50": of_all(&|round| pick(round).p50),
            "p99": of_all(&|round| pick(round).p99),
            "p999": of_all(&|round| pick(round).p999),
            "max": all().map(|row| row.max).fold(0.0, f64::max),
        })
    };
    let times = |round: &Round| round.flushing.p99 / round.idle.p99;
    Ok(json!({
        "blocks": blocks,
        "scattered": scattered,
        "fill_blocks_per_second": blocks as f64 / of_all(&|round| round.fill_seconds),
        "flush_seconds": of_all(&|round| round.flush_seconds),
        "flush_blocks": rounds.iter().map(|round| round.flush_blocks).max(),
        "p99_times_idle": of_all(&times),
        "p99_times_idle_of_runs": rounds.iter().map(times).collect::<Vec<_>>(),
        "idle_us": row(|round| &round.idle),
        "flushing_us": row(|round| &round.flushing),
        "scaling": scaling,
    }))
}

/// The results of one run.
struct Round {
    fill_seconds: f64,
    flush_seconds: f64,
    flush_blocks: u64,
    idle: Latencies,
    flushing: Latencies,
}

/// Fills the cache, and sends requests to the idle cache and during the flush.
fn round(
    cached: &CacheDevice,
    &Plan { blocks, scattered, .. }: &Plan<'_>,
    which: &str,
    say: &mut dyn FnMut(&str),
) -> Result<Round, Box<dyn std::error::Error>> {
    say(&format!("filling the cache with {blocks} blocks{which}"));
    let piece = vec![1; 256 * BLOCK as usize];
    let begin = Instant::now();
    if scattered {
        // Each block comes once, because the step and the number of blocks have no common divisor.
        for block in (0..blocks).map(|count| count * STEP % blocks) {
            cached.write_at(block * BLOCK, &piece[..BLOCK as usize])?;
        }
    } else {
        for at in (0..blocks / 256).map(|piece| piece * 256 * BLOCK) {
            cached.write_at(at, &piece)?;
        }
    }
    let fill_seconds = begin.elapsed().as_secs_f64();
    cached.flush()?;

    let hot = blocks * BLOCK;
    let idle_until = Instant::now() + IDLE;
    let mut idle = requests(cached, hot, &|| Instant::now() < idle_until)?;
    say(&format!("flushing it{which}"));
    let is_flushing = AtomicBool::new(true);
    let (mut busy, (flush_blocks, flush_time)) = std::thread::scope(|scope| {
        let flush = scope.spawn(|| {
            let begin = Instant::now();
            let drained = cached.drain(|_| {});
            is_flushing.store(false, Ordering::SeqCst);
            drained.map(|drained| (drained.blocks, begin.elapsed()))
        });
        let busy = requests(cached, hot, &|| is_flushing.load(Ordering::SeqCst));
        let flushed = flush.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (busy, flushed)
    })
    .into_results()?;
    Ok(Round {
        fill_seconds,
        flush_seconds: flush_time.as_secs_f64(),
        flush_blocks,
        idle: latencies(&mut idle),
        flushing: latencies(&mut busy),
    })
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_unstable_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Joins the results of two threads.
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

/// Sends random reads and writes one at a time. Returns the time of each.
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
        // A real program does other work between requests. Also, the flush must be able to end.
        std::thread::sleep(Duration::from_micros(20));
    }
    Ok(took)
}

/// Returns the random writes a second by `threads` threads, each in a place of its own.
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

/// In microseconds.
struct Latencies {
    requests: usize,
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

fn latencies(took: &mut [Duration]) -> Latencies {
    took.sort_unstable();
    let at = |share: f64| {
        let index = ((took.len() as f64 * share) as usize).min(took.len().saturating_sub(1));
        took.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    };
    Latencies { requests: took.len(), p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0) }
}
