//! Tests on volumes of several layouts, and with files that reference extents.

use crate::NewInode;
use buttress_format::Profile;

use super::*;
use crate::make::{MakeOptions, make_on};

/// Removes all files that a snapshot shares, on a full volume of `devices` devices of `mib` MiB.
fn removes_all(options: &MakeOptions, devices: usize, mib: u64) {
    let device = |_| Arc::new(MemoryDevice::new(mib << 20)) as Arc<dyn Device>;
    let devices: Vec<_> = (0..devices).map(device).collect();
    let all: Vec<&dyn Device> = devices.iter().map(|device| &**device).collect();
    make_on(&all, options).expect("an empty volume");
    let rules = MountOptions::parse("rw,commit=300").expect("options");
    let fs = Filesystem::open(devices.clone(), rules).expect("a mount");
    populate(&fs, &fs.root());
    for name in [b"one", b"two"] {
        drop(fs.root().snapshot(name, TreeId::FS, true).expect("a snapshot"));
    }
    fill_up(&fs, &fs.root(), "more");
    remove_all(&fs, &dir_of(&fs.root()), 6);
    fs.close().expect("closed");
    check_volumes(devices);
}

/// Y1 holds with small nodes, with one copy of metadata, with copies on two devices, and in mixed
/// block groups.
#[test]
fn on_volumes_of_all_shapes() {
    let default = MakeOptions::default;
    removes_all(&MakeOptions { nodesize: 4096, ..default() }, 1, 256);
    removes_all(&MakeOptions { metadata: Some(Profile::Single), ..default() }, 1, 256);
    removes_all(&MakeOptions { metadata: Some(Profile::Raid1), ..default() }, 2, 160);
    removes_all(&MakeOptions { mixed: true, nodesize: 4096, ..default() }, 1, 160);
}

/// In mixed block groups the size of metadata is unknown. Without snapshots the reservation still
/// stays small.
#[test]
fn mixed_groups_keep_nothing_without_snapshots() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(128 * MIB));
    let options = MakeOptions { mixed: true, nodesize: 4096, ..MakeOptions::default() };
    Filesystem::make(&*device, &options).expect("an empty volume");
    let fs = mount(&device, "rw,commit=300");
    populate(&fs, &fs.root());
    drop(fs.root().snapshot(b"before", TreeId::FS, true).expect("a snapshot"));
    assert!(fs.space_stats().accounts.all_for_copies() > 8 * MIB);
    fs.root().delete_subvolume(b"before").expect("deleted");
    wait_for_drops(&fs);
    let accounts = fs.space_stats().accounts;
    assert!(accounts.all_for_copies() < MIB, "{accounts}");
}

/// Y1: the items of extents that one leaf references lie all over the extent tree. One more
/// reference for each may double that tree and the global reserve.
#[test]
fn files_of_some_extents() {
    const EACH: u64 = 10;
    let device = volume(1024);
    let fs = mount(&device, "rw,commit=300");
    let dir = fs.root().mkdir(b"dir", 0o755, 0, 0).expect("a folder");
    let made = |number| dir.create(&name(number), NewInode::file(0o644)).expect("a file");
    let files: Vec<_> = (0..FILES).map(made).collect();
    for round in 0..EACH {
        for file in &files {
            let mode = FallocateMode::Allocate { keep_size: false };
            file.fallocate(round * 2 * SECTOR, SECTOR, mode).expect("there is room");
        }
    }
    drop(files);
    fs.sync().expect("durable");
    drop(fs.root().snapshot(b"before", TreeId::FS, true).expect("a snapshot"));
    fill_up(&fs, &fs.root(), "more");
    remove_all(&fs, &dir, 7);
    // The removed files are freed while the snapshot still has them.
    wait_for(&fs, "removed", || !has_orphans(&fs));
    drop(dir);
    fs.close().expect("closed");
    check_volume(&device);
}
