//! Files on the host that verbs write their results to.
//!
//! # Invariants
//!
//! - **OU1** A result never overwrites a volume, another known format, or a device that a program
//!   uses. An existing file or block device is claimed as each writer of a device claims it, and
//!   looked at, before it is cut. The claim lasts until the result is written.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use buttress_block::{FileDevice, OpenOptions, probe};

use crate::exit::{Context, Exit, Failure, Result};

/// The file of a result, and the claim on what was there before (OU1).
pub(crate) struct Output {
    pub(crate) file: File,
    _claim: Option<FileDevice>,
}

/// Opens a file for a result, and empties it. A new file gets `mode`.
pub(crate) fn create(path: &Path, mode: u32) -> Result<Output> {
    // Pipes, terminals and empty files hold nothing that could be lost.
    let holds = path.metadata().is_ok_and(|metadata| {
        let kind = metadata.file_type();
        kind.is_file() && metadata.len() > 0 || kind.is_block_device()
    });
    let claim = if holds { Some(claimed(path)?) } else { None };
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(mode);
    let file = options.open(path).context(|| path.display().to_string())?;
    Ok(Output { file, _claim: claim })
}

/// Writes a whole result.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<()> {
    let mut output = create(path, 0o666)?;
    std::io::Write::write_all(&mut output.file, content).context(|| path.display().to_string())
}

fn claimed(path: &Path) -> Result<FileDevice> {
    let device = FileDevice::open(path, OpenOptions::WRITE).map_err(Failure::of_device)?;
    match probe::identify(&device).map_err(Failure::of_device)? {
        None => Ok(device),
        Some(found) => {
            let what = format!("{}: holds {found}, which is not overwritten", path.display());
            Err(Failure::new(Exit::Refused, what))
        }
    }
}
