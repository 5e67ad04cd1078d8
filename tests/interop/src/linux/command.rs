//! Runs programs. A failure has all output of the program.

use std::ffi::OsStr;
use std::process::Command;

/// Runs a program to its end and returns what it printed.
///
/// # Panics
///
/// If the program cannot be started or fails, with the command line and all output.
#[track_caller]
pub fn run<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> String {
    match try_run(program, arguments) {
        Ok(text) => text,
        Err(text) => panic!("{text}"),
    }
}

/// Runs a program as [`run`] does, but returns a failure as an error.
///
/// # Errors
///
/// The command line, the exit status and all output.
pub fn try_run<A: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments);
    let line = format!("{command:?}");
    let output = command.output().map_err(|error| format!("{line} does not start: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    let complained = String::from_utf8_lossy(&output.stderr);
    Err(format!("{line} ended with {}\n{said}{complained}", output.status))
}
