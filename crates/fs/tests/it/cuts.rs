//! Power is cut while subvolumes are copied, deleted and dropped. Acknowledged changes survive, a
//! snapshot is complete or absent, and a drop goes on after the mount.
//!
//! The checker also verifies the counts of full quotas in each state.
//!
//! `BUTTRESS_CUTS` multiplies the number of checked states.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{Filesystem, Inode, MakeOptions, NewInode};
use buttress_sim::{Log, campaign};
use buttress_volume::Volume;

use crate::checker::expect_cut_sound;
use crate::volume::{content, copy, drop_all, file_with, list, mount, pattern, recorded, setting};

const FILES: u64 = 60;
/// Files of a subvolume, so many that a drop of it takes several steps.
const MANY: u64 = 9000;

/// The content of a file of a subvolume after `version` changes.
fn expected(version: u64, file: u64) -> Vec<u8> {
    let seed = if file.is_multiple_of(3) { version * 1000 + file } else { file };
    pattern(seed, 3000 + 150 * file as usize)
}

fn write(dir: &Inode, version: u64) {
    for file in 0..FILES {
        let name = format!("f{file}");
        match dir.lookup(name.as_bytes()) {
            Ok(inode) => {
                inode.write_at(0, &expected(version, file)).expect("written");
            }
            Err(_) => drop(file_with(dir, &name, &expected(version, file))),
        }
    }
}

fn verify(dir: &Inode, version: u64, when: &str) {
    for file in 0..FILES {
        let found = content(&dir.lookup(format!("f{file}").as_bytes()).expect("a file"));
        assert!(
            found == expected(version, file),
            "{when}: file {file} is not of version {version}"
        );
    }
}

fn begun() -> MemoryDevice {
    let device = MemoryDevice::new(256 << 20);
    let options = MakeOptions { nodesize: 4096, ..MakeOptions::default() };
    Filesystem::make(&device, &options).expect("a volume");
    let shared: Arc<dyn Device> = Arc::new(device.fork());
    let fs = mount(&shared);
    fs.enable_quotas(false).expect("quotas");
    let live = fs.root().create_subvolume(b"live", 0o755, 0, 0).expect("a subvolume");
    write(&live, 0);
    drop(fs.root().snapshot(b"first", live.id().tree, false).expect("a snapshot"));
    let many = fs.root().create_subvolume(b"many", 0o755, 0, 0).expect("a subvolume");
    for number in 0..MANY {
        drop(many.create(format!("n{number}").as_bytes(), NewInode::file(0o644)).expect("a file"));
    }
    drop((live, many));
    fs.close().expect("a close");
    copy(&*shared)
}

/// Two power cuts happen, each while the first copy of a superblock is written. The sectors of the
/// first torn superblock name trees that were overwritten before the second cut. Sectors of the two
/// torn superblocks together never make a valid superblock.
#[test]
fn two_torn_superblocks_make_no_third() {
    let base = MemoryDevice::new(256 << 20);
    Filesystem::make(&base, &MakeOptions::default()).expect("a volume");
    let shared: Arc<dyn Device> = Arc::new(base.fork());
    let fs = mount(&shared);
    file_with(&fs.root(), "kept", b"kept");
    fs.close().expect("a close");
    let sector = |device: &dyn Device, number: u64| {
        let mut sector = [0; 512];
        device.read_at((64 << 10) + number * 512, &mut sector).expect("it reads");
        sector
    };
    let cut = |device: &MemoryDevice, files: u64, check: &mut dyn FnMut(&MemoryDevice)| {
        let log = Log::new();
        let recorder = log.device(device, 512);
        log.start(&[&recorder]);
        let fs = mount(&(Arc::clone(&recorder) as Arc<dyn Device>));
        for number in 0..files {
            file_with(&fs.root(), &format!("{files}-{number}"), &pattern(number, 700));
        }
        fs.close().expect("a close");
        log.intervals(&mut Rng::new(1), 1, 100, |crash| check(&crash.devices[0]));
    };
    let (mut torn, mut states) = (0, 0);
    // The runs write different files, so different trees come to the same places.
    cut(&copy(&*shared), 400, &mut |device| {
        // The first sector, which names the trees, is new, and the second sector is old.
        let is_torn = Volume::read_superblock_mirror(device, 0).is_err()
            && sector(device, 0) != sector(&*shared, 0)
            && sector(device, 1) == sector(&*shared, 1);
        if torn == 6 || !is_torn {
            return;
        }
        torn += 1;
        cut(device, 3, &mut |device| {
            states += 1;
            let device: Arc<dyn Device> = Arc::new(device.fork());
            let fs = mount(&device);
            assert_eq!(content(&fs.root().lookup(b"kept").expect("a file")), b"kept");
            list(&fs.root()).iter().for_each(|name| {
                content(&fs.root().lookup(name.as_bytes()).expect("a file"));
            });
            fs.close().expect("a close");
            if states % 20 == 0 {
                expect_cut_sound(&device, "two torn superblocks");
            }
        });
    });
    assert!(torn == 6 && states > 600, "{torn} times, {states} states");
}

/// A balance moves all data and metadata, and the power is cut in the middle. Each file keeps its
/// content, and the resumed balance moves the rest.
#[test]
fn power_is_cut_in_a_balance() {
    let base = MemoryDevice::new(512 << 20);
    let make = MakeOptions { nodesize: 4096, ..MakeOptions::default() };
    Filesystem::make(&base, &make).expect("a volume");
    let (log, recorder, fs) = recorded(&base);
    fs.enable_quotas(false).expect("quotas");
    let live = fs.root().create_subvolume(b"live", 0o755, 0, 0).expect("a subvolume");
    write(&live, 0);
    drop(fs.root().snapshot(b"first", live.id().tree, true).expect("a snapshot"));
    write(&live, 1);
    fs.sync().expect("a sync");
    log.start(&[&recorder]);
    let all = Some(buttress_fs::Filter::default());
    let options = buttress_fs::BalanceOptions { data: all.clone(), metadata: all, system: None };
    let moved = fs.balance(&options, &mut |_| true).expect("a balance");
    assert!(moved.completed > 1, "{moved:?}");
    log.mark(1);
    drop(live);
    fs.close().expect("a close");

    let more = setting("BUTTRESS_CUTS", 1) as usize;
    let stride = (log.len() / (16 * more)).max(1);
    let mut resumed = 0;
    let shown = log.crashes(&mut Rng::new(5 + campaign::round()), 1, stride, |crash| {
        let when = format!("event {} draw {}", crash.event, crash.draw);
        let device: Arc<dyn Device> = Arc::new(crash.devices[0].fork());
        expect_cut_sound(&device, &when);
        let fs = mount(&device);
        assert_eq!(fs.read_only_reason(), None, "{when}");
        verify(&fs.root().lookup(b"live").expect("it"), 1, &when);
        verify(&fs.root().lookup(b"first").expect("it"), 0, &when);
        if fs.paused_balance().expect("readable").is_some() {
            fs.resume_balance(&mut |_| true).expect("it goes on");
            resumed += 1;
            verify(&fs.root().lookup(b"live").expect("it"), 1, &when);
        }
        fs.close().expect("a close");
        expect_cut_sound(&device, &when);
    });
    campaign::count("states", shown);
    assert!(shown > 20 && resumed > 0, "{shown} states, {resumed} gone on with");
}

#[test]
fn power_is_cut_while_subvolumes_come_and_go() {
    let base = begun();
    let (log, recorder, fs) = recorded(&base);
    log.start(&[&recorder]);
    let root = fs.root();
    let live = root.lookup(b"live").expect("the live one");
    write(&live, 1);
    drop(root.snapshot(b"second", live.id().tree, true).expect("a snapshot"));
    log.mark(1);
    write(&live, 2);
    let first = root.lookup(b"first").expect("the first one");
    write(&first, 7);
    drop(first);
    fs.sync().expect("a sync");
    log.mark(2);
    root.delete_subvolume(b"many").expect("a deletion");
    fs.sync().expect("a sync");
    log.mark(3);
    drop_all(&fs);
    root.delete_subvolume(b"first").expect("a deletion");
    drop(root.snapshot(b"third", live.id().tree, false).expect("a snapshot"));
    log.mark(4);
    drop_all(&fs);
    drop((root, live));
    fs.close().expect("a close");

    let more = setting("BUTTRESS_CUTS", 1) as usize;
    let stride = (log.len() / (24 * more)).max(1);
    let shown = log.crashes(&mut Rng::new(77 + campaign::round()), 1, stride, |crash| {
        let mark = crash.mark.unwrap_or(0);
        let when = format!("event {} draw {} mark {mark}", crash.event, crash.draw);
        let device: Arc<dyn Device> = Arc::new(crash.devices[0].fork());
        // The check comes before any mount, which could repair something.
        expect_cut_sound(&device, &when);
        let fs = mount(&device);
        assert_eq!(fs.read_only_reason(), None, "{when}");
        let root = fs.root();
        let names = list(&root);
        let has = |name: &str| names.iter().any(|known| known == name);
        if has("second") {
            verify(&root.lookup(b"second").expect("it"), 1, &when);
        }
        if has("third") {
            verify(&root.lookup(b"third").expect("it"), 2, &when);
        }
        assert!(mark < 1 || has("second"), "{when}: {names:?}");
        assert!(mark < 3 || !has("many"), "{when}: {names:?}");
        assert!(mark < 4 || (has("third") && !has("first")), "{when}: {names:?}");
        if has("first") && mark >= 2 {
            verify(&root.lookup(b"first").expect("it"), 7, &when);
        }
        drop(root);
        drop_all(&fs);
        fs.close().expect("a close");
        expect_cut_sound(&device, &when);
    });
    campaign::count("states", shown);
    assert!(shown > 20, "{shown} states");
}
