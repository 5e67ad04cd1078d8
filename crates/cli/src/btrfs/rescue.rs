//! `btrfs rescue`: the repairs of `buttress rescue`, made without a question.

use std::path::{Path, PathBuf};

use buttress_volume::Volume;
use buttress_words::{control_device, mount_check};

use crate::commands::rescue as own;
use crate::exit::{Context, Exit, Result};
use crate::image::{self, Access};
use crate::ui::Ui;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Replace damaged superblock copies by good ones. Ends with 2 if there were some.
    SuperRecover(Devices),
    /// Remove the log tree. Data that fsync wrote since the last commit is lost.
    ZeroLog(Devices),
    /// Correct the recorded sizes of devices.
    FixDeviceSize(Devices),
    /// Rebuild the chunk tree from a scan of the devices.
    ChunkRecover(Devices),
    /// Delete the items of the UUID tree. Linux builds the tree anew at its next mount.
    ClearUuidTree(Devices),
    /// Make the device /dev/btrfs-control, by which programs look for volumes of Linux.
    CreateControlDevice,
}

#[derive(Debug, clap::Args)]
pub(super) struct Devices {
    /// Assume the answer yes. No question is asked in any case.
    #[arg(short)]
    yes: bool,
    #[arg(required = true)]
    devices: Vec<PathBuf>,
}

impl Devices {
    fn at_once(self) -> Result<own::Args> {
        self.devices.iter().try_for_each(|device| mount_check::expect_there(device))?;
        Ok(own::Args::at_once(self.devices))
    }
}

pub(super) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    let (verb, whole) = match verb {
        Verb::SuperRecover(args) => {
            let (fixes, _) = own::mended(own::Verb::SuperRecover(args.at_once()?), ui)?;
            let is_whole = fixes.is_empty();
            ui.line(match is_whole {
                true => "All supers are valid, no need to recover",
                false => "Recovered bad superblocks successful",
            })?;
            return Ok(if is_whole { Exit::Success } else { Exit::Usage });
        }
        Verb::ZeroLog(args) => {
            let line = log_of(&args.devices[0])?;
            own::mended(own::Verb::ZeroLog(args.at_once()?), ui)?;
            ui.line(line)?;
            return Ok(Exit::Success);
        }
        Verb::FixDeviceSize(args) => {
            let whole = "No device size related problem found";
            (own::Verb::FixDeviceSize(args.at_once()?), Some(whole))
        }
        Verb::ChunkRecover(args) => (own::Verb::ChunkRecover(args.at_once()?), None),
        Verb::ClearUuidTree(args) => (own::Verb::ClearUuidTree(args.at_once()?), Some("")),
        Verb::CreateControlDevice => return control_device::create(),
    };
    let (fixes, is_written) = own::mended(verb, ui)?;
    match whole.filter(|_| fixes.is_empty()) {
        None => own::answer(&fixes, is_written, ui),
        Some("") => Ok(Exit::Success),
        Some(line) => ui.line(line).map(|()| Exit::Success),
    }
}

/// The line about the log that is removed.
fn log_of(device: &Path) -> Result<String> {
    mount_check::expect_there(device)?;
    let name = device.display();
    let devices = image::open_devices(device, &image::Devices::default(), Access::Read)?;
    let superblock = Volume::read_superblock(&*devices[0]).context(|| name.to_string())?;
    let (root, level) = (superblock.log_root.0, superblock.log_root_level);
    Ok(format!("Clearing log on {name}, previous log_root {root}, level {level}"))
}
