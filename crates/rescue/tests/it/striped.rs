//! Striped volumes without a chunk tree: the order of the devices is found again.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_check::{NoProgress as Quiet, Options, check_devices};
use buttress_format::{Profile, TreeId};
use buttress_fs::{Filesystem, MakeOptions, MountOptions, NewInode};
use buttress_rescue::{
    Condition, Entry, Mend, NoProgress, RestoreOptions, Salvage, SalvageOptions, State, apply,
    plan, restore,
};
use buttress_volume::Volume;

use crate::volume::noise;

const MIB: u64 = 1 << 20;

fn as_devices(devices: &[Arc<MemoryDevice>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect()
}

fn content(number: u64) -> Vec<u8> {
    noise(number, 40_000 + number as usize * 7001)
}

/// Content that repeats, which must not mislead, and a part that does not.
fn same(number: u64) -> Vec<u8> {
    [vec![7; 200_000], noise(1000 + number, 100_000)].concat()
}

/// A volume with `count` devices of different sizes, so that the order in chunks is not the order
/// of the numbers.
fn made(metadata: &str, data: &str, count: u64, options: &str) -> Vec<Arc<MemoryDevice>> {
    let size = |at: u64| (500 + at * 3 % 7 * 100) * MIB;
    let devices: Vec<_> = (0..count).map(|at| Arc::new(MemoryDevice::new(size(at)))).collect();
    let list: Vec<&dyn Device> = devices.iter().map(|device| &**device as _).collect();
    let mut how = MakeOptions { seed: Some(9), nodesize: 4096, ..MakeOptions::default() };
    how.data = Profile::parse(data);
    how.metadata = Profile::parse(metadata);
    buttress_fs::make::make_on(&list, &how).expect("an empty volume");
    let options = MountOptions::parse(options).expect("options");
    let fs = Filesystem::open(as_devices(&devices), options).expect("a mount");
    for number in 0..60 {
        let name = format!("file {number}");
        let other = fs.root().create(format!("{name} same").as_bytes(), NewInode::file(0o644));
        other.expect("a file").write_at(0, &same(number)).expect("a write");
        let file = fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
        file.write_at(0, &content(number)).expect("a write");
        file.sync().expect("a log");
    }
    fs.close().expect("an unmount");
    devices
}

/// Overwrites every node of the chunk tree, of any age.
fn without_chunk_tree(devices: &[Arc<MemoryDevice>]) {
    let fsid = Volume::read_superblock(&*devices[0]).expect("a superblock").tree_fsid();
    let mut head = [0; 4096];
    let mut count = 0;
    for device in devices {
        for at in (0..device.len()).step_by(4096) {
            device.read_at(at, &mut head).expect("a read");
            if head[32..48] == fsid && head[88..96] == TreeId::CHUNK.0.to_le_bytes() {
                device.write_at(at, &[0x5a; 4096]).expect("damage");
                count += 1;
            }
        }
    }
    assert!(count > 0, "there was a chunk tree");
}

/// Restores all files, and compares them. Returns the number of whole files, and the notes.
fn restored(devices: &[Arc<MemoryDevice>]) -> (usize, Vec<String>) {
    let mut list = as_devices(devices);
    list.reverse();
    let salvage = Salvage::open(list, SalvageOptions::default(), Arc::new(NoProgress));
    let salvage = salvage.expect("a volume");
    let state = State::newest(&salvage).expect("a state");
    let folder = tempfile::tempdir().expect("a folder");
    let mut entries = BTreeMap::new();
    let mut each = |entry: &Entry| {
        entries.insert(String::from_utf8_lossy(&entry.path).into_owned(), entry.clone());
    };
    let options = RestoreOptions::default();
    restore(&salvage, &state, &options, Some(folder.path()), &mut each).expect("restored");
    let mut whole = 0;
    for number in 0..60 {
        let name = format!("file {number}");
        for (name, right) in [(format!("{name} same"), same(number)), (name, content(number))] {
            if entries.get(&name).is_some_and(|entry| entry.condition == Condition::Whole) {
                let found = std::fs::read(folder.path().join(&name)).expect("a file");
                assert!(found == right, "{name} has wrong bytes");
                whole += 1;
            }
        }
    }
    (whole, salvage.notes().to_vec())
}

const LAYOUTS: [(&str, &str, u64); 8] = [
    ("raid1", "raid0", 2),
    ("raid0", "raid0", 3),
    ("raid10", "raid10", 4),
    ("raid1", "raid10", 6),
    ("raid1", "raid5", 3),
    ("raid1c3", "raid6", 4),
    ("raid5", "raid5", 4),
    ("raid6", "raid6", 5),
];

/// All files come back as a whole, with all devices, and with as few as the profile allows.
#[test]
fn stripes_find_their_places() {
    for (metadata, data, count) in LAYOUTS {
        let devices = made(metadata, data, count, "rw");
        without_chunk_tree(&devices);
        let (whole, notes) = restored(&devices);
        assert_eq!(whole, 120, "{metadata} {data}: {notes:?}");
        let least = if data == "raid6" { 2 } else { 1 };
        // A node that is alone in its row is like its parity, so devices of both are needed.
        let has_parity = ["raid5", "raid6"].contains(&metadata);
        let spare = !has_parity
            && [metadata, data].iter().all(|profile| {
                Profile::parse(profile).is_some_and(|profile| profile.spread().tolerated >= least)
            });
        if spare {
            let (whole, notes) = restored(&devices[least..]);
            assert_eq!(whole, 120, "{metadata} {data} without {least}: {notes:?}");
        }
    }
}

/// `chunk-recover` writes the chunk tree anew, and the volume is sound.
#[test]
fn the_chunk_tree_of_a_striped_volume_is_written_anew() {
    for (metadata, data, count) in [("raid1", "raid0", 3), ("raid1", "raid10", 4)] {
        let devices = made(metadata, data, count, "rw");
        without_chunk_tree(&devices);
        let list = as_devices(&devices);
        let fixes =
            plan(&list, Mend::ChunkRecover, SalvageOptions::default(), Arc::new(NoProgress))
                .expect("a plan");
        assert_eq!(fixes.len(), 1, "{fixes:?}");
        apply(&list, &fixes).expect("written");
        let report = check_devices(as_devices(&devices), &Options::thorough(), &Quiet);
        let report = report.expect("a report");
        assert!(report.is_clean(), "{metadata} {data}: {:?}", report.issues);
        assert_eq!(restored(&devices).0, 120);
    }
}

/// Data without checksums gives no evidence, so it is not given out in a guessed order.
#[test]
fn no_order_is_guessed() {
    let devices = made("raid1", "raid0", 3, "rw,nodatasum");
    without_chunk_tree(&devices);
    let (whole, notes) = restored(&devices);
    assert_eq!(whole, 0, "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("nothing tells the order")), "{notes:?}");
}
