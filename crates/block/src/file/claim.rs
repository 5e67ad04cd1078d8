//! Claims of block devices (`file::F1`).

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use buttress_base::{clock, thread};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::error::Error;

/// How long to retry while a block device is in use, and the pause between two attempts.
const BUSY_MAX: Duration = Duration::from_millis(500);
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// Claims a block device: while the file is open, the kernel mounts it nowhere, and no other
/// program can claim it. Retries for a moment, since programs that look for a free loop device, or
/// read partition tables, claim each device for a moment.
pub(super) fn claim(path: &Path) -> Result<File, Error> {
    let begun = clock::now();
    // On a block device, `O_EXCL` without `O_CREAT` fails if the kernel uses the device.
    let flags = OFlags::EXCL.bits().cast_signed();
    loop {
        let opened = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
        let source = match opened {
            Ok(file) => return Ok(file),
            Err(source) => source,
        };
        match Errno::from_io_error(&source) {
            Some(Errno::BUSY) => {
                if clock::since(begun) >= BUSY_MAX {
                    return Err(Error::Busy { path: path.to_owned() });
                }
                thread::sleep(BUSY_PAUSE);
            }
            _ => return Err(Error::Open { path: path.to_owned(), source }),
        }
    }
}
