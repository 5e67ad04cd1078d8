//! One round of one job: a process, its counts, and its output if it failed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::programs::{FUZZ, fuzzers};
use crate::suite::{Job, What};

/// The variable with the duration, for tests that accept one.
const SECONDS: &str = "BUTTRESS_HOSTILE_SECONDS";

/// A round that takes this long hangs, however many run side by side.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// The counts of a round, by name.
pub(crate) type Counts = BTreeMap<String, u64>;

/// A failure, and the command that repeats it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Failure {
    pub(crate) round: u64,
    pub(crate) again: String,
    pub(crate) said: String,
}

/// Runs round `round` of a job. Returns its counts, also those from before a failure.
pub(crate) fn run(
    job: &Job,
    round: u64,
    program: Option<&Path>,
    optimized: bool,
    slice: Duration,
) -> (Counts, Option<Failure>) {
    let mut again = again(job, round, optimized);
    let Some(program) = program else {
        let said = "no program was built for it".to_owned();
        return (Counts::new(), Some(Failure { round, again, said }));
    };
    let mut command = Command::new(program);
    match job.what {
        What::Tests { filters, .. } => {
            command.args(["--nocapture", "--test-threads", "1"]).args(filters);
            command.env("BUTTRESS_ROUND", round.to_string());
            command.env(SECONDS, slice.as_secs().to_string());
        }
        What::Fuzz { choices } => fuzz(&mut command, (job.name, choices), round, slice),
    }
    let (status, said) = match outcome(&mut command) {
        Ok(outcome) => outcome,
        Err(error) => {
            let said = error.to_string();
            return (Counts::new(), Some(Failure { round, again, said }));
        }
    };
    let counts = counts(&said);
    let why = match status {
        None => Some(format!("it did not end in {} minutes\n", TIMEOUT.as_secs() / 60)),
        Some(status) if !status.success() => Some(format!("{status}\n")),
        Some(_) if said.contains("running 0 tests") => Some("no test has such a name\n".to_owned()),
        Some(_) => None,
    };
    if let Some((_, input)) = said.split_once("Test unit written to ") {
        let input = input.lines().next().unwrap_or_default();
        let input = input.strip_prefix(&format!("{FUZZ}/")).unwrap_or(input);
        again = format!("cd {FUZZ} && {} {input}", fuzzers().join(job.name).display());
    }
    let failure = why.map(|why| Failure { round, again, said: why + &last_lines(&said, 60) });
    (counts, failure)
}

fn again(job: &Job, round: u64, optimized: bool) -> String {
    match job.what {
        What::Tests { package, filters } => {
            // Other variables that were set for all rounds, such as sizes.
            let set = std::env::vars().filter(|(name, _)| name.starts_with("BUTTRESS_"));
            let set: String = set.map(|(name, value)| format!("{name}={value} ")).collect();
            let profile = if optimized { " --profile crash" } else { "" };
            let filters = filters.join(" ");
            format!(
                "{set}BUTTRESS_ROUND={round} cargo test{profile} --package {package} --test it -- {filters}"
            )
        }
        What::Fuzz { .. } => {
            format!("cd {FUZZ} && {} -seed={round}", fuzzers().join(job.name).display())
        }
    }
}

fn fuzz(
    command: &mut Command,
    (target, choices): (&str, Option<u32>),
    round: u64,
    slice: Duration,
) {
    for kind in ["corpus", "artifacts"] {
        // If the folder cannot be made, the fuzzer reports that.
        drop(std::fs::create_dir_all(format!("{FUZZ}/{kind}/{target}")));
    }
    command
        .arg(format!("{FUZZ}/corpus/{target}"))
        .arg(format!("-artifact_prefix={FUZZ}/artifacts/{target}/"))
        .arg(format!("-max_total_time={}", slice.as_secs()))
        .arg(format!("-seed={round}"))
        .args(["-timeout=120", "-rss_limit_mb=4096", "-len_control=0", "-print_final_stats=1"]);
    if let Some(bytes) = choices {
        // If the input is a list of choices, one run of a target passes tens of thousands of
        // branches. Weighing the rare branches would take the fuzzer longer than the run itself.
        command.arg("-entropic=0").arg(format!("-max_len={bytes}"));
    }
}

/// Runs a command to its end, or kills it if it takes too long.
fn outcome(command: &mut Command) -> std::io::Result<(Option<ExitStatus>, String)> {
    // The output goes to a file, since a pipe would have to be read meanwhile.
    let mut output = tempfile()?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
    let mut child = command.spawn()?;
    let status = wait(&mut child)?;
    let mut said = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut said)?;
    Ok((status, String::from_utf8_lossy(&said).into_owned()))
}

fn wait(child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if began.elapsed() > TIMEOUT {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A file without a name.
fn tempfile() -> std::io::Result<File> {
    let name = format!("xtask-{}-{:?}", std::process::id(), std::thread::current().id());
    let path = std::env::temp_dir().join(name);
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

fn counts(said: &str) -> Counts {
    let mut counts = Counts::new();
    for line in said.lines() {
        // The line may follow "test name ... " of the runner.
        if let Some((_, counted)) = line.split_once("BUTTRESS_COUNT ") {
            let mut words = counted.split(' ');
            while let (Some(what), Some(number)) = (words.next(), words.next()) {
                *counts.entry(what.to_owned()).or_default() += number.parse::<u64>().unwrap_or(0);
            }
        }
        if let Some(number) = line.strip_prefix("stat::number_of_executed_units:") {
            *counts.entry("executions".to_owned()).or_default() +=
                number.trim().parse::<u64>().unwrap_or(0);
        }
    }
    counts
}

fn last_lines(said: &str, count: usize) -> String {
    let lines: Vec<_> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_in_what_was_said() {
        let said = "test a ... BUTTRESS_COUNT states 12\nnoise\nBUTTRESS_COUNT faults 3\n\
                    BUTTRESS_COUNT states 30 logs 4\nstat::number_of_executed_units: 77\n";
        let found = counts(said);
        assert_eq!((found["states"], found["faults"], found["logs"]), (42, 3, 4));
        assert_eq!(found["executions"], 77);
    }

    /// A failed round reports its counts and the command that repeats it.
    #[test]
    fn a_failure_is_told() {
        let what = What::Tests { package: "buttress-fs", filters: &["some::"] };
        let job = Job { name: "some", what, share: 1, mounts: false };
        let (counts, failure) = run(&job, 7, Some(Path::new("/bin/false")), true, Duration::ZERO);
        assert!(counts.is_empty());
        let failure = failure.expect("it fails");
        assert!(failure.again.ends_with(
            "BUTTRESS_ROUND=7 cargo test --profile crash --package buttress-fs --test it -- some::"
        ));
        assert!(failure.said.contains("exit status: 1"), "{}", failure.said);
        assert!(run(&job, 7, Some(Path::new("/bin/true")), false, Duration::ZERO).1.is_none());
        assert!(run(&job, 7, None, false, Duration::ZERO).1.is_some());
    }
}
