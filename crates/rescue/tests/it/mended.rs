//! Repairs are listed first. After they were applied, the checker finds no fault.

use buttress_fs::NewInode;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_check::{NoProgress, Options, check_devices};
use buttress_format::limits::SUPER_OFFSETS;
use buttress_format::{CompatRo, Superblock, TreeId};
use buttress_rescue::{Fix, Mend, NoProgress as Silent, Progress, SalvageOptions, Step, apply};
use buttress_volume::Volume;

use crate::facts::Facts;
use crate::volume::{Shape, opened};

fn as_devices(devices: &[Arc<MemoryDevice>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect()
}

fn plan(devices: &[Arc<dyn Device>], mend: Mend) -> buttress_rescue::Result<Vec<Fix>> {
    buttress_rescue::plan(devices, mend, SalvageOptions::default(), Arc::new(Silent))
}

/// Plans a repair, asserts that nothing was written, applies the repair, and plans again.
#[track_caller]
fn mended(devices: &[Arc<MemoryDevice>], mend: Mend, words: &[&str]) {
    let list = as_devices(devices);
    let before: Vec<_> = devices.iter().map(|device| device.fork()).collect();
    let fixes = plan(&list, mend).expect("a plan");
    let text: Vec<&str> = fixes.iter().map(|fix| fix.what.as_str()).collect();
    let text = text.join("\n");
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text:?}");
    }
    for (device, before) in devices.iter().zip(&before) {
        let (mut one, mut other) = (vec![0; 8 << 20], vec![0; 8 << 20]);
        device.read_at(0, &mut one).expect("read");
        before.read_at(0, &mut other).expect("read");
        assert!(one == other, "a plan writes nothing");
    }
    apply(&list, &fixes).expect("written");
    assert_eq!(plan(&list, mend).expect("a plan"), [], "there is no more to do");
}

#[track_caller]
fn expect_clean(devices: &[Arc<MemoryDevice>]) {
    let report = check_devices(as_devices(devices), &Options::thorough(), &NoProgress);
    let report = report.expect("a report");
    assert!(report.is_clean(), "{:?}", report.issues);
    // The volume can be written again.
    let fs = opened(devices, "rw");
    fs.root().create(b"afterwards", NewInode::file(0o600)).expect("a file");
    fs.close().expect("an unmount");
}

fn superblock(device: &MemoryDevice) -> Superblock {
    Volume::read_superblock_mirror(device, 0).expect("a superblock")
}

/// Each copy is restored from another copy, and an old copy is updated.
#[test]
fn superblocks_come_from_copies() {
    let made = Shape::Mirrored.make();
    for copy in [0, 1] {
        let devices: Vec<_> = made.devices.iter().map(|device| Arc::new(device.fork())).collect();
        for device in &devices {
            device.write_at(SUPER_OFFSETS[copy] + 100, b"damage").expect("damage");
        }
        mended(&devices, Mend::SuperRecover, &["is damaged", "generation"]);
        expect_clean(&devices);
    }
    assert_eq!(plan(&as_devices(&made.devices), Mend::SuperRecover).expect("a plan"), []);
}

/// The chunk tree is rewritten with its former items.
#[test]
fn the_chunk_tree_is_written_anew() {
    for shape in [Shape::Usual, Shape::Mirrored] {
        let made = shape.make();
        let facts = Facts::of(&made.devices);
        let size = facts.superblock.nodesize as usize;
        let mut bytes = vec![0; size];
        Rng::new(3).fill(&mut bytes);
        let chunk_nodes = facts.nodes.values().filter(|node| node.tree == TreeId::CHUNK);
        for (device, at) in chunk_nodes.flat_map(|node| &node.copies) {
            made.devices[*device].write_at(*at, &bytes).expect("damage");
        }
        mended(&made.devices, Mend::ChunkRecover, &["the chunk tree at", "chunks"]);
        expect_clean(&made.devices);
    }
}

/// A log is removed, and the volume opens for writing.
#[test]
fn a_log_is_removed() {
    let made = Shape::Usual.make();
    let fs = opened(&made.devices, "rw");
    let file = fs.root().lookup(b"big").expect("the file");
    file.write_at(0, b"logged").expect("a write");
    file.sync().expect("a sync");
    let devices: Vec<_> = made.devices.iter().map(|device| Arc::new(device.fork())).collect();
    fs.close().expect("an unmount");
    assert_ne!(superblock(&devices[0]).log_root.0, 0, "there is a log");
    mended(&devices, Mend::ZeroLog, &["the log of fsync is removed"]);
    assert_eq!(superblock(&devices[0]).log_root.0, 0);
    expect_clean(&devices);
}

/// The free-space tree is marked as invalid, and the next mount rebuilds it.
#[test]
fn free_space_is_counted_anew() {
    let made = Shape::Usual.make();
    mended(&made.devices, Mend::ClearSpaceCacheV2, &["marked invalid"]);
    let is_valid = || superblock(&made.devices[0]).compat_ro.has(CompatRo::FREE_SPACE_TREE_VALID);
    assert!(!is_valid());
    opened(&made.devices, "rw").close().expect("an unmount");
    assert!(is_valid());
    expect_clean(&made.devices);
    assert_eq!(plan(&as_devices(&made.devices), Mend::ClearSpaceCacheV1).expect("a plan"), []);
}

/// If a device became shorter without losing a chunk, its item gets the new size.
#[test]
fn sizes_of_devices_are_mended() {
    let made = Shape::Usual.make();
    assert_eq!(plan(&as_devices(&made.devices), Mend::FixDeviceSize).expect("a plan"), []);
    let len = made.devices[0].len() - (8 << 20) + 512;
    let devices = [Arc::new(made.devices[0].fork_resized(len))];
    mended(&devices, Mend::FixDeviceSize, &["bytes, not", "bytes in all"]);
    assert_eq!(superblock(&devices[0]).total_bytes, len / 4096 * 4096);
    expect_clean(&devices);
    let short = [Arc::new(made.devices[0].fork_resized(20 << 20))];
    plan(&as_devices(&short), Mend::FixDeviceSize).expect_err("too short");
}

/// The user stops the scan.
#[derive(Debug)]
struct Stopped;

impl Progress for Stopped {
    fn step(&self, _: Step, _: u64) {}

    fn advance(&self, _: u64) {}

    fn goes_on(&self) -> bool {
        false
    }
}

/// A plan of a scan that was stopped is none.
#[test]
fn a_stopped_scan_plans_nothing() {
    let made = Shape::Usual.make();
    let devices = as_devices(&made.devices);
    for mend in [Mend::ChunkRecover, Mend::FixDeviceSize] {
        let options = SalvageOptions::default();
        let plan = buttress_rescue::plan(&devices, mend, options, Arc::new(Stopped));
        let error = plan.expect_err("stopped");
        assert!(error.to_string().contains("stopped before the end"), "{error}");
    }
}
