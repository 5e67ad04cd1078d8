//! Finds the status of the last scrub of a volume.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use buttress_volume::{Uuid, Volume};
use serde::Deserialize;

use crate::execute::{self, ScrubStatus};
use crate::exit::{Context, Result};
use crate::image::{self, Access, Devices};
use crate::live;
use crate::order::Order;

/// The answer of a server.
#[derive(Deserialize)]
struct Told {
    uuid: String,
    status: Option<ScrubStatus>,
}

/// Returns the identifier of a volume, and the status of its last scrub. `state` is the folder of
/// the progress file; `None` for the default.
///
/// The server of a mount is asked, because a volume in a store would need another reader and
/// perhaps a key.
pub fn last(
    place: &Path,
    devices: &Devices,
    state: Option<&Path>,
) -> Result<(String, Option<ScrubStatus>)> {
    let found = live::find(place)?;
    if let Some((socket, _)) = &found {
        let state = state.map(std::path::absolute).transpose();
        let state = state.context(|| "the folder of the state")?;
        match ask(socket, state) {
            Ok(told) => return Ok((told.uuid, told.status)),
            Err(error) => tracing::debug!(%error, "an older server, or one without a volume"),
        }
    }
    // The image of a mount has the same identifier as the mount.
    let image = found.map_or_else(|| place.to_owned(), |(_, answer)| answer.subject.image);
    let devices = image::open_devices(&image, devices, Access::Peek)?;
    let superblock =
        Volume::read_superblock(&*devices[0]).context(|| place.display().to_string())?;
    let uuid = Uuid(superblock.fsid).to_string();
    let status = execute::read_scrub(&execute::scrub_state_file(state, &uuid));
    Ok((uuid, status))
}

fn ask(socket: &Path, state: Option<PathBuf>) -> Result<Told> {
    let stop = AtomicBool::new(false);
    let told = live::give(socket, &Order::ScrubStatus { state }, &stop, &mut |_| true)?;
    serde_json::from_value(told).context(|| "the answer")
}
