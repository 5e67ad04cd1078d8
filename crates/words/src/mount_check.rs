//! The look at devices with which verbs of btrfs-progs begin that need them unmounted.

use std::path::Path;

use crate::exit::{Exit, Failure, Result};
use crate::location::Location;

/// Refuses a name that leads to nothing, in the two lines of btrfs-progs.
///
/// # Errors
///
/// There is no such file, or this user may not look at it.
pub fn expect_there(device: &Path) -> Result<()> {
    if !matches!(Location::parse(device.as_os_str()), Location::Host(_)) {
        return Ok(());
    }
    let Err(error) = device.metadata() else { return Ok(()) };
    let (name, why) = (device.display(), plain(&error));
    let what = format!("mount check: cannot open {name}: {why}");
    Err(Failure::new(Exit::Failure, format!("{what}\nERROR: could not check mount status: {why}")))
}

/// The text of an error of the system, without its number.
pub(crate) fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
