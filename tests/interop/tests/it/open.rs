//! Opening images through the library.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_fs::{Filesystem, MountOptions, Result, ScrubOptions, ScrubProgress};
use buttress_interop::linux::Images;
use buttress_interop::manifest::{Depth, Manifest};

/// Opens the image files for reading only, or for writing.
pub(crate) fn try_open(paths: &[PathBuf], writable: bool) -> Result<Filesystem> {
    try_open_with(paths, if writable { "rw,noatime" } else { "ro,noatime" })
}

fn try_open_with(paths: &[PathBuf], options: &str) -> Result<Filesystem> {
    let options = MountOptions::parse(options).expect("known options");
    let unlocked = OpenOptions { lock: false, ..OpenOptions::READ };
    let is_seed = |path: &PathBuf| {
        let opened = FileDevice::open(path, unlocked);
        paths.len() > 1 && opened.is_ok_and(|device| buttress_volume::holds_seed(&device))
    };
    let device = |path: &PathBuf| -> Arc<dyn Device> {
        let is_read = options.read_only || is_seed(path);
        Arc::new(opened(path, if is_read { OpenOptions::READ } else { OpenOptions::WRITE }))
    };
    Filesystem::open(paths.iter().map(device).collect(), options)
}

/// Opens one image file. Linux releases a loop device only a moment after the request to detach it,
/// so this function tries several times.
fn opened(path: &Path, how: OpenOptions) -> FileDevice {
    let mut tries = 0;
    loop {
        match FileDevice::open(path, how) {
            Err(buttress_block::Error::Looped { .. }) if tries < 100 => tries += 1,
            outcome => return outcome.unwrap_or_else(|error| panic!("{error}")),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Opens the image files with mount options, which must work.
#[track_caller]
pub(crate) fn open_with(paths: &[PathBuf], options: &str) -> Filesystem {
    try_open_with(paths, options)
        .unwrap_or_else(|error| panic!("the volume does not open: {error}"))
}

/// Opens the image files as [`try_open`] does, and panics if they do not open.
#[track_caller]
pub(crate) fn open(paths: &[PathBuf], writable: bool) -> Filesystem {
    try_open(paths, writable).unwrap_or_else(|error| panic!("the volume does not open: {error}"))
}

/// The manifest through the library, read-only.
#[track_caller]
pub(crate) fn manifest(paths: &[PathBuf]) -> Manifest {
    let filesystem = open(paths, false);
    let manifest = Manifest::of_library(&filesystem);
    close(filesystem);
    manifest
}

/// Closes, which must work.
#[track_caller]
pub(crate) fn close(filesystem: Filesystem) {
    if let Err(error) = filesystem.close() {
        panic!("the volume does not close: {error}");
    }
}

/// Opens one image for writing, without looking at what is in it.
pub(crate) fn try_device(path: &Path) -> std::result::Result<FileDevice, String> {
    FileDevice::open(path, OpenOptions::WRITE).map_err(|error| error.to_string())
}

/// The most bytes by which a commit during a scrub may change the bytes in use.
const BESIDE_MAX: u64 = 1 << 20;

/// Scrubs from the first address to the last. All errors must be correctable. Without a commit
/// meanwhile, the scrub checks exactly the bytes in use.
#[track_caller]
pub(crate) fn scrubbed(filesystem: &Filesystem, read_only: bool) -> ScrubProgress {
    let options = ScrubOptions { read_only, ..ScrubOptions::default() };
    let mut in_use = 0;
    let watch = &mut |progress: &ScrubProgress| {
        in_use = progress.total;
        true
    };
    filesystem.sync().expect("a commit");
    let seen = || {
        let view = filesystem.view();
        (view.frozen().is_some(), view.generation())
    };
    let before = seen();
    let (progress, complete) = filesystem.scrub(options, watch).expect("a scrub");
    assert!(complete && progress.uncorrectable_errors == 0, "{progress:?}");
    // The engine's own work after an opening, such as the removal of empty groups, may commit
    // during the scrub. A few nodes are then added or freed.
    let is_still = !before.0 && seen() == before;
    let allowed = if is_still { 0 } else { BESIDE_MAX };
    let unlike = progress.done.abs_diff(in_use);
    assert!(unlike <= allowed, "{unlike} bytes of {in_use}, still: {is_still}, {progress:?}");
    progress
}

/// The images without the image at index `lost`.
pub(crate) fn without(paths: &[PathBuf], lost: usize) -> Vec<PathBuf> {
    let mut left = paths.to_vec();
    left.remove(lost);
    left
}

/// Linux sees the same files, and finds nothing to repair.
#[track_caller]
pub(crate) fn expect_of_linux(images: &Images, written: &Manifest) {
    let mount = images.mount("");
    let linux = Manifest::of_folder(mount.path());
    written.assert_same("here", &linux, "Linux", Depth::Volume);
    let scrub = mount.btrfs("scrub start -B -R");
    for line in scrub.lines().filter(|line| line.contains("errors:")) {
        assert!(line.trim_end().ends_with(" 0"), "scrub: {scrub}");
    }
    mount.unmount();
}

/// Waits until the space of deleted subvolumes is freed.
#[track_caller]
pub(crate) fn drop_all(filesystem: &Filesystem) {
    for _ in 0..1200 {
        if filesystem.dying_subvolumes().expect("a list").is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("not dropped: {:?}", filesystem.dying_subvolumes());
}
