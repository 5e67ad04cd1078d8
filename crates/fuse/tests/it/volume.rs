//! A volume in a file of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_fs::make::{MakeOptions, make};
use buttress_fs::{Filesystem, MountOptions};
use tempfile::TempDir;

const LEN: u64 = 2 << 30;

/// A volume, and the directory that goes with it.
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

    /// The file it lies in.
    pub(crate) fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    /// Where to mount it.
    pub(crate) fn mount_point(&self) -> PathBuf {
        let path = self.directory.path().join("mount");
        std::fs::create_dir_all(&path).expect("a directory to mount on");
        path
    }

    /// Opens it once more, and has it judged.
    pub(crate) fn judge(&self) {
        open(&self.image()).close().expect("nothing to write");
        let Ok(output) =
            Command::new("btrfs").args(["check", "--check-data-csum"]).arg(self.image()).output()
        else {
            eprintln!("not judged: btrfs is not installed");
            return;
        };
        let (said, complained) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "btrfs check: {said}\n{complained}");
    }
}

/// Opens the volume in a file.
pub(crate) fn open(image: &Path) -> Filesystem {
    let device = FileDevice::open(image, OpenOptions::WRITE).expect("nobody else has it");
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
    Filesystem::open(devices, MountOptions::default()).expect("a sound volume")
}
