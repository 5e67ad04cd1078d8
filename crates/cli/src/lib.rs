//! The `buttress` program as a library.
//!
//! `main.rs` and `buttress-bench` call [`run`]. `buttress-bench` adds baselines that the shipped
//! program does not have. Tests call [`transfer`] without starting a process each time.

mod btrfs;
mod commands;
mod helper;
mod manual;
mod output;
mod salvage;

use buttress_control::{
    background, cached, client, closing, execute, figures, image, inspect, interrupted, live, log,
    memory, order, reading, scan, scrubs, size, sockets,
};
use buttress_dump::when;

pub use buttress_control::{exit, location, names, ui};
pub use buttress_transfer::{self as transfer, listing};

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::commands::Command;
use crate::exit::Exit;
use crate::ui::Ui;

/// Creates, mounts, reads and writes btrfs volumes without the kernel's btrfs.
#[derive(Debug, Parser)]
#[command(name = "buttress", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = exit::HELP)]
struct Cli {
    /// Print JSON for scripts, also for events that BUTTRESS_LOG selects.
    #[arg(long, global = true)]
    json: bool,
    /// Show no progress and no notes; print only the answer, warnings and errors.
    #[arg(long, short, global = true)]
    quiet: bool,

    #[command(subcommand)]
    command: Command,
}

/// Runs the program with a command line. The first word is the name by which the program was
/// called. Under the name of a helper of mount(8), the program acts as that helper. Under the name
/// `btrfs` or `mkfs.btrfs`, the program accepts command lines of btrfs-progs.
///
/// `buttress mount` starts the running executable again with the same arguments. If a caller puts
/// words before these arguments, the new process must remove these words again.
#[must_use]
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if let Some(code) = helper::run(arguments.iter().cloned()) {
        return ExitCode::from(code);
    }
    let of_progs = btrfs::run(&arguments).or_else(|| buttress_mkfs::progs::run(&arguments));
    if let Some(code) = of_progs {
        return ExitCode::from(code);
    }
    let cli = Cli::parse_from(arguments);
    let ui = Ui::new(cli.json).quiet(cli.quiet);
    let started = log::start(cli.command.speaks_by_log(), cli.json);
    match started.and_then(|()| cli.command.run(&ui, Cli::command)) {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(failure) if failure.is_closed_pipe() => ExitCode::from(Exit::Success as u8),
        Err(failure) => {
            ui::note(failure.to_string());
            ExitCode::from(failure.exit as u8)
        }
    }
}

/// Splits lists of mount options into single options. Each option has a flag that tells whether the
/// volume takes it.
///
/// # Errors
///
/// An option that a mount would refuse.
pub fn mount_options(lists: &[String]) -> exit::Result<Vec<(String, bool)>> {
    commands::mount::split(lists)
}

/// The names of all verbs, such as `balance start`, without those that only have verbs below them.
#[must_use]
pub fn verbs() -> Vec<String> {
    let mut names = Vec::new();
    add_verbs(&Cli::command(), "", &mut names);
    names
}

fn add_verbs(command: &clap::Command, before: &str, names: &mut Vec<String>) {
    for verb in command.get_subcommands() {
        let name = format!("{before}{}", verb.get_name());
        if verb.has_subcommands() {
            add_verbs(verb, &format!("{name} "), names);
        } else {
            names.push(name);
        }
    }
}
