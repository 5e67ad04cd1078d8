//! Volumes with a stripe tree: each byte of written data has an item that says where it lies, at
//! every moment at which the power may be cut.
//!
//! `BUTTRESS_CUTS` multiplies the number of checked states.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_check::Severity;
use buttress_format::{DeviceId, Key, Kind, Profile, RootItem, TreeId};
use buttress_fs::make::{Features, make_on};
use buttress_fs::{
    BalanceOptions, FallocateMode, Filesystem, Filter, Inode, InodeFlags, MakeOptions,
    MountOptions, NewInode,
};
use buttress_sim::{Log, campaign};
use buttress_tree::{Cursor, Geometry, NodePtr, Store, boot};
use buttress_volume::{OpenOptions, Volume};

use crate::volume::{content, file_with, list, nocow, pattern, setting};

const ROUNDS: u64 = 5;
const FILES: u64 = 10;

fn options(data: Profile) -> MakeOptions {
    let features = Features { raid_stripe_tree: true, ..Features::default() };
    MakeOptions { data: Some(data), features, ..MakeOptions::default() }
}

fn made(data: Profile, count: usize, mib: u64) -> Vec<MemoryDevice> {
    let bases: Vec<_> = (0..count).map(|_| MemoryDevice::new(mib << 20)).collect();
    let parts: Vec<_> = bases.iter().map(|device| device as &dyn Device).collect();
    make_on(&parts, &options(data)).expect("a volume");
    bases
}

fn open(devices: &[Arc<dyn Device>], options: &str) -> Filesystem {
    let options = MountOptions::parse(options).expect("options");
    Filesystem::open(devices.to_vec(), options).expect("a mount")
}

fn shared(bases: Vec<MemoryDevice>) -> Vec<Arc<dyn Device>> {
    bases.into_iter().map(|base| Arc::new(base) as Arc<dyn Device>).collect()
}

/// Runs the checker, with data. After a power cut, a copy of a superblock may be torn.
fn expect_sound(devices: &[Arc<dyn Device>], when: &str) {
    let options = buttress_check::Options::thorough();
    let report =
        buttress_check::check_devices(devices.to_vec(), &options, &buttress_check::NoProgress);
    let report = report.expect("a volume");
    let wrong = report.issues.iter().filter(|issue| {
        let is_torn = issue.code().starts_with("super-copy");
        // Not even a warning about stripe items: nothing here makes items as Linux does.
        let is_odd = issue.severity() == Severity::Error || issue.code().starts_with("stripe");
        is_odd && !is_torn
    });
    assert!(wrong.count() == 0, "{when}: {}", report.to_text());
}

/// The number of items of the stripe tree.
fn items(devices: &[Arc<dyn Device>]) -> usize {
    let opened = Volume::open(devices.to_vec(), OpenOptions::default());
    let (volume, superblock) = opened.expect("a volume");
    let store = Store::new(Arc::new(volume), Geometry::of(&superblock), 0);
    boot::load_chunks(&store, &superblock).expect("chunks");
    let top = boot::root_tree_root(&superblock);
    let last = Key::new(TreeId::RAID_STRIPE.0, Kind::ROOT_ITEM, u64::MAX);
    let found = Cursor::seek_before(&store, TreeId::ROOT, top, &last).expect("it reads");
    let item = RootItem::parse(found.item().expect("an item")).expect("a root item");
    let root = NodePtr { logical: item.bytenr, generation: item.generation, level: item.level };
    let mut cursor =
        Cursor::seek(&store, TreeId::RAID_STRIPE, root, &Key::MIN).expect("a stripe tree");
    let mut count = 0;
    while cursor.key().is_some() {
        count += 1;
        cursor.advance().expect("it reads");
    }
    count
}

fn name(round: u64, file: u64) -> String {
    format!("r{round}f{file}")
}

fn expected(round: u64, file: u64) -> Vec<u8> {
    let len = match file % 5 {
        0 => 700_000,
        1 => 65_536,
        2 => 140_000,
        more => 4096 * more as usize + 17,
    };
    pattern(round * 100 + file, len)
}

/// One round: files are made in several ways, and files of older rounds go.
fn work(fs: &Filesystem, held: &Inode, round: u64) {
    let root = fs.root();
    for file in 0..FILES {
        let bytes = expected(round, file);
        let made = match file % 3 {
            0 => file_with(&root, &name(round, file), &bytes),
            // Space that is allocated ahead, and only a part of it is written.
            1 => {
                let made = root.create(name(round, file).as_bytes(), NewInode::file(0o644));
                let made = made.expect("a file");
                let mode = FallocateMode::Allocate { keep_size: true };
                made.fallocate(0, bytes.len() as u64 + 300_000, mode).expect("space");
                made.write_at(0, &bytes).expect("a write");
                made
            }
            _ => {
                let made = nocow(fs, &name(round, file));
                made.write_at(0, &vec![7; bytes.len()]).expect("a write");
                made.flush_data().expect("written");
                made.write_at(0, &bytes).expect("a write in place");
                made
            }
        };
        if file % 4 == 0 {
            made.sync().expect("an fsync");
        }
        if round > 2 {
            root.unlink(name(round - 2, file).as_bytes()).expect("an old file");
        }
    }
    // A shared extent, of which parts are overwritten.
    held.write_at(round * 50_000, &pattern(round, 40_000)).expect("a write");
    let copy =
        root.create(format!("copy{round}").as_bytes(), NewInode::file(0o644)).expect("a file");
    held.flush_data().expect("written");
    held.clone_range(0, &copy, 0, 0).expect("shared");
}

fn power_is_cut(data: Profile, count: usize) {
    let bases = made(data, count, 512);
    let log = Log::new();
    let recorders: Vec<_> = bases.iter().map(|base| log.device(base, 4096)).collect();
    let devices: Vec<_> =
        recorders.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    let fs = open(&devices, "rw");
    log.start(&recorders.iter().map(|device| &**device).collect::<Vec<_>>());
    let held = file_with(&fs.root(), "held", &pattern(3, 400_000));
    for round in 1..=ROUNDS {
        work(&fs, &held, round);
        fs.sync().expect("a sync");
        log.mark(round);
    }
    let moved = fs.balance(&BalanceOptions::full(), &mut |_| true).expect("a balance");
    assert!(moved.completed > 1, "{moved:?}");
    drop(held);
    fs.close().expect("a close");
    expect_sound(&devices, "at the end");
    assert!(items(&devices) > 60);

    let more = setting("BUTTRESS_CUTS", 1) as usize;
    let stride = (log.len() / (12 * more)).max(1);
    let shown = log.crashes(&mut Rng::new(41 + campaign::round()), 1, stride, |crash| {
        let round = crash.mark.unwrap_or(0);
        let when = format!("event {} draw {} round {round}", crash.event, crash.draw);
        let fork = |device: &MemoryDevice| Arc::new(device.fork()) as Arc<dyn Device>;
        let devices: Vec<_> = crash.devices.iter().map(fork).collect();
        expect_sound(&devices, &when);
        let fs = open(&devices, "rw");
        assert_eq!(fs.read_only_reason(), None, "{when}");
        let root = fs.root();
        for file in (0..FILES).filter(|_| round > 0) {
            let found = root.lookup(name(round, file).as_bytes());
            let found = content(&found.unwrap_or_else(|e| panic!("{when}: {e}")));
            assert!(found == expected(round, file), "{when}: file {file}");
        }
        list(&root).iter().for_each(|name| {
            content(&root.lookup(name.as_bytes()).expect("a file"));
        });
        file_with(&root, "after", &pattern(9, 300_000));
        if fs.paused_balance().expect("readable").is_some() {
            fs.resume_balance(&mut |_| true).expect("it goes on");
        }
        drop(root);
        fs.close().expect("a close");
        expect_sound(&devices, &when);
    });
    campaign::count("states", shown);
    assert!(shown > 20, "{shown} states");
}

#[test]
fn power_is_cut_with_two_copies_on_one_device() {
    power_is_cut(Profile::Dup, 1);
}

#[test]
fn power_is_cut_with_stripes() {
    power_is_cut(Profile::Raid0, 3);
}

#[test]
fn power_is_cut_with_mirrors() {
    power_is_cut(Profile::Raid1, 2);
}

#[test]
fn power_is_cut_with_striped_mirrors() {
    power_is_cut(Profile::Raid10, 4);
}

/// A balance to other profiles makes the items of the new places, and removes the old ones. Data
/// in one copy has no items. Parity is refused.
#[test]
fn groups_are_converted() {
    let devices = shared(made(Profile::Single, 4, 512));
    let fs = open(&devices, "rw");
    let held = file_with(&fs.root(), "held", &pattern(3, 400_000));
    work(&fs, &held, 1);
    drop(fs.root().snapshot(b"before", TreeId::FS, true).expect("a snapshot"));
    work(&fs, &held, 2);
    drop(held);
    fs.close().expect("a close");
    expect_sound(&devices, "in one copy");
    assert_eq!(items(&devices), 0);
    let profiles = [
        Profile::Raid1,
        Profile::Raid0,
        Profile::Raid1c4,
        Profile::Dup,
        Profile::Raid10,
        Profile::Raid1c3,
    ];
    for profile in profiles {
        let fs = open(&devices, "rw");
        let to = |profile| {
            let data = Filter { convert: Some(profile), ..Filter::default() };
            BalanceOptions { data: Some(data), ..BalanceOptions::default() }
        };
        fs.balance(&to(profile), &mut |_| true).expect("a balance");
        fs.balance(&to(Profile::Raid5), &mut |_| true).expect_err("parity");
        for file in 0..FILES {
            let found = fs.root().lookup(name(2, file).as_bytes()).expect("a file");
            assert!(content(&found) == expected(2, file), "{profile:?} {file}");
        }
        fs.close().expect("a close");
        expect_sound(&devices, profile.name());
        assert!(items(&devices) > 60, "{profile:?}");
    }
    let fs = open(&devices, "rw");
    let data = Filter { convert: Some(Profile::Single), ..Filter::default() };
    let options = BalanceOptions { data: Some(data), ..BalanceOptions::default() };
    fs.balance(&options, &mut |_| true).expect("a balance");
    fs.close().expect("a close");
    expect_sound(&devices, "in one copy again");
    assert_eq!(items(&devices), 0);
}

/// A device is removed, and deleting everything removes every item.
#[test]
fn devices_come_and_go() {
    let devices = shared(made(Profile::Raid1, 3, 512));
    let fs = open(&devices, "rw");
    let held = file_with(&fs.root(), "held", &pattern(3, 400_000));
    work(&fs, &held, 1);
    fs.sync().expect("a sync");
    drop(held);
    fs.remove_device(DeviceId(2), &mut |_| true).expect("a removal");
    let devices = [Arc::clone(&devices[0]), Arc::clone(&devices[2])];
    fs.close().expect("a close");
    expect_sound(&devices, "removed");
    let fs = open(&devices, "rw");
    for file in 0..FILES {
        let found = fs.root().lookup(name(1, file).as_bytes()).expect("a file");
        assert!(content(&found) == expected(1, file), "{file}");
        drop(found);
        fs.root().unlink(name(1, file).as_bytes()).expect("it goes");
    }
    for other in ["held", "copy1"] {
        fs.root().unlink(other.as_bytes()).expect("it goes");
    }
    fs.close().expect("a close");
    expect_sound(&devices, "empty");
    assert_eq!(items(&devices), 0);
}

/// A full volume refuses writes and commits none the less. Large files without checksums have many
/// stripe items, and nothing else that takes metadata.
#[test]
fn a_full_volume_still_commits() {
    for (data, count) in [(Profile::Raid0, 2), (Profile::Dup, 1)] {
        let devices = shared(made(data, count, 160));
        let fs = open(&devices, "rw");
        let mut refused = 0;
        for round in 0..3 {
            let mut number = 0;
            loop {
                let name = format!("n{round}-{number}");
                let Ok(file) = fs.root().create(name.as_bytes(), NewInode::file(0o644)) else {
                    break;
                };
                if number % 2 == 0 && file.set_flags(InodeFlags::NODATACOW).is_err() {
                    break;
                }
                let bytes = pattern(number, if number % 7 == 0 { 6_000_000 } else { 30_000 });
                if file.write_at(0, &bytes).is_err() || file.flush_data().is_err() {
                    break;
                }
                number += 1;
            }
            refused += number;
            fs.sync().expect("a commit");
            for gone in (0..number).step_by(2) {
                fs.root().unlink(format!("n{round}-{gone}").as_bytes()).expect("it goes");
            }
            fs.sync().expect("a commit");
        }
        assert!(refused > 40, "{refused}");
        assert_eq!(fs.read_only_reason(), None);
        fs.close().expect("a close");
        expect_sound(&devices, "full");
    }
}
