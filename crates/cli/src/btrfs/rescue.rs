//! `btrfs rescue`: the repairs of `buttress rescue`, made without a question.

use std::path::PathBuf;

use crate::commands::rescue as own;
use crate::exit::{Exit, Result};
use crate::ui::Ui;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Replace damaged superblock copies by good ones.
    SuperRecover(Devices),
    /// Remove the log tree. Data that fsync wrote since the last commit is lost.
    ZeroLog(Devices),
    /// Correct the recorded sizes of devices.
    FixDeviceSize(Devices),
    /// Rebuild the chunk tree from a scan of the devices.
    ChunkRecover(Devices),
    /// Delete the items of the UUID tree. Linux builds the tree anew at its next mount.
    ClearUuidTree(Devices),
}

#[derive(Debug, clap::Args)]
pub(super) struct Devices {
    /// Assume the answer yes. No question is asked in any case.
    #[arg(short)]
    yes: bool,
    #[arg(required = true)]
    devices: Vec<PathBuf>,
}

pub(super) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    let at_once = |args: Devices| own::Args::at_once(args.devices);
    let verb = match verb {
        Verb::SuperRecover(args) => own::Verb::SuperRecover(at_once(args)),
        Verb::ZeroLog(args) => own::Verb::ZeroLog(at_once(args)),
        Verb::FixDeviceSize(args) => own::Verb::FixDeviceSize(at_once(args)),
        Verb::ChunkRecover(args) => own::Verb::ChunkRecover(at_once(args)),
        Verb::ClearUuidTree(args) => own::Verb::ClearUuidTree(at_once(args)),
    };
    own::run(verb, ui)
}
