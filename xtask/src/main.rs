//! Chores of the project, such as `cargo xtask crash --minutes N`; `cargo xtask --help` lists all.

mod crash;
mod dist;
mod figures;
mod full;
mod guide;
mod package;
mod pictures;
mod programs;
mod remote;
mod round;
mod suite;
mod tidy;
mod top;
mod xfstests;

use std::process::ExitCode;

use clap::Parser;

/// The chores.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Chores of the project")]
enum Chore {
    /// Cuts the power, breaks devices, kills mounts and feeds garbage, until the time is over.
    Crash(crash::Options),
    /// Runs all long tests, in parts that resume.
    #[command(name = "ci-full")]
    Full(full::Options),
    /// Makes all files of a release, in `target/dist`.
    Dist(dist::Options),
    /// Writes the page of figures from the newest file in `docs/figures`.
    Figures(figures::Options),
    /// Runs the commands in the documents, as if by copy and paste.
    Guide(guide::Options),
    /// Packs the library and all it needs, builds the packages, and tries each feature.
    Package(package::Options),
    /// Draws the pictures of the documents, from running programs.
    Pictures(pictures::Options),
    /// Brings up a real distributed store of objects, and runs the tests of volumes on it.
    Remote(remote::Options),
    /// Says whether the house rules hold: sizes, circles of imports, ranks, language.
    Tidy(tidy::Options),
    /// Runs the generic tests of an xfstests that was fetched and built, and keeps the results.
    Xfstests(xfstests::Options),
}

fn main() -> ExitCode {
    match Chore::parse() {
        Chore::Crash(options) => crash::run(&options),
        Chore::Full(options) => full::run(&options),
        Chore::Dist(options) => dist::run(&options),
        Chore::Figures(options) => figures::run(&options),
        Chore::Guide(options) => guide::run(&options),
        Chore::Package(options) => package::run(&options),
        Chore::Pictures(options) => pictures::run(&options),
        Chore::Remote(options) => remote::run(&options),
        Chore::Tidy(options) => tidy::run(&options),
        Chore::Xfstests(options) => xfstests::run(&options),
    }
}
