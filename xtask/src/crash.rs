//! One command for all that may go wrong: the tests of [`SUITE`], round after round with new seeds, until the time
//! is over.
//!
//! # What must hold
//!
//! - Every job has its share of the time, and one round at least, however short the time is.
//! - A round that fails is printed with the command that runs it again. The search goes on; the exit code says
//!   that something was found.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::suite::{Job, SUITE};

/// How long, and where to begin.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Minutes to search for; fractions are allowed.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// The first round. Round zero is what the tests do by themselves; the same rounds try the same seeds.
    #[arg(long, default_value_t = 1)]
    first_round: u64,
    /// Only jobs whose name has this in it.
    #[arg(long)]
    only: Option<String>,
    /// Leave out what mounts.
    #[arg(long)]
    no_mounts: bool,
    /// How many rounds run side by side; one a processor if not given.
    #[arg(long)]
    jobs: Option<usize>,
    /// With the optimisations of a release, and the checks of a debug build.
    #[arg(long)]
    optimized: bool,
    /// The table as JSON.
    #[arg(long)]
    json: bool,
    /// List the jobs and end.
    #[arg(long)]
    list: bool,
}

/// What a job came to.
#[derive(Clone, Debug, Default, Serialize)]
struct Tally {
    rounds: u64,
    seconds: f64,
    counts: BTreeMap<String, u64>,
    failures: Vec<Failure>,
    #[serde(skip)]
    running: u32,
}

#[derive(Clone, Debug, Serialize)]
struct Failure {
    round: u64,
    again: String,
    said: String,
}

#[derive(Serialize)]
struct Report<'a> {
    seconds: f64,
    totals: BTreeMap<&'a str, u64>,
    jobs: BTreeMap<&'a str, &'a Tally>,
}

struct Search<'a> {
    jobs: Vec<&'a Job>,
    programs: BTreeMap<String, PathBuf>,
    tallies: Mutex<Vec<Tally>>,
    first_round: u64,
    until: Instant,
    optimized: bool,
}

/// Runs the search.
pub(crate) fn run(options: &Options) -> ExitCode {
    let wanted = |job: &&Job| {
        options.only.as_ref().is_none_or(|only| job.name.contains(only.as_str()))
            && !(options.no_mounts && job.mounts)
    };
    let jobs: Vec<_> = SUITE.iter().filter(wanted).collect();
    if options.list || jobs.is_empty() {
        for job in SUITE {
            println!("{:<30} {} {}", job.name, job.package, job.filters.join(" "));
        }
        return if options.list { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    eprintln!("building the tests");
    let programs = match build(&jobs, options.optimized) {
        Ok(programs) => programs,
        Err(what) => {
            eprintln!("{what}");
            return ExitCode::FAILURE;
        }
    };
    let began = Instant::now();
    let time = Duration::from_secs_f64((options.minutes * 60.0).max(1.0));
    let tallies = Mutex::new(vec![Tally::default(); jobs.len()]);
    let (first_round, until) = (options.first_round, began + time);
    let search =
        Search { jobs, programs, tallies, first_round, until, optimized: options.optimized };
    let over = AtomicBool::new(false);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..options.jobs.unwrap_or(cores).max(1))
            .map(|_| scope.spawn(|| search.work()))
            .collect();
        let shows = scope.spawn(|| search.show(began, time, &over));
        for worker in workers {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        over.store(true, Ordering::Relaxed);
        shows.thread().unpark();
    });
    search.report(began.elapsed(), options.json)
}

/// Builds the tests and says where they are, by package.
fn build(jobs: &[&Job], optimized: bool) -> Result<BTreeMap<String, PathBuf>, String> {
    let mut command = cargo();
    command.args(["test", "--no-run", "--test", "it", "--message-format=json-render-diagnostics"]);
    if optimized {
        command.args(["--profile", "crash"]);
    }
    let mut packages: Vec<_> = jobs.iter().map(|job| job.package).collect();
    packages.sort_unstable();
    packages.dedup();
    for package in &packages {
        command.args(["--package", package]);
    }
    let output = command.stderr(Stdio::inherit()).output().map_err(|e| format!("cargo: {e}"))?;
    if !output.status.success() {
        return Err("the tests do not build".to_owned());
    }
    let mut programs = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let (Some(program), Some(id)) =
            (message["executable"].as_str(), message["package_id"].as_str())
        else {
            continue;
        };
        if message["profile"]["test"].as_bool() != Some(true) {
            continue;
        }
        // "path+file:///.../crates/fs#buttress-fs@0.1.0", or with the folder's name alone.
        let manifest = message["manifest_path"].as_str().unwrap_or_default();
        for package in &packages {
            let folder = package.trim_start_matches("buttress-");
            if id.contains(package) || manifest.ends_with(&format!("/{folder}/Cargo.toml")) {
                programs.insert((*package).to_owned(), PathBuf::from(program));
            }
        }
    }
    Ok(programs)
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

impl Search<'_> {
    fn tallies(&self) -> std::sync::MutexGuard<'_, Vec<Tally>> {
        self.tallies.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Which job is the furthest behind its share, and its next round.
    fn next(&self) -> Option<(usize, u64)> {
        let is_over = Instant::now() >= self.until;
        let mut tallies = self.tallies();
        let behind = |index: &usize| {
            let (tally, job) = (&tallies[*index], self.jobs[*index]);
            // What runs counts as some time, or all workers would begin with the same job.
            let seconds = tally.seconds + 5.0 * f64::from(tally.running);
            (seconds * 1000.0) as u64 / u64::from(job.share)
        };
        let free = (0..self.jobs.len()).filter(|index| !is_over || tallies[*index].rounds == 0);
        let next = free.min_by_key(behind)?;
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
            let outcome = self.round(job, round);
            let mut tallies = self.tallies();
            let tally = &mut tallies[index];
            tally.running -= 1;
            tally.seconds += began.elapsed().as_secs_f64();
            match outcome {
                Ok(counts) => {
                    for (what, number) in counts {
                        *tally.counts.entry(what).or_default() += number;
                    }
                }
                Err(failure) => {
                    eprintln!("\nFOUND in round {round} of {}:\n{}", job.name, failure.said);
                    eprintln!("again: {}", failure.again);
                    tally.failures.push(failure);
                }
            }
        }
    }

    fn round(&self, job: &Job, round: u64) -> Result<BTreeMap<String, u64>, Failure> {
        let profile = if self.optimized { " --profile crash" } else { "" };
        let again = format!(
            "BUTTRESS_ROUND={round} cargo test{profile} --package {} --test it -- {}",
            job.package,
            job.filters.join(" ")
        );
        let failure = |said: String| Failure { round, again: again.clone(), said };
        let Some(program) = self.programs.get(job.package) else {
            return Err(failure("no program was built for it".to_owned()));
        };
        let mut command = Command::new(program);
        command.args(["--nocapture", "--test-threads", "1"]).args(job.filters);
        command.env("BUTTRESS_ROUND", round.to_string()).stdin(Stdio::null());
        let output = command.output().map_err(|e| failure(e.to_string()))?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        if !output.status.success() {
            let lines: Vec<_> = said.lines().filter(|line| !line.trim().is_empty()).collect();
            return Err(failure(lines[lines.len().saturating_sub(60)..].join("\n")));
        }
        if said.contains("running 0 tests") {
            return Err(failure("no test has such a name".to_owned()));
        }
        let mut counts = BTreeMap::new();
        for line in said.lines() {
            // The line may follow "test name ... " of the runner.
            let Some((_, counted)) = line.split_once("BUTTRESS_COUNT ") else { continue };
            let mut words = counted.split(' ');
            while let (Some(what), Some(number)) = (words.next(), words.next()) {
                *counts.entry(what.to_owned()).or_default() += number.parse::<u64>().unwrap_or(0);
            }
        }
        Ok(counts)
    }

    fn totals(tallies: &[Tally]) -> BTreeMap<&str, u64> {
        let mut totals = BTreeMap::new();
        for (what, number) in tallies.iter().flat_map(|tally| &tally.counts) {
            *totals.entry(what.as_str()).or_default() += number;
        }
        totals
    }

    /// The line that says how far the search is.
    fn show(&self, began: Instant, time: Duration, over: &AtomicBool) {
        let is_terminal = std::io::stderr().is_terminal();
        let pause = Duration::from_secs(if is_terminal { 1 } else { 60 });
        while !over.load(Ordering::Relaxed) {
            std::thread::park_timeout(pause);
            let tallies = self.tallies();
            let rounds: u64 = tallies.iter().map(|tally| tally.rounds).sum();
            let found: usize = tallies.iter().map(|tally| tally.failures.len()).sum();
            let (spent, whole) = (began.elapsed().as_secs(), time.as_secs());
            let counts: Vec<_> = Self::totals(&tallies)
                .iter()
                .map(|(what, number)| format!("{number} {what}"))
                .collect();
            let line =
                format!("{spent}/{whole} s, {rounds} rounds, {}, {found} found", counts.join(", "));
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
        if json {
            let jobs = self.jobs.iter().map(|job| job.name).zip(tallies.iter()).collect();
            let report =
                Report { seconds: took.as_secs_f64(), totals: Self::totals(&tallies), jobs };
            println!("{}", serde_json::to_string_pretty(&report).expect("plain data"));
        } else {
            println!("{:<30} {:>6} {:>8} {:>6}  seen", "job", "rounds", "seconds", "found");
            for (job, tally) in self.jobs.iter().zip(tallies.iter()) {
                let seen: Vec<_> =
                    tally.counts.iter().map(|(what, number)| format!("{number} {what}")).collect();
                println!(
                    "{:<30} {:>6} {:>8.1} {:>6}  {}",
                    job.name,
                    tally.rounds,
                    tally.seconds,
                    tally.failures.len(),
                    seen.join(", ")
                );
            }
            let seen: Vec<_> = Self::totals(&tallies)
                .iter()
                .map(|(what, number)| format!("{number} {what}"))
                .collect();
            println!(
                "{:<30} {:>6} {:>8.1} {found:>6}  {}",
                "all",
                "",
                took.as_secs_f64(),
                seen.join(", ")
            );
            for failure in tallies.iter().flat_map(|tally| &tally.failures) {
                println!("again: {}", failure.again);
            }
        }
        if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
