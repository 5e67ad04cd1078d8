//! The device by which programs look for volumes of Linux: `btrfs rescue create-control-device`.

use rustix::fs::{CWD, FileType, Mode};

use crate::exit::{Exit, Failure, Result};
use crate::mount_check::plain;

/// The place of the device.
const PATH: &str = "/dev/btrfs-control";

/// The numbers that Linux has given to the device.
const NUMBERS: (u32, u32) = (10, 234);

/// Makes the device, for a system without it.
///
/// # Errors
///
/// The device exists, or this user may not make it.
pub fn create() -> Result<Exit> {
    let device = rustix::fs::makedev(NUMBERS.0, NUMBERS.1);
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(CWD, PATH, FileType::CharacterDevice, mode, device).map_err(|errno| {
        let why = plain(&errno.into());
        Failure::new(Exit::Failure, format!("could not create {PATH}: {why}"))
    })?;
    Ok(Exit::Success)
}
