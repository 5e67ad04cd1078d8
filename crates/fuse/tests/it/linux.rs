//! Volumes that Linux itself has mounted, to compare with.

use std::path::{Path, PathBuf};
use std::process::Command;

use buttress_test_program::{is_met, unless_busy};
use tempfile::TempDir;

const LEN: u64 = 1 << 30;

/// A volume that Linux has mounted on a loop device; unmounted when it is dropped.
pub(crate) struct Linux {
    _directory: TempDir,
    path: PathBuf,
}

impl Linux {
    /// Makes a volume and mounts it with options. Returns `None`, and prints a message, if that is
    /// impossible here.
    pub(crate) fn mounted(options: &str) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (image, path) = (directory.path().join("image"), directory.path().join("mount"));
        std::fs::File::create(&image).and_then(|file| file.set_len(LEN)).expect("a sparse file");
        std::fs::create_dir(&path).expect("a directory to mount on");
        let is_made = is_done(Command::new("mkfs.btrfs").args(["-q", "-f"]).arg(&image));
        let is_mounted = is_made && mount(&image, &path, options);
        is_met(is_mounted, "mkfs.btrfs, a loop device and a kernel with btrfs")
            .then_some(Self { _directory: directory, path })
    }

    /// Mounts a copy of an image with options. Returns `None`, and prints a message, if that is
    /// impossible here.
    pub(crate) fn of_copy(image: &Path, options: &str) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (copy, path) = (directory.path().join("image"), directory.path().join("mount"));
        std::fs::create_dir(&path).expect("a directory to mount on");
        let is_copied = is_done(Command::new("cp").arg("--sparse=always").arg(image).arg(&copy));
        let is_mounted = is_copied && mount(&copy, &path, options);
        is_met(is_mounted, "a loop device and a kernel with btrfs")
            .then_some(Self { _directory: directory, path })
    }

    /// Its top directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn is_done(command: &mut Command) -> bool {
    command.status().is_ok_and(|done| done.success())
}

fn mount(image: &Path, path: &Path, options: &str) -> bool {
    let options = format!("loop,{options}");
    is_done(Command::new("mount").args(["-o", &options]).arg(image).arg(path))
}

impl Drop for Linux {
    fn drop(&mut self) {
        let _ = unless_busy(|| Command::new("umount").arg(&self.path).output());
    }
}
