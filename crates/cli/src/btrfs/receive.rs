//! `btrfs receive`, with options that only btrfs-progs need.

use std::path::PathBuf;

use crate::commands::receive as own;
use crate::exit::{Exit, Result};
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct Args {
    #[command(flatten)]
    own: own::Args,
    /// Confine the process to the directory. The stream can name no other place in any case.
    #[arg(short = 'C', long)]
    chroot: bool,
    /// The top of the mount. It is found without this option.
    #[arg(short = 'm', value_name = "PATH")]
    top: Option<PathBuf>,
    /// Accepted for scripts: compressed data is always decompressed.
    #[arg(long)]
    force_decompress: bool,
}

pub(super) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    own::run(args.own, ui)
}
