//! The built program, run as a user runs it, and what may not grow with the number of block groups.

mod command;
mod groups;
mod published;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of its own for every test.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a folder for the test") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the program in the folder, with sockets of its own.
    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_buttress-bench"));
        command.args(args).current_dir(self.dir.path());
        command.env("BUTTRESS_RUNTIME_DIR", self.path("run"));
        command.output().expect("the program starts")
    }

    /// Runs the program and demands that it succeeds; returns what it printed.
    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs the program and demands that it fails with this code, and one line with these words.
    #[track_caller]
    fn fails(&self, args: &[&str], code: i32, words: &[&str]) {
        let output = self.run(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{args:?}: one line, not\n{error}");
        assert!(!error.contains("panicked"), "{args:?}: {error}");
        for word in words {
            assert!(error.contains(word), "{args:?}: no {word:?} in {error}");
        }
    }
}

/// Whether everything is here; in CI it is.
fn has(programs: &[&str], device: Option<&str>) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_here =
        |program: &&&str| std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    let lacking: Vec<_> = programs.iter().filter(|program| !is_here(program)).collect();
    let device = device.filter(|device| !Path::new(device).exists());
    let is_all = lacking.is_empty() && device.is_none();
    let what = format!("{lacking:?} {device:?}");
    assert!(is_all || std::env::var_os("BUTTRESS_REQUIRE_LINUX").is_none(), "lacking: {what}");
    if !is_all {
        eprintln!("SKIPPED: lacking: {what}");
    }
    is_all
}
