//! Volumes to work on, and `btrfs check`, which checks the volumes that the engine wrote.

use std::{
    path::Path,
    process::Command,
    sync::{Arc, Once},
};

use buttress_block::{FileDevice, OpenOptions};
use buttress_fs::make::{MakeOptions, make};
use buttress_txn::{Engine, EngineOptions};
use buttress_volume::Volume;

/// A sparse image with a new volume on it.
pub(crate) fn volume(dir: &Path, size: u64, options: &MakeOptions) -> std::path::PathBuf {
    let path = dir.join("volume.img");
    let device = FileDevice::create(&path, size).expect("a sparse image");
    make(&device, options).expect("a volume");
    path
}

/// Opens an image for writing.
pub(crate) fn open(path: &Path) -> Arc<Engine> {
    let options = OpenOptions { write: true, ..OpenOptions::default() };
    let device = FileDevice::open(path, options).expect("the image opens");
    let options = buttress_volume::OpenOptions { writable: true, ..Default::default() };
    let (volume, superblock) = Volume::open(vec![Arc::new(device)], options).expect("a volume");
    let engine = Engine::open(Arc::new(volume), superblock, EngineOptions::default())
        .expect("the trees open");
    assert_eq!(engine.read_only(), None);
    engine
}

/// Panics if `btrfs check` finds a fault. Without btrfs-progs, prints once that nothing is checked.
pub(crate) fn check(path: &Path) {
    static SAID: Once = Once::new();
    let outcome = Command::new("btrfs").args(["check", "--check-data-csum"]).arg(path).output();
    let Ok(outcome) = outcome else {
        SAID.call_once(|| eprintln!("SKIPPED: btrfs check (btrfs-progs is not installed)"));
        return;
    };
    let text = String::from_utf8_lossy(&outcome.stdout) + String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success(), "btrfs check: {text}");
}
