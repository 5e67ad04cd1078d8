//! Opens a device that the mount before may still have, because it is writing its last: umount(8) does not wait for that.

use std::path::Path;
use std::time::{Duration, Instant};

use buttress_block::{Error, FileDevice, OpenOptions};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::exit::{Failure, Result};
use crate::ui::Ui;

/// How long a mount waits for the one before it to write its last.
const FINISHING_MAX: Duration = Duration::from_secs(30);
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Opens a device, and waits if the mount before is only writing its last.
pub(super) fn open_device(path: &Path, how: OpenOptions, ui: &Ui) -> Result<FileDevice> {
    let deadline = Instant::now() + FINISHING_MAX;
    let mut is_told = false;
    let mut is_again = false;
    loop {
        match FileDevice::open(path, how) {
            Err(Error::Locked { pid, .. })
                if Instant::now() < deadline
                    // Whoever was in the way was gone when he was looked up; but nobody who cannot be seen from here is waited for.
                    && pid.map_or(is_told || !is_again, |pid| is_finishing(pid, path)) =>
            {
                is_again = true;
                if let Some(pid) = pid.filter(|_| !is_told) {
                    let path = path.display();
                    ui.note(format!("{path}: waiting for process {pid} to finish writing"));
                    is_told = true;
                }
                std::thread::sleep(RETRY_AFTER);
            }
            opened => return opened.map_err(Failure::of_device),
        }
    }
}

/// Says whether a process is one of ours that has lost its mount already: then it will let go soon. One that is gone has; one that
/// is only hidden from us (`hidepid`) is there.
fn is_finishing(pid: u32, image: &Path) -> bool {
    let Ok(name) = std::fs::read_to_string(format!("/proc/{pid}/comm")) else {
        let raw = pid.try_into().ok().and_then(Pid::from_raw);
        return raw.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH));
    };
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mounts")).unwrap_or_default();
    let source = image.to_string_lossy().replace('\\', "\\134").replace(' ', "\\040");
    let is_mounted = mounts
        .lines()
        .any(|line| line.contains(" fuse.buttress ") && line.split(' ').next() == Some(&source));
    name.trim() == "buttress" && !is_mounted
}
