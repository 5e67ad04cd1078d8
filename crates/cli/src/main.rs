//! The `buttress` program: btrfs volumes without the kernel.

mod cached;
mod commands;
mod image;
mod inspect;
mod live;
mod log;
mod order;
mod size;
mod space;
mod when;

use std::process::ExitCode;

use buttress_cli::{exit, listing, location, transfer, ui};
use clap::Parser;

use crate::commands::Command;
use crate::exit::Exit;
use crate::ui::Ui;

/// The library leaves this to the program that it is part of.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Makes, mounts, reads and writes btrfs volumes without the kernel.
#[derive(Debug, Parser)]
#[command(name = "buttress", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = exit::HELP)]
struct Cli {
    /// Print JSON, for scripts; events that BUTTRESS_LOG asks for, too.
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let ui = Ui::new(cli.json);
    let started = log::start(cli.command.speaks_by_log(), cli.json);
    match started.and_then(|()| cli.command.run(&ui)) {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(failure) if failure.is_closed_pipe() => ExitCode::from(Exit::Success as u8),
        Err(failure) => {
            ui::note(failure.to_string());
            ExitCode::from(failure.exit as u8)
        }
    }
}
