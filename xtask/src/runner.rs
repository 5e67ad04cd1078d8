//! `cargo xtask test`: all tests of the workspace, several programs side by side.
//!
//! Cargo runs one program of tests after the other. The tests of many programs wait for Linux, for
//! devices and for other programs. Others need the processors meanwhile.
//!
//! # What must hold
//!
//! - What `cargo test --workspace` runs runs here: each program of tests in the folder of its
//!   package, and the examples in comments.
//! - The output of a program is printed at its end and in one piece. If the time is over, what was
//!   printed so far is printed, and the program has failed.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::programs::{built, cargo, outside};

/// How to run the tests.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How many programs run side by side.
    #[arg(long, default_value_t = 2)]
    programs: usize,
    /// Minutes after which a program that still runs has failed.
    #[arg(long, default_value_t = 45.0)]
    minutes: f64,
    /// Only the tests of these packages, without examples in comments.
    #[arg(long, value_name = "PACKAGE")]
    only: Vec<String>,
}

/// Packages with the longest tests, in this order. They begin first, so that none of them runs
/// alone at the end.
const LONGEST: [&str; 5] =
    ["buttress-interop", "buttress-fs", "buttress-cli", "buttress-txn", "buttress-remote"];

/// How often a program is asked whether it has ended.
const PAUSE: Duration = Duration::from_millis(20);

/// A program of tests, or the cargo that runs the examples in comments.
#[derive(Debug)]
struct Program {
    name: String,
    command: Command,
}

/// What is left to run, the last one first, and the names of those that failed.
#[derive(Debug, Default)]
struct State {
    left: Vec<Program>,
    failed: Vec<String>,
}

pub(crate) fn run(options: &Options) -> ExitCode {
    match tests(options) {
        Ok(failed) if failed.is_empty() => ExitCode::SUCCESS,
        Ok(failed) => {
            println!("\nfailed: {}", failed.join(", "));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("test: {error}");
            ExitCode::FAILURE
        }
    }
}

fn tests(options: &Options) -> Result<Vec<String>, String> {
    if !(options.minutes.is_finite() && options.minutes > 0.0) {
        return Err("--minutes wants a number above zero".into());
    }
    let time = Duration::from_secs_f64((options.minutes * 60.0).clamp(1.0, 1e9));
    let left = programs(&options.only)?;
    let until = Instant::now() + time;
    let state = Mutex::new(State { left, failed: Vec::new() });
    std::thread::scope(|scope| {
        for _ in 0..options.programs.max(1) {
            scope.spawn(|| work(&state, until));
        }
    });
    Ok(state.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).failed)
}

/// Everything that `cargo test --workspace` runs, or what it runs of some packages. The longest is
/// the last.
fn programs(only: &[String]) -> Result<Vec<Program>, String> {
    let mut found = Vec::new();
    for test in built(&["test", "--workspace", "--no-run"])? {
        if !only.is_empty() && !only.contains(&test.package) {
            continue;
        }
        let folder = test.manifest.parent().map(Path::to_owned).unwrap_or_default();
        let mut command = outside(Command::new(&test.program));
        command.env("CARGO_MANIFEST_DIR", &folder).current_dir(folder);
        let rank = LONGEST.iter().position(|name| *name == test.package && test.target == "it");
        let name = format!("{} {} ({})", test.package, test.target, test.kind);
        found.push((rank.unwrap_or(LONGEST.len()), Program { name, command }));
    }
    if found.is_empty() {
        return Err("there are no such tests".into());
    }
    if only.is_empty() {
        let mut command = cargo();
        command.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
        found.push((LONGEST.len(), Program { name: "examples in comments".into(), command }));
    }
    found.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
    Ok(found.into_iter().map(|(_, program)| program).collect())
}

fn work(state: &Mutex<State>, until: Instant) {
    let state = || state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    loop {
        let Some(mut program) = state().left.pop() else { return };
        let began = Instant::now();
        let outcome = outcome(&mut program.command, until);
        let (said, failed) = outcome.unwrap_or_else(|error| (error, Some("no output".into())));
        let mut state = state();
        println!(
            "\n==== {}, {:.1} s\n{}",
            program.name,
            began.elapsed().as_secs_f64(),
            said.trim()
        );
        if let Some(why) = failed {
            println!("==== {}: {why}", program.name);
            state.failed.push(program.name);
        }
    }
}

/// Runs a program to its end. Returns what it printed, and why it has failed.
fn outcome(command: &mut Command, until: Instant) -> Result<(String, Option<String>), String> {
    let text = |error: std::io::Error| error.to_string();
    // A file takes all output, also that of programs which outlive this one.
    let path = output_path();
    let output = File::create(&path).map_err(text)?;
    command.stdin(Stdio::null()).stdout(output.try_clone().map_err(text)?).stderr(output);
    // Programs that a test has started end with it.
    let mut child = command.process_group(0).spawn().map_err(text)?;
    let failed = wait(&mut child, until).map_err(text)?;
    let said = std::fs::read(&path).map_err(text)?;
    std::fs::remove_file(path).map_err(text)?;
    Ok((String::from_utf8_lossy(&said).into_owned(), failed))
}

fn wait(child: &mut Child, until: Instant) -> std::io::Result<Option<String>> {
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(None),
            Some(status) => return Ok(Some(status.to_string())),
            None if Instant::now() < until => std::thread::sleep(PAUSE),
            None => {
                let group = format!("-{}", child.id());
                Command::new("kill").args(["-KILL", "--", &group]).status()?;
                child.wait()?;
                return Ok(Some("did not end in time".into()));
            }
        }
    }
}

/// A place for the output of a program of this thread.
fn output_path() -> PathBuf {
    let name = format!("xtask-test-{}-{:?}", std::process::id(), std::thread::current().id());
    std::env::temp_dir().join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that fails has failed, and so has one that does not end. Both have printed.
    #[test]
    fn failures_are_told() {
        let ends = |script: &str, seconds| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            outcome(&mut command, Instant::now() + Duration::from_secs(seconds)).expect("a shell")
        };
        assert_eq!(ends("echo one; echo two >&2", 60), ("one\ntwo\n".into(), None));
        let (said, why) = ends("echo one; exit 3", 60);
        assert_eq!((said.as_str(), why.as_deref()), ("one\n", Some("exit status: 3")));
        let (said, why) = ends("echo one; exec sleep 600", 1);
        assert_eq!((said.as_str(), why.as_deref()), ("one\n", Some("did not end in time")));
    }
}
