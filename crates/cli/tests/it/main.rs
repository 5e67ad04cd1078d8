//! The built program, run as a user runs it.

mod at_once;
mod bad_input;
mod cache;
mod check;
mod checker;
mod demo;
mod events;
mod files;
mod hostile_trees;
mod json_names;
mod live;
mod mkfs;
mod packing;
mod places;
mod pressure;
mod races;
mod subvolume;
mod unmounting;

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

    /// Runs the program in the folder.
    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the program starts")
    }

    /// The program in the folder, with sockets of its own.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_buttress"));
        command.args(args).current_dir(self.dir.path());
        command.env("BUTTRESS_RUNTIME_DIR", self.path("run"));
        command
    }

    /// Runs the program and demands that it succeeds; returns what it printed.
    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs the program and demands that it fails as a user should see it: with this code, one
    /// line that holds these words, and no panic.
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

    /// Makes an empty volume.
    fn volume(&self, name: &str, size: &str) {
        self.ok(&["mkfs", name, "--size", size]);
    }
}

/// The text of a path, for command lines.
fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}
