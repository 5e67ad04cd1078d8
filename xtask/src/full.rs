//! `cargo xtask ci-full`: the long run, in parts that resume.
//!
//! A part that has passed for a commit is not run again for that commit. The working tree must be
//! clean, so that a result belongs to the commit.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;

/// The parts to run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Run only these parts. The default is all parts.
    #[arg(long)]
    only: Vec<String>,
    /// Also run the parts that have passed already.
    #[arg(long)]
    again: bool,
    /// Print the parts, and whether each has passed.
    #[arg(long)]
    list: bool,
}

/// A part: its name, the program, and the words of its command line.
type Part = (&'static str, &'static str, &'static [&'static str]);

/// The command line of the test `campaign` of `buttress-rescue`, with ten thousand damaged volumes.
const RESCUE: &[&str] = &[
    "BUTTRESS_RESCUE_VOLUMES=10000",
    "cargo",
    "test",
    "-p",
    "buttress-rescue",
    "--test",
    "it",
    "campaign",
    "--",
    "--nocapture",
];

/// The image is copied right after the unmount, a thousand times for each way to unmount.
const UNMOUNT: &[&str] = &[
    "BUTTRESS_UMOUNT_ROUNDS=1000",
    "cargo",
    "test",
    "-p",
    "buttress-cli",
    "--test",
    "it",
    "when_everything_is_on_the_image",
];

const PARTS: [Part; 15] = [
    ("ci", ".ci/run", &[]),
    ("guide", ".ci/guide", &[]),
    ("shipped", ".ci/shipped", &[]),
    ("versitygw", ".ci/versitygw", &[]),
    ("crash", "cargo", &["xtask", "crash", "--minutes", "60", "--on-time", "--jobs", "2"]),
    ("rescue", "env", RESCUE),
    ("unmount", "env", UNMOUNT),
    ("containers", ".ci/containers", &[]),
    ("machine", ".ci/machine", &[]),
    ("dist", ".ci/dist", &[]),
    ("package", "cargo", &["xtask", "package"]),
    ("deny", "packaging/deny", &[]),
    ("msrv", ".ci/msrv", &[]),
    ("semver", ".ci/semver", &[]),
    ("pictures", ".ci/pictures", &[]),
];

pub(crate) fn run(options: &Options) -> ExitCode {
    match parts(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn parts(options: &Options) -> Result<bool, String> {
    if let Some(name) = options.only.iter().find(|name| PARTS.iter().all(|part| part.0 != **name)) {
        let names: Vec<_> = PARTS.iter().map(|part| part.0).collect();
        return Err(format!("no part {name}; there are {}", names.join(", ")));
    }
    let commit = git(&["rev-parse", "HEAD"])?;
    if !options.list && !git(&["status", "--porcelain"])?.is_empty() {
        return Err("commit or stash what is changed: a result belongs to a commit".into());
    }
    let folder = PathBuf::from("target/ci-full").join(&commit);
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let mut all = true;
    for (name, program, words) in PARTS {
        if !options.only.is_empty() && !options.only.iter().any(|only| only == name) {
            continue;
        }
        let mark = folder.join(name);
        let passed = mark.exists() && !options.again;
        if options.list || passed {
            println!("{name:<10} {}", if mark.exists() { "passed" } else { "not yet" });
            continue;
        }
        println!("==== {name}");
        let status = Command::new(program).args(words).status();
        let status = status.map_err(|error| format!("{program}: {error}"))?;
        if status.success() {
            std::fs::write(&mark, "").map_err(|error| error.to_string())?;
        } else {
            println!("{name} failed: {status}");
            all = false;
        }
    }
    Ok(all)
}

fn git(words: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(words).output().map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
