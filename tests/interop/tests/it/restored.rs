//! `restore` gets the files of volumes of Linux that were cut off in the middle of something.

use std::path::Path;
use std::sync::Arc;

use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_interop::linux::sparse_copy;
use buttress_interop::manifest::{Depth, Manifest};
use buttress_rescue::{Entry, NoProgress, RestoreOptions, Salvage, SalvageOptions, State, restore};

/// Restores an image, with its log of fsync or without.
fn restored(image: &Path, folder: &Path, with_log: bool) -> Manifest {
    let device = FileDevice::open(image, OpenOptions::READ).expect("an image");
    let devices = vec![Arc::new(device) as Arc<dyn Device>];
    let salvage = Salvage::open(devices, SalvageOptions::default(), Arc::new(NoProgress));
    let salvage = salvage.expect("a volume");
    let mut state = State::newest(&salvage).expect("a state");
    if with_log {
        state.replay_log(&salvage);
    }
    let mut bad = Vec::new();
    let mut each = |entry: &Entry| {
        if !entry.lost.is_empty() || !entry.notes.is_empty() {
            bad.push(entry.clone());
        }
    };
    let options = RestoreOptions::default();
    let summary = restore(&salvage, &state, &options, Some(folder), &mut each).expect("files");
    assert_eq!((summary.lost, summary.partly), (0, 0), "{bad:?}");
    assert!(bad.is_empty(), "{bad:?}");
    Manifest::of_folder(folder)
}

/// Compares what `restore` gets from a crashed image with what a mount shows after its replay. The
/// image stays as it is.
#[track_caller]
pub(crate) fn assert_restored(
    what: &str,
    crashed: &Path,
    mounted: &Manifest,
    without_times: fn(Manifest) -> Manifest,
) {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image");
    sparse_copy(crashed, &image);
    let mut found = without_times(restored(&image, &folder.path().join("with"), true));
    // The folder for the files keeps its own attributes.
    let mut mounted = mounted.clone();
    found.entries.insert(Vec::new(), mounted.entries[&Vec::new()].clone());
    // Other file systems do not take the properties of btrfs.
    for entry in mounted.entries.values_mut().chain(found.entries.values_mut()) {
        entry.xattrs.retain(|name, _| !name.starts_with(b"btrfs."));
    }
    mounted.assert_same(&format!("{what}: a mount"), &found, "restore", Depth::Copy);
    restored(&image, &folder.path().join("without"), false);
    let before = std::fs::read(&image).expect("the image");
    assert!(before == std::fs::read(crashed).expect("the image"), "{what}: restore wrote");
}
