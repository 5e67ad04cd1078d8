//! `buttress completions`: prints a shell's completion script for this command line.

use std::io::Write;

use clap::Command;
use clap_complete::Shell;

use crate::exit::{Context, Exit, Result};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut line: Command) -> Result<Exit> {
    // The script is generated in memory first: the generator panics if it writes to a closed pipe.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut line, "buttress", &mut text);
    std::io::stdout().write_all(&text).context(|| "standard output")?;
    Ok(Exit::Success)
}
