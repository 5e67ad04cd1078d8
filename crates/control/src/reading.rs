//! Opens a volume for a verb that reads one place in it, on an image or on a mount.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use buttress_fs::{Filesystem, TreeId};

use crate::exit::{Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::live;
use crate::location::VolumePath;
use crate::named::Named;
use crate::order::{Act, Order, PathInVolume};

/// Opens a volume for reading, by a place in it: `IMG:/path`, or a path on a mount of this user.
/// Also returns the path of the place below the root that the opened filesystem shows.
pub fn open_place(argument: &OsStr, others: &Devices) -> Result<(Filesystem, VolumePath)> {
    let Named { volume, spot, .. } = Named::parse(argument)?;
    if !spot.is_mounted {
        let place = VolumePath::parse(argument);
        let fs = image::open(&place.image, others, Access::Read)?;
        return Ok((fs, place));
    }
    let root = match spot.is_from_top {
        true => TreeId::FS,
        false => mounted_root(&volume, &spot)?,
    };
    let fs = image::open_at(&volume, others, Access::Read, Some(root))?;
    let path = [b"/", spot.path.strip_prefix(b"/").unwrap_or(&spot.path)].concat();
    Ok((fs, VolumePath { image: volume, path }))
}

/// The subvolume that a mount shows.
fn mounted_root(target: &Path, spot: &PathInVolume) -> Result<TreeId> {
    let (socket, _) = live::must_find(target)?;
    let at = PathInVolume { path: b"/".to_vec(), ..spot.clone() };
    let order = Order::Subvolume(Act::Show { at });
    let answer = live::give(&socket, &order, &AtomicBool::new(false), &mut |_| true)?;
    let id = answer["document"]["id"].as_u64();
    id.map(TreeId).ok_or_else(|| Failure::new(Exit::Failure, "the answer names no subvolume"))
}
