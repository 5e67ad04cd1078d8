//! `buttress filesystem`: what concerns a volume, or files of it, as a whole.

pub(crate) mod defragment;
pub(crate) mod label;
pub(crate) mod resize;

use crate::exit::{Exit, Result};
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Write files anew in larger pieces, or compressed another way.
    Defragment(defragment::Args),
    /// Show the label of a volume, or give it another.
    Label(label::Args),
    /// Give one of a volume's devices another size.
    Resize(resize::Args),
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    match args.verb {
        Verb::Defragment(args) => defragment::run(args, ui),
        Verb::Label(args) => label::run(&args, ui),
        Verb::Resize(args) => resize::run(&args, ui),
    }
}
