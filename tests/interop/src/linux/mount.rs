//! A mount of Linux's btrfs that does not outlive its test.

use std::path::Path;
use std::time::Duration;

use buttress_test_program::mounts::NoCopies;

use super::command::{run, try_run};
use super::loop_device::Loop;
use crate::scratch::Scratch;

/// A volume as Linux shows it.
#[derive(Debug)]
pub struct Mount {
    folder: tempfile::TempDir,
    loops: Vec<Loop>,
    mounted: bool,
}

impl Mount {
    #[track_caller]
    pub(super) fn new(scratch: &Scratch, loops: Vec<Loop>, options: &str) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("mount-")
            .tempdir_in(scratch.path())
            .expect("a folder to mount on");
        let mut mount = Self { folder, loops, mounted: false };
        let device = &mount.loops[0].device;
        let at = mount.folder.path().as_os_str();
        let arguments = ["-t", "btrfs", "-o", options, device].map(AsRef::as_ref);
        run("mount", arguments.into_iter().chain([at]));
        mount.mounted = true;
        mount
    }

    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The block devices of the volume.
    #[must_use]
    pub fn devices(&self) -> Vec<&str> {
        self.loops.iter().map(|device| device.device.as_str()).collect()
    }

    /// Adds a device to the volume, and allows writes. If the volume is a seed, a new volume grows
    /// from it.
    ///
    /// # Panics
    ///
    /// If Linux refuses.
    #[track_caller]
    pub fn add_device(&mut self, path: &Path) {
        let added = Loop::attach(path);
        self.btrfs(&format!("device add -f {}", added.device));
        self.loops.push(added);
        let remount = ["-o", "remount,rw"].map(AsRef::as_ref);
        run("mount", remount.into_iter().chain([self.path().as_os_str()]));
    }

    /// Runs `btrfs` with the words of `command` and the mount's path behind them.
    ///
    /// # Panics
    ///
    /// If `btrfs` fails.
    #[track_caller]
    pub fn btrfs(&self, command: &str) -> String {
        let words = command.split_whitespace().map(AsRef::as_ref);
        run("btrfs", words.chain([self.path().as_os_str()]))
    }

    /// Runs a shell script in the mount's folder.
    ///
    /// # Panics
    ///
    /// If any of its commands fails.
    #[track_caller]
    pub fn shell(&self, script: &str) -> String {
        let script = format!("set -euo pipefail; cd '{}'; {script}", self.path().display());
        run("bash", ["-c", &script])
    }

    /// Unmounts, and reports a failure.
    ///
    /// # Panics
    ///
    /// If Linux refuses.
    #[track_caller]
    pub fn unmount(mut self) {
        if let Err(text) = self.try_unmount() {
            panic!("{text}");
        }
    }

    fn try_unmount(&mut self) -> Result<(), String> {
        if !std::mem::take(&mut self.mounted) {
            return Ok(());
        }
        try_unmount(self.folder.path())
    }
}

/// Unmounts a mount that a test made by itself. A program that another test starts inherits open
/// files for a moment, so `umount` may find the mount busy.
///
/// # Panics
///
/// If the mount stays busy.
#[track_caller]
pub fn unmount(place: impl AsRef<Path>) {
    if let Err(text) = try_unmount(place.as_ref()) {
        panic!("{text}");
    }
}

fn try_unmount(place: &Path) -> Result<(), String> {
    let mut last = String::new();
    for _ in 0..50 {
        let no_copies = NoCopies::wait();
        match try_run("umount", [place]) {
            Ok(_) => return Ok(()),
            Err(text) => last = text,
        }
        drop(no_copies);
        std::thread::sleep(Duration::from_millis(100));
    }
    let _ = try_run("umount", ["--lazy".as_ref(), place.as_os_str()]);
    Err(last)
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(text) = self.try_unmount() {
            eprintln!("{text}");
        }
    }
}
