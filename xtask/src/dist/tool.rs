//! Runs the programs that make a release.

use std::process::Command;

pub(super) type Result<T, E = String> = std::result::Result<T, E>;

/// Runs a command that must work.
pub(super) fn run_command(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name}: {status}")),
        Err(error) => Err(format!("{name}: {error}; see the list of packages in .ci/run")),
    }
}
