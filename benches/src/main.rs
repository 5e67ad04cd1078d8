//! `buttress-bench`: see the library of this package.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match buttress_bench::run(&buttress_bench::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("buttress-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
