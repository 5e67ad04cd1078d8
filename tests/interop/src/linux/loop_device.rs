//! Loop devices that do not outlive their test.
//!
//! # What must hold
//!
//! - A dropped device is detached, and the kernel has forgotten the volume that it saw there.

use std::path::Path;
use std::time::Duration;

use super::command::try_run;

/// A file as a block device.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) device: String,
}

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
                Ok(text) => return Self { device: text.trim().to_owned() },
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
        }
    }
}
