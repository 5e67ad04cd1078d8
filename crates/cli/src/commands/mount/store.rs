//! Mount options and figures of a volume in a store of objects.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_fuse::Options;
use buttress_remote::{MOUNT_OPTION_NAMES, Newest, OpenRequest, Opened, RemoteDevice, is_remote};
use serde_json::Value;

use super::{Args, words};
use crate::exit::{Exit, Failure, Result};
use crate::figures::Figures;

/// Returns whether a mount option is for volumes in stores.
pub(super) fn takes(word: &str) -> bool {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    // Lines of an fstab may have the name that `timeout` had before.
    MOUNT_OPTION_NAMES.contains(&name) || name == "patience"
}

/// Returns how the command line asks to open the volume.
pub(super) fn asked(args: &Args, image: &Path) -> Result<OpenRequest> {
    let mut asked = args.devices.asked();
    for word in words(&args.options).filter(|word| takes(word)) {
        if !is_remote(image) {
            let what = format!("mount option {word}: is of volumes in a store of objects");
            return Err(Failure::new(Exit::Usage, what));
        }
        let (name, value) = word.split_once('=').unwrap_or((word, "yes"));
        asked.options.push((name.to_owned(), value.to_owned()));
    }
    Ok(asked)
}

/// The name of the volume with its option `follow`. A mount that follows has a server of its own,
/// so it needs another name than a mount that writes.
pub(super) fn shown_name(image: PathBuf, asked: &OpenRequest) -> PathBuf {
    let follow = asked.options.iter().find(|(name, _)| name == "follow");
    let Some((name, value)) = follow else { return image };
    let text = image.to_string_lossy();
    if text.contains("follow=") {
        return image;
    }
    let mark = if text.contains('?') { '&' } else { '?' };
    PathBuf::from(format!("{text}{mark}{name}={value}"))
}

/// Returns whether the mount moves to newer commits of a device, which another machine writes.
pub(super) fn is_followed(device: &Opened) -> bool {
    matches!(device, Opened::Remote(device) if device.follows().is_some())
}

/// An open volume in a store, for its figures.
pub(super) enum Shown {
    /// One device during the whole mount.
    Same(Arc<RemoteDevice>),
    /// A device for each commit.
    Follows(Newest),
}

impl Shown {
    /// Returns the volume in a store, if the first device is such a volume. If the mount moves to
    /// newer commits, the volume owns the devices, and closes each device after its last read.
    pub(super) fn of(files: &mut Vec<Opened>, fuse: &mut Options) -> Result<Option<Self>> {
        let Some(Opened::Remote(device)) = files.first() else { return Ok(None) };
        let device = Arc::clone(device);
        fuse.follow = device.follows();
        if fuse.follow.is_none() {
            return Ok(Some(Self::Same(device)));
        }
        if fuse.submounts {
            let why = "follow= and submounts exclude each other".to_owned();
            return Err(Failure::new(Exit::Usage, why));
        }
        files.clear();
        Ok(Some(Self::Follows(device.newest())))
    }

    /// The figures of the volume, or of its newest commit.
    pub(super) fn figures(&self) -> Figures {
        let device = match self {
            Self::Same(device) => Some(Arc::clone(device)),
            Self::Follows(newest) => newest.get(),
        };
        match device.map(|device| serde_json::to_value(device.status())) {
            Some(Ok(Value::Object(figures))) => figures.into_iter().collect(),
            _ => Figures::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::takes;

    #[test]
    fn former_names_of_options_are_taken() {
        assert!(takes("timeout=30") && takes("patience=30"));
        assert!(!takes("compress=zstd") && !takes("follower=1"));
    }
}
