//! Finds the status of the last scrub of a volume.

use std::path::Path;

use buttress_volume::{Uuid, Volume};

use crate::execute::{self, ScrubStatus};
use crate::exit::{Context, Result};
use crate::image::{self, Access, Devices};
use crate::live;

/// Returns the identifier of a volume, and the status of its last scrub. `state` is the folder of
/// the progress file; `None` for the default.
pub fn last(
    place: &Path,
    devices: &Devices,
    state: Option<&Path>,
) -> Result<(String, Option<ScrubStatus>)> {
    // The image of a mount has the same identifier as the mount.
    let found = live::find(place)?;
    let image = found.map_or_else(|| place.to_owned(), |(_, answer)| answer.subject.image);
    let devices = image::open_devices(&image, devices, Access::Peek)?;
    let superblock =
        Volume::read_superblock(&*devices[0]).context(|| place.display().to_string())?;
    let uuid = Uuid(superblock.fsid).to_string();
    let status = execute::read_scrub(&execute::scrub_state_file(state, &uuid));
    Ok((uuid, status))
}
