//! The two volumes of a run: sparse images, on loop devices or by themselves.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::Result;

/// How long servers of a killed test may take to end.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Two volumes. Loop devices are detached, and the images removed, at the end.
#[derive(Debug)]
pub(super) struct Volumes {
    work: PathBuf,
    /// The loop devices, or the images.
    devices: Vec<String>,
    on_loops: bool,
}

impl Volumes {
    /// Makes two images of `gib` GiB each in a folder. Makes loop devices of them if `on_loops`,
    /// which needs root.
    pub(super) fn new(work: &Path, gib: u64, on_loops: bool, program: &Path) -> Result<Self> {
        let work = work.canonicalize().map_err(|error| error.to_string())?;
        let mut volumes = Self { work, devices: Vec::new(), on_loops };
        // Filters of the suite replace the path of a mount point, also at the start of other paths.
        for name in ["image-1", "image-2"] {
            let path = volumes.work.join(name);
            // The loop device of an earlier run may still use the old file, which then has no name.
            drop(std::fs::remove_file(&path));
            let file = std::fs::File::create(&path).map_err(|error| error.to_string())?;
            file.set_len(gib << 30).map_err(|error| error.to_string())?;
            if on_loops {
                let device = must(Command::new("losetup").args(["--find", "--show"]).arg(&path))?;
                volumes.devices.push(device.trim().to_owned());
            } else {
                volumes.devices.push(path.display().to_string());
            }
        }
        volumes.anew(program)?;
        Ok(volumes)
    }

    /// Makes the volume of the first device anew, after the servers of a killed test have released
    /// the device.
    pub(super) fn anew(&self, program: &Path) -> Result<()> {
        let begun = Instant::now();
        loop {
            match must(Command::new(program).args(["mkfs", "--force", self.test()])) {
                Err(_) if begun.elapsed() < TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(200));
                }
                other => return other.map(drop),
            }
        }
    }

    pub(super) fn work(&self) -> &Path {
        &self.work
    }

    pub(super) fn test(&self) -> &str {
        &self.devices[0]
    }

    pub(super) fn scratch(&self) -> &str {
        &self.devices[1]
    }
}

impl Drop for Volumes {
    fn drop(&mut self) {
        for device in self.devices.iter().filter(|_| self.on_loops) {
            drop(must(Command::new("losetup").args(["--detach", device])));
        }
        for name in ["image-1", "image-2"] {
            drop(std::fs::remove_file(self.work.join(name)));
        }
    }
}

/// Runs a command that must work; returns what it prints.
pub(super) fn must(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{name}: {}{}", output.status, String::from_utf8_lossy(&output.stderr)))
}
