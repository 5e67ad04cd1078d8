//! A place that was named on a command line, and the volume that it lies on.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure, Result};
use crate::location::VolumePath;
use crate::order::PathInVolume;
use crate::{closing, live, names};

/// The magic number of a superblock. The checksum, the identifier, the address and the flags lie
/// before the magic number.
const MAGIC: [u8; 8] = *b"_BHRfS_M";
/// The address of the magic number on the device.
const MAGIC_AT: u64 = (64 << 10) + 64;

/// A place, and its volume: an image, or the top of a mount.
pub struct Named {
    /// The image, or the top of the mount.
    pub volume: PathBuf,
    /// The file system of the place, for messages. `None` if the place is on a Buttress mount or in
    /// an image.
    pub elsewhere: Option<String>,
    /// The place in the volume.
    pub spot: PathInVolume,
}

impl Named {
    /// Parses an argument: `IMG:/path`, or a path on a mount of this user. A file on a mount counts
    /// as an image only if it has the magic number of a superblock.
    ///
    /// # Errors
    ///
    /// Running mounts cannot be asked, or no mount of this user serves the path.
    pub fn parse(argument: &OsStr) -> Result<Self> {
        let text = names::of_path(argument);
        let place = VolumePath::parse(argument);
        let is_file = place.image.metadata().is_ok_and(|metadata| !metadata.is_dir());
        let is_inside = buttress_remote::Inside::of(&place.image).is_some();
        let is_image = is_file || is_inside || buttress_remote::is_remote(&place.image);
        let is_alone = place.image.as_os_str() == argument;
        let may_be_content = is_file && is_alone && !begins_as_volume(&place.image);
        if (!is_image || may_be_content)
            && let Some(served) = live::served(Path::new(argument))?
        {
            let path = served.within.into_os_string().into_vec();
            let is_from_top = served.answer.subject.is_shared;
            let spot = PathInVolume { path, is_mounted: true, is_from_top, text };
            return Ok(Self { volume: served.target, elsewhere: None, spot });
        }
        let elsewhere =
            if is_image { None } else { live::describe_host_mount(Path::new(argument)) };
        let spot = PathInVolume { path: place.path, is_mounted: false, is_from_top: false, text };
        Ok(Self { volume: place.image, elsewhere, spot })
    }

    /// Reads an argument that names a place of the same volume. For an image the path alone is
    /// enough.
    ///
    /// # Errors
    ///
    /// If the place lies in another volume.
    pub fn sibling(&self, argument: &OsString) -> Result<PathInVolume> {
        let bytes = argument.as_bytes();
        if !self.spot.is_mounted
            && bytes.first() == Some(&b'/')
            && VolumePath::parse(argument).image != self.volume
        {
            let text = names::of_path(argument);
            return Ok(PathInVolume { path: bytes.to_vec(), text, ..self.spot.clone() });
        }
        let other = Self::parse(argument)?;
        if !self.is_one_with(&other) {
            let what =
                format!("{}: lies in another volume than {}", other.spot.text, self.spot.text);
            return Err(Failure::new(Exit::Usage, what));
        }
        Ok(other.spot)
    }

    /// Returns whether two places are in the same volume: the same image, or an image and its
    /// mount.
    pub fn is_one_with(&self, other: &Self) -> bool {
        let (volume, other) = (&self.volume, &other.volume);
        let file = |name: &Path| closing::full_name(name).ok();
        let server = |name: &Path| live::find(name).ok().flatten().map(|(socket, _)| socket);
        let same = |one: Option<PathBuf>, other| one.is_some() && one == other;
        volume == other || same(file(volume), file(other)) || same(server(volume), server(other))
    }
}

/// Whether a file has the mark of a superblock.
#[must_use]
pub fn begins_as_volume(file: &Path) -> bool {
    let mut mark = [0; MAGIC.len()];
    let read = File::open(file).and_then(|file| file.read_exact_at(&mut mark, MAGIC_AT));
    read.is_ok() && mark == MAGIC
}
