//! `buttress manual`: writes the manual pages.

use std::path::PathBuf;

use clap::Command;

use crate::exit::{Context, Exit, Result};
use crate::manual;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory for the pages. It is created if it does not exist.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(crate) fn run(args: &Args, line: Command) -> Result<Exit> {
    let place = args.directory.display();
    std::fs::create_dir_all(&args.directory).context(|| place.to_string())?;
    for page in manual::pages(line) {
        let file = args.directory.join(&page.name);
        std::fs::write(&file, &page.text).context(|| file.display().to_string())?;
    }
    Ok(Exit::Success)
}
