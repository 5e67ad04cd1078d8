//! Chores of the project: `cargo xtask crash --minutes N`.

mod crash;
mod programs;
mod round;
mod suite;

use std::process::ExitCode;

use clap::Parser;

/// What can be asked for.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Chores of the project")]
enum Chore {
    /// Cuts the power, breaks devices, kills mounts and feeds garbage, until the time is over.
    Crash(crash::Options),
}

fn main() -> ExitCode {
    match Chore::parse() {
        Chore::Crash(options) => crash::run(&options),
    }
}
