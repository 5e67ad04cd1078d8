//! A built program of the project, run as a user runs it.
//!
//! # What must hold
//!
//! - A test has a folder and sockets of its own, so tests run side by side.
//! - A test that lacks something of Linux skips or fails through [`skipped`].
//! - A test unmounts through [`unless_busy`]. A program that another thread starts inherits all
//!   open files until its `exec`, and these files keep a mount busy for a moment.

#![forbid(unsafe_code)]

pub mod mounts;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use mounts::NoCopies;

/// CI sets this variable: what a test needs of Linux and does not find is then a failure.
const REQUIRE: &str = "BUTTRESS_REQUIRE_LINUX";

/// With this file, an administrator lets the kernel offer FUSE over io_uring.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Prints that a test is skipped, and what it needs.
///
/// # Panics
///
/// If `BUTTRESS_REQUIRE_LINUX` is set.
#[track_caller]
pub fn skipped(needs: &str) {
    assert!(std::env::var_os(REQUIRE).is_none(), "{REQUIRE} is set, and this test needs {needs}");
    eprintln!("SKIPPED: needs {needs}");
}

/// Returns whether a test has what it needs. If it has not, the test is [`skipped`].
///
/// # Panics
///
/// If something is missing and `BUTTRESS_REQUIRE_LINUX` is set.
#[track_caller]
#[must_use]
pub fn is_met(is_there: bool, needs: &str) -> bool {
    if !is_there {
        skipped(needs);
    }
    is_there
}

/// Switches FUSE over io_uring on, and returns whether the kernel offers it. A kernel without it
/// (before Linux 6.14) is no failure, as in `.ci/run`.
///
/// # Panics
///
/// If it cannot be switched on, and `BUTTRESS_REQUIRE_LINUX` is set.
#[track_caller]
#[must_use]
pub fn has_fuse_uring() -> bool {
    if !Path::new(ENABLE_URING).exists() {
        eprintln!("SKIPPED: the kernel has no FUSE over io_uring");
        return false;
    }
    is_met(std::fs::write(ENABLE_URING, "Y").is_ok(), "root, to switch on FUSE over io_uring")
}

/// Runs a program that unmounts, while no copy of the mount exists. Repeats this for up to 20
/// seconds, as long as the mount is busy.
///
/// # Panics
///
/// If the program does not start.
pub fn unless_busy(mut run: impl FnMut() -> std::io::Result<Output>) -> Output {
    for _ in 0..200 {
        let no_copies = NoCopies::wait();
        let output = run().expect("the program starts");
        drop(no_copies);
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || !(said.contains("busy") || said.contains("programs use it")) {
            return output;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    run().expect("the program starts")
}

/// A folder of its own for every test, and the program to run there.
#[derive(Debug)]
pub struct Bench {
    dir: tempfile::TempDir,
    program: &'static str,
}

impl Bench {
    /// A new folder for a program. `program` is the value of `CARGO_BIN_EXE_...`.
    ///
    /// # Panics
    ///
    /// If there is no place for temporary files.
    #[must_use]
    pub fn of(program: &'static str) -> Self {
        Self { dir: tempfile::tempdir().expect("a folder for the test"), program }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// A name in the folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the program in the folder.
    ///
    /// # Panics
    ///
    /// If the program does not start.
    #[must_use]
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the program starts")
    }

    /// The program in the folder, with sockets of its own.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.args(args).current_dir(self.dir.path());
        command.env("BUTTRESS_RUNTIME_DIR", self.path("run"));
        command
    }

    /// Runs the program and demands that it succeeds; returns what it printed.
    ///
    /// # Panics
    ///
    /// If the program fails, or its output is no text.
    #[track_caller]
    pub fn ok(&self, args: &[&str]) -> String {
        let output = match args {
            ["umount", places @ ..] => self.unmount(places),
            _ => self.run(args),
        };
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Unmounts places of the folder. A busy place does not prevent the unmount of the others, so
    /// another try leaves out places that are unmounted already.
    fn unmount(&self, places: &[&str]) -> Output {
        let mut left = places.to_vec();
        unless_busy(|| {
            let output = self.command(&["umount"]).args(&left).output();
            let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
            let is_top = |place: &Path| {
                mounts
                    .lines()
                    .any(|line| line.split(' ').nth(1).is_some_and(|top| place == Path::new(top)))
            };
            left.retain(|name| !self.path(name).is_dir() || is_top(&self.path(name)));
            output
        })
    }

    /// Runs the program and demands the right failure: with this exit code, one line that contains
    /// these words, and no panic.
    ///
    /// # Panics
    ///
    /// If the program ends in another way.
    #[track_caller]
    pub fn fails(&self, args: &[&str], code: i32, words: &[&str]) {
        let output = self.run(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{args:?}: one line, not\n{error}");
        assert!(!error.contains("panicked"), "{args:?}: {error}");
        for word in words {
            assert!(error.contains(word), "{args:?}: no {word:?} in {error}");
        }
    }

    /// Makes an empty volume, with the program `buttress`.
    ///
    /// # Panics
    ///
    /// If the program fails.
    #[track_caller]
    pub fn volume(&self, name: &str, size: &str) {
        self.ok(&["mkfs", name, "--size", size]);
    }
}
