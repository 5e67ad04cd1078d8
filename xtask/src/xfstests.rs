//! `cargo xtask xfstests`: runs the suite xfstests, test by test, and keeps the results.
//!
//! The suite is under the GPL and no part of the project: the user fetches and builds it. Each test
//! runs in a mount namespace of its own, on two volumes, with a time limit. All
//! mounts and processes of a test end with the test.
//!
//! # Invariants
//!
//! - **X1** A result belongs to a commit, mount options and a test. The result is on disk before
//!   the next test begins. An interrupted run continues after the last result.
//! - **X2** A failure counts as known only if the page of known failures names the test.

mod outcome;
mod volumes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::{Args, ValueEnum};

use crate::top::top;
use outcome::{Kind, Outcome, Results};
use volumes::Volumes;

pub(crate) type Result<T, E = String> = std::result::Result<T, E>;

/// The script that runs in the namespace.
const INSIDE: &str = include_str!("xfstests/inside.sh");
/// The page that names the tests that fail for reasons outside of the project.
const KNOWN: &str = "docs/internals/xfstests.md";

/// How requests reach the server.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transport {
    IoUring,
    Device,
}

/// The tests to run, and their mounts.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The folder in which xfstests was built.
    #[arg(long)]
    checkout: PathBuf,
    /// How requests reach the server.
    #[arg(long, alias = "door", value_enum, default_value = "io-uring")]
    transport: Transport,
    /// Mount image files, and not loop devices of them.
    #[arg(long)]
    images: bool,
    /// More mount options.
    #[arg(long, default_value = "")]
    options: String,
    /// Only tests of this group. If repeated, only tests that are in all groups.
    #[arg(long, default_value = "auto")]
    group: Vec<String>,
    /// Only these tests, such as 001, in any group.
    #[arg(long)]
    test: Vec<String>,
    /// Seconds that a test may take.
    #[arg(long, default_value_t = 600)]
    limit: u64,
    /// Also run the tests that have a result already.
    #[arg(long)]
    again: bool,
    /// Print the table of results and run nothing.
    #[arg(long)]
    list: bool,
    /// The program to test. By default it is built.
    #[arg(long)]
    program: Option<PathBuf>,
    /// The folder for images and mount points. If it is not below /tmp, each test has a /tmp of its
    /// own.
    #[arg(long, default_value = "target/xfstests/work")]
    work: PathBuf,
    /// GiB of each of the two images, which are sparse.
    #[arg(long, default_value_t = 12)]
    gib: u64,
}

pub(crate) fn run(options: &Options) -> ExitCode {
    match all(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the tests that have no result yet. Returns true if all failures are known.
fn all(options: &Options) -> Result<bool> {
    let top = top();
    let chosen = chosen(options)?;
    let folder = top.join("target/xfstests").join(name(options, &top)?);
    let mut results = Results::open(&folder)?;
    if !options.list {
        let work = top.join(&options.work);
        std::fs::create_dir_all(&work).map_err(|error| error.to_string())?;
        let program = program(options, &top, &work)?;
        let volumes = Volumes::new(&work, options.gib, !options.images, &program)?;
        for (at, test) in chosen.iter().enumerate() {
            if results.has(test) && !options.again {
                continue;
            }
            let outcome = one(options, test, &volumes, &program, &folder)?;
            println!("{:>4}/{} {test} {outcome}", at + 1, chosen.len());
            results.add(test, outcome)?;
        }
    }
    let known = std::fs::read_to_string(top.join(KNOWN)).unwrap_or_default();
    Ok(table(&chosen, &results, &known))
}

/// The folder's name: commit, transport and options.
fn name(options: &Options, top: &Path) -> Result<String> {
    let git = |words: &[&str]| {
        let output = Command::new("git").current_dir(top).args(words).output();
        let output = output.map_err(|error| format!("git: {error}"))?;
        Ok::<_, String>(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let mut name = git(&["rev-parse", "--short=12", "HEAD"])?;
    if !git(&["status", "--porcelain"])?.is_empty() {
        name.push_str("-changed");
    }
    if options.images {
        name.push_str(".images");
    }
    for option in mount_options(options).split(',') {
        name.push('.');
        name.extend(option.chars().map(|c| if c.is_alphanumeric() || c == '_' { c } else { '-' }));
    }
    Ok(name)
}

fn mount_options(options: &Options) -> String {
    let transport = match options.transport {
        Transport::IoUring => "io_uring",
        Transport::Device => "noio_uring",
    };
    // The suite knows the type `fuse.buttress` only.
    match options.options.as_str() {
        "" => format!("{transport},nofuseblk"),
        more => format!("{transport},nofuseblk,{more}"),
    }
}

/// The tests to run, in the order of the suite's list.
fn chosen(options: &Options) -> Result<Vec<String>> {
    let path = options.checkout.join("tests/generic/group.list");
    let list = std::fs::read_to_string(&path)
        .map_err(|error| format!("{}: {error}; is xfstests built there?", path.display()))?;
    let mut chosen = Vec::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let Some(test) = words.next() else { continue };
        let groups: Vec<_> = words.collect();
        let is_named = options.test.iter().any(|name| name == test);
        let is_in = options.group.iter().all(|group| groups.contains(&group.as_str()));
        if is_named || options.test.is_empty() && is_in {
            chosen.push(test.to_owned());
        }
    }
    if chosen.is_empty() { Err("no test has such groups or names".to_owned()) } else { Ok(chosen) }
}

/// A copy of the program, which does not change when another version is built.
fn program(options: &Options, top: &Path, work: &Path) -> Result<PathBuf> {
    let built = match &options.program {
        Some(program) => program.clone(),
        None => {
            let words = ["build", "--package", "buttress-cli"];
            volumes::must(Command::new("cargo").current_dir(top).args(words))?;
            top.join("target/debug/buttress")
        }
    };
    let copy = work.join("buttress");
    // A server of an earlier run may still have the old file.
    drop(std::fs::remove_file(&copy));
    std::fs::copy(&built, &copy).map_err(|error| format!("{}: {error}", built.display()))?;
    Ok(copy)
}

/// Runs one test.
fn one(
    options: &Options,
    test: &str,
    volumes: &Volumes,
    program: &Path,
    folder: &Path,
) -> Result<Outcome> {
    let work = volumes.work();
    let script = work.join("inside.sh");
    std::fs::write(&script, INSIDE).map_err(|error| error.to_string())?;
    drop(std::fs::remove_dir_all(work.join("results")));
    let said = folder.join(format!("{test}.said"));
    let out = std::fs::File::create(&said).map_err(|error| error.to_string())?;
    let errors = out.try_clone().map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", &options.limit.to_string()]);
    // When the first process of the namespace ends, all its other processes are killed, also
    // servers.
    command.args(["unshare", "--mount", "--propagation", "private", "--pid", "--fork"]);
    command.args(["--mount-proc", "--kill-child", "bash"]).arg(&script);
    let checkout = options.checkout.canonicalize().map_err(|error| error.to_string())?;
    command.env("CHECKOUT", checkout).env("WORK", work).env("BUTTRESS", program);
    command.env("OPTIONS", mount_options(options)).env("NAME", format!("generic/{test}"));
    command.env("TEST_DEV", volumes.test()).env("SCRATCH_DEV", volumes.scratch());
    command.stdin(std::process::Stdio::null()).stdout(out).stderr(errors);
    let status = command.status().map_err(|error| format!("timeout: {error}"))?;
    let text = std::fs::read(&said).map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&text);
    let outcome = Outcome::read(&text, status.code(), begun.elapsed().as_secs());
    if outcome.kind == Kind::Failed || outcome.kind == Kind::Late {
        for kind in ["out.bad", "full", "dmesg"] {
            let file = format!("{test}.{kind}");
            drop(std::fs::copy(work.join("results/generic").join(&file), folder.join(&file)));
        }
        // The next test must begin on a new volume.
        volumes.anew(program)?;
    }
    Ok(outcome)
}

/// Prints the results. Returns whether all failures are known.
fn table(chosen: &[String], results: &Results, known: &str) -> bool {
    let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
    let mut is_good = true;
    for test in chosen {
        let Some(outcome) = results.of(test) else {
            *counts.entry("not yet run").or_default() += 1;
            continue;
        };
        // A row of the page begins with the number of the test (X2).
        let is_known = known.lines().any(|line| line.starts_with(&format!("| {test} |")));
        let word = match outcome.kind {
            Kind::Passed => "passed",
            Kind::Lacking => "cannot run",
            Kind::Failed | Kind::Late if is_known => "fail, as known",
            Kind::Failed => "fail",
            Kind::Late => "take too long",
        };
        *counts.entry(word).or_default() += 1;
        if matches!(word, "fail" | "take too long") {
            is_good = false;
        }
        if outcome.kind != Kind::Passed {
            println!("generic/{test:<5} {word:<15} {}", outcome.why);
        }
    }
    for (word, count) in counts {
        println!("{count:>6} {word}");
    }
    is_good
}
