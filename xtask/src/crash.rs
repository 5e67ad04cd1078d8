//! Searches for failures: runs the tests of [`SUITE`], round after round with new seeds, until the
//! time is over.
//!
//! # What must hold
//!
//! - Every job has its share of the time, and at least one round, however short the time is. With
//!   `--on-time`, no round begins when the time is over, and a search from another first round
//!   begins with other jobs.
//! - A round that fails is printed with the command that runs it again. The search goes on. At its
//!   end the exit code reports the failure.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::programs::Programs;
use crate::round::{self, Counts, Failure};
use crate::suite::{Job, SUITE, What};

/// How long to search, and where to begin.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Minutes to search for; fractions are allowed.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// The first round. Round zero has the seeds that the tests use by default. A round has the
    /// same seeds each time.
    #[arg(long, default_value_t = 1)]
    first_round: u64,
    /// Only jobs with this in the name; may be given several times.
    #[arg(long)]
    only: Vec<String>,
    /// Leave out jobs that do not begin within the time, instead of running each once.
    #[arg(long)]
    on_time: bool,
    /// Also run the targets of the fuzzer; needs nightly.
    #[arg(long)]
    fuzz: bool,
    /// Leave out jobs that mount.
    #[arg(long)]
    no_mounts: bool,
    /// How many rounds run side by side. The default is one for each processor.
    #[arg(long)]
    jobs: Option<usize>,
    /// Build with the optimisations of a release and the checks of a debug build.
    #[arg(long)]
    optimized: bool,
    /// Print the table as JSON.
    #[arg(long)]
    json: bool,
    /// List the jobs and end.
    #[arg(long)]
    list: bool,
}

/// The limits for a round of a job that accepts a duration.
const SLICE_MIN: Duration = Duration::from_secs(2);
const SLICE_MAX: Duration = Duration::from_secs(60);

/// The results of a job.
#[derive(Clone, Debug, Default, Serialize)]
struct Tally {
    rounds: u64,
    seconds: f64,
    counts: Counts,
    failures: Vec<Failure>,
    #[serde(skip)]
    running: u32,
}

#[derive(Serialize)]
struct Report<'a> {
    seconds: f64,
    found: usize,
    totals: BTreeMap<&'a str, u64>,
    jobs: Vec<Line<'a>>,
}

/// A job in the report.
#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    #[serde(flatten)]
    tally: &'a Tally,
}

struct Search<'a> {
    jobs: Vec<&'a Job>,
    programs: Programs,
    tallies: Mutex<Vec<Tally>>,
    first_round: u64,
    until: Instant,
    optimized: bool,
    on_time: bool,
    /// The duration of a round, for jobs that accept one.
    slice: Duration,
}

/// Runs the search.
pub(crate) fn run(options: &Options) -> ExitCode {
    let wanted = |job: &&Job| {
        (options.only.is_empty()
            || options.only.iter().any(|only| job.name.contains(only.as_str())))
            && (options.fuzz || !matches!(job.what, What::Fuzz { .. }))
            && !(options.no_mounts && job.mounts)
    };
    let jobs: Vec<_> = SUITE.iter().filter(wanted).collect();
    if options.list {
        list(&jobs, options.json);
        return ExitCode::SUCCESS;
    }
    if jobs.is_empty() {
        eprintln!("no job has such a name; --list shows them");
        return ExitCode::FAILURE;
    }
    if !(options.minutes.is_finite() && options.minutes > 0.0) {
        eprintln!("--minutes wants a number above zero");
        return ExitCode::FAILURE;
    }
    eprintln!("building the tests");
    let programs = match Programs::build(&jobs, options.optimized) {
        Ok(programs) => programs,
        Err(what) => {
            eprintln!("{what}");
            return ExitCode::FAILURE;
        }
    };
    let began = Instant::now();
    let time = Duration::from_secs_f64((options.minutes * 60.0).clamp(1.0, 1e9));
    let tallies = Mutex::new(vec![Tally::default(); jobs.len()]);
    let (first_round, until) = (options.first_round, began + time);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = options.jobs.unwrap_or(cores).max(1);
    let shares: u32 = jobs.iter().map(|job| job.share).sum();
    let slice = time.mul_f64(workers as f64 / f64::from(shares)).clamp(SLICE_MIN, SLICE_MAX);
    let (optimized, on_time) = (options.optimized, options.on_time);
    let search = Search { jobs, programs, tallies, first_round, until, optimized, on_time, slice };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(|| search.work())).collect();
        let shows = scope.spawn(|| search.show(began, time, &over));
        for worker in workers {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        over.store(true, Ordering::Relaxed);
        shows.thread().unpark();
    });
    search.report(began.elapsed(), options.json)
}

fn list(jobs: &[&Job], json: bool) {
    let tests = |job: &Job| match job.what {
        What::Tests { package, filters } => (package, filters.join(" ")),
        What::Fuzz { .. } => ("fuzz", job.name.to_owned()),
    };
    if json {
        let lines: Vec<_> = jobs
            .iter()
            .map(|job| {
                let (package, tests) = tests(job);
                let (name, share, mounts) = (job.name, job.share, job.mounts);
                serde_json::json!({
                    "name": name, "package": package, "tests": tests, "share": share, "mounts": mounts,
                })
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&lines).expect("plain data"));
        return;
    }
    println!("{:<30} {:>5}  tests", "job", "share");
    for job in jobs {
        let (package, tests) = tests(job);
        println!("{:<30} {:>5}  {package} {tests}", job.name, job.share);
    }
}

impl Search<'_> {
    fn tallies(&self) -> std::sync::MutexGuard<'_, Vec<Tally>> {
        self.tallies.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the job that is the furthest behind its share, and its next round.
    fn next(&self) -> Option<(usize, u64)> {
        let is_over = Instant::now() >= self.until;
        let mut tallies = self.tallies();
        let behind = |index: &usize| {
            let (tally, job) = (&tallies[*index], self.jobs[*index]);
            // A running round counts as some seconds, so that the workers do not all begin with the
            // same job.
            let seconds = tally.seconds + 5.0 * f64::from(tally.running);
            (seconds * 1000.0) as u64 / u64::from(job.share)
        };
        let must = |index: &usize| tallies[*index].rounds == 0 && !self.on_time;
        let count = self.jobs.len();
        // Among jobs that are equally far behind, each search begins with another job.
        let begin = (self.first_round % count as u64) as usize;
        let all = (0..count).map(|index| (begin + index) % count);
        let next = all.filter(|index| !is_over || must(index)).min_by_key(behind)?;
        let tally = &mut tallies[next];
        let round = self.first_round + tally.rounds;
        tally.rounds += 1;
        tally.running += 1;
        Some((next, round))
    }

    fn work(&self) {
        while let Some((index, round)) = self.next() {
            let job = self.jobs[index];
            let began = Instant::now();
            let program = self.programs.of(job);
            let (counts, failure) =
                round::run(job, round, program.as_deref(), self.optimized, self.slice);
            let mut tallies = self.tallies();
            let tally = &mut tallies[index];
            tally.running -= 1;
            tally.seconds += began.elapsed().as_secs_f64();
            for (what, number) in counts {
                *tally.counts.entry(what).or_default() += number;
            }
            if let Some(failure) = failure {
                eprintln!("\nFOUND in round {round} of {}:\n{}", job.name, failure.said);
                eprintln!("again: {}", failure.again);
                tally.failures.push(failure);
            }
        }
    }

    fn totals(tallies: &[Tally]) -> BTreeMap<&str, u64> {
        let mut totals = BTreeMap::new();
        for (what, number) in tallies.iter().flat_map(|tally| &tally.counts) {
            *totals.entry(what.as_str()).or_default() += number;
        }
        totals
    }

    /// Shows a line with the progress of the search.
    fn show(&self, began: Instant, time: Duration, over: &AtomicBool) {
        let is_terminal = std::io::stderr().is_terminal();
        let pause = Duration::from_secs(if is_terminal { 1 } else { 60 });
        while !over.load(Ordering::Relaxed) {
            std::thread::park_timeout(pause);
            let tallies = self.tallies();
            let rounds: u64 = tallies.iter().map(|tally| tally.rounds).sum();
            let found: usize = tallies.iter().map(|tally| tally.failures.len()).sum();
            let (spent, whole) = (began.elapsed().as_secs(), time.as_secs());
            let counts = shown(Self::totals(&tallies));
            let line = format!("{spent}/{whole} s, {rounds} rounds, {counts}, {found} found");
            match is_terminal {
                true => eprint!("\r\x1b[K{line}"),
                false => eprintln!("{line}"),
            }
        }
        if is_terminal {
            eprintln!();
        }
    }

    fn report(&self, took: Duration, json: bool) -> ExitCode {
        let tallies = self.tallies();
        let found: usize = tallies.iter().map(|tally| tally.failures.len()).sum();
        let lines = self.jobs.iter().zip(tallies.iter());
        if json {
            let jobs = lines.map(|(job, tally)| Line { name: job.name, tally }).collect();
            let (seconds, totals) = (took.as_secs_f64(), Self::totals(&tallies));
            let report = Report { seconds, found, totals, jobs };
            println!("{}", serde_json::to_string_pretty(&report).expect("plain data"));
        } else {
            println!("{:<30} {:>6} {:>8} {:>6}  seen", "job", "rounds", "seconds", "found");
            let row = |name: &str, rounds: u64, seconds: f64, found: usize, seen: String| {
                println!("{name:<30} {rounds:>6} {seconds:>8.1} {found:>6}  {seen}");
            };
            let mut rounds = 0;
            for (job, tally) in lines {
                let seen = shown(tally.counts.iter().map(|(what, n)| (what.as_str(), *n)));
                row(job.name, tally.rounds, tally.seconds, tally.failures.len(), seen);
                rounds += tally.rounds;
            }
            let seen = shown(Self::totals(&tallies));
            row("all", rounds, took.as_secs_f64(), found, seen);
            for failure in tallies.iter().flat_map(|tally| &tally.failures) {
                println!("again: {}", failure.again);
            }
        }
        if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// "12 faults, 300 states".
fn shown<'a>(counts: impl IntoIterator<Item = (&'a str, u64)>) -> String {
    let parts = counts.into_iter().map(|(what, number)| format!("{number} {what}"));
    parts.collect::<Vec<_>>().join(", ")
}
