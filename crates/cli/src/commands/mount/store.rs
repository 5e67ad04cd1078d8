//! Mount options and figures of a volume in a store of objects.

use std::path::Path;

use buttress_remote::{Asked, MOUNT_OPTION_NAMES, RemoteDevice, is_remote};
use serde_json::Value;

use super::{Args, words};
use crate::exit::{Exit, Failure, Result};
use crate::figures::Figures;

/// Says whether a mount option is one of volumes in stores.
pub(super) fn takes(word: &str) -> bool {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    MOUNT_OPTION_NAMES.contains(&name)
}

/// How the volume is to be opened, by the command line.
pub(super) fn asked(args: &Args, image: &Path) -> Result<Asked> {
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

/// The figures of an open volume.
pub(super) fn figures(device: &RemoteDevice) -> Figures {
    match serde_json::to_value(device.status()) {
        Ok(Value::Object(figures)) => figures.into_iter().collect(),
        _ => Figures::new(),
    }
}
