//! A volume in a file of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use buttress_block::{Device, Error, FileDevice, Layer, OpenOptions, Space};
use buttress_fs::make::{MakeOptions, make};
use buttress_fs::{Filesystem, MountOptions};
use buttress_test_program::skipped;
use tempfile::TempDir;

const LEN: u64 = 2 << 30;

/// A volume in a file in a temporary directory.
pub(crate) struct Volume {
    directory: TempDir,
}

impl Volume {
    /// Makes an empty volume.
    pub(crate) fn new() -> Self {
        Self::with_len(LEN)
    }

    /// Makes an empty volume of a given size.
    pub(crate) fn with_len(len: u64) -> Self {
        let volume = Self { directory: tempfile::tempdir().expect("a temporary directory") };
        let device = FileDevice::create(volume.image(), len).expect("a sparse file");
        make(&device, &MakeOptions::default()).expect("an empty volume");
        volume
    }

    /// The file that the volume lies in.
    pub(crate) fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    /// The directory to mount the volume on.
    pub(crate) fn mount_point(&self) -> PathBuf {
        let path = self.directory.path().join("mount");
        std::fs::create_dir_all(&path).expect("a directory to mount on");
        path
    }

    /// Opens the volume once more, and then has it checked.
    pub(crate) fn check_volume(&self) {
        open(&self.image()).close().expect("nothing to write");
        let Ok(output) =
            Command::new("btrfs").args(["check", "--check-data-csum"]).arg(self.image()).output()
        else {
            return skipped("btrfs-progs, to check the volume");
        };
        let (said, complained) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "btrfs check: {said}\n{complained}");
    }
}

/// Opens the volume in a file.
pub(crate) fn open(image: &Path) -> Filesystem {
    open_with(image, "")
}

/// Opens an image. Linux releases a loop device only a moment after the end of its mount.
fn opened(image: &Path) -> FileDevice {
    let mut tries = 0;
    loop {
        match FileDevice::open(image, OpenOptions::WRITE) {
            Err(Error::Looped { .. }) if tries < 100 => tries += 1,
            outcome => return outcome.expect("no other process has it"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Opens the volume in a file with options.
pub(crate) fn open_with(image: &Path, options: &str) -> Filesystem {
    let options = MountOptions::parse(options).expect("right options");
    let device = opened(image);
    let directory = image.parent().expect("it is in a directory").to_owned();
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(Held { device, directory })];
    Filesystem::open(devices, options).expect("a sound volume")
}

/// While a file of this name is beside the image, the device does not answer reads.
pub(crate) const HOLD: &str = "hold";
/// While a file of this name is there, the device does not answer flushes.
pub(crate) const HOLD_FLUSH: &str = "hold flush";
/// The device makes a file of this name when a request waits.
pub(crate) const WAITS: &str = "waits";
/// A request that was held back for this time fails.
const HELD_MAX: Duration = Duration::from_secs(120);

/// A device with requests that a test can hold back.
#[derive(Debug)]
struct Held {
    device: FileDevice,
    directory: PathBuf,
}

impl Held {
    /// Waits until the file `by` is gone. Returns `false` if that takes too long.
    fn is_let_go(&self, by: &str) -> bool {
        let since = Instant::now();
        while self.directory.join(by).exists() {
            std::fs::write(self.directory.join(WAITS), b"").expect("written");
            if since.elapsed() > HELD_MAX {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

impl Layer for Held {
    type Inner = FileDevice;

    fn inner(&self) -> &Self::Inner {
        &self.device
    }

    fn on_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let offset = if self.is_let_go(HOLD) { offset } else { u64::MAX };
        self.device.read_at(offset, buf)
    }

    fn on_write_zeroes(&self, offset: u64, len: u64, space: Space) -> Result<(), Error> {
        self.device.write_zeroes(offset, len, space)
    }

    fn on_flush(&self) -> Result<(), Error> {
        match self.is_let_go(HOLD_FLUSH) {
            true => self.device.flush(),
            false => self.device.write_at(u64::MAX, &[]),
        }
    }
}
