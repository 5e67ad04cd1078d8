//! Loop devices that do not outlive their test.
//!
//! # What must hold
//!
//! - A dropped device is detached, and the kernel has forgotten the volume that it saw there. While
//!   another process has the device open, the kernel puts the detaching off. The drop waits for it:
//!   else two devices show one image, and a tool that scans may take the one that goes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::command::try_run;

/// A file as a block device.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) device: String,
    /// What the kernel says is behind the device.
    behind: Option<String>,
}

/// How long a drop waits for other processes to close the device.
const TIMEOUT: Duration = Duration::from_secs(20);

impl Loop {
    #[track_caller]
    pub(super) fn attach(path: &Path) -> Self {
        Self::attach_with(path, &[])
    }

    /// Attaches a part of a file: its first byte and its length.
    #[track_caller]
    pub(super) fn attach_part(path: &Path, (start, len): (u64, u64)) -> Self {
        let (start, len) = (format!("--offset={start}"), format!("--sizelimit={len}"));
        Self::attach_with(path, &[&start, &len])
    }

    #[track_caller]
    fn attach_with(path: &Path, more: &[&str]) -> Self {
        let arguments = ["--find", "--show"].iter().chain(more).map(AsRef::as_ref);
        let arguments: Vec<_> = arguments.chain([path.as_os_str()]).collect();
        // Two processes that search for a free device at the same time may find the same device.
        let mut tries = 0;
        loop {
            match try_run("losetup", arguments.iter().copied()) {
                Ok(text) => {
                    let device = text.trim().to_owned();
                    return Self { behind: behind(&device), device };
                }
                Err(text) if tries == 20 => panic!("{text}"),
                Err(_) => tries += 1,
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // The kernel remembers which volume it saw on this device, but the next file on the device
        // has another volume.
        let _ = try_run("btrfs", ["device", "scan", "--forget", &self.device]);
        if let Err(text) = try_run("losetup", ["--detach", &self.device]) {
            eprintln!("{text}");
            return;
        }
        let until = Instant::now() + TIMEOUT;
        while self.behind.is_some() && behind(&self.device) == self.behind {
            if Instant::now() > until {
                return eprintln!("{} is still in use", self.device);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The file behind a device, as the kernel names it. None once the device is detached.
fn behind(device: &str) -> Option<String> {
    let name = Path::new(device).file_name()?;
    let place: PathBuf = [Path::new("/sys/block"), Path::new(name)].iter().collect();
    std::fs::read_to_string(place.join("loop/backing_file")).ok()
}
