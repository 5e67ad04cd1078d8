//! Nodes with parity: after a power cut at any point, and the loss of any devices that parity
//! allows, the last commit and every fsync are whole.
//!
//! `BUTTRESS_CUTS` multiplies the number of checked states.

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::Profile;
use buttress_fs::make::make_on;
use buttress_fs::{BalanceOptions, Filesystem, Filter, MakeOptions, MountOptions, NewInode};
use buttress_sim::{Crash, Log, Recorder, campaign};
use buttress_volume::Volume;

use crate::checker::find_faults_of;
use crate::volume::{content, file_with, list, pattern, setting};

const FILES: u64 = 24;

/// Files that are durable: name and content.
type Durable = Vec<(String, Vec<u8>)>;

fn open(devices: Vec<Arc<dyn Device>>, options: &str) -> Filesystem {
    let options = MountOptions::parse(options).expect("options");
    let fs = Filesystem::open(devices, options).expect("a mount");
    assert_eq!(fs.read_only_reason(), None);
    fs
}

fn made(data: Profile, nodes: Profile, count: usize, mib: u64) -> Vec<MemoryDevice> {
    let bases: Vec<_> = (0..count).map(|_| MemoryDevice::new(mib << 20)).collect();
    let parts: Vec<_> = bases.iter().map(|device| device as &dyn Device).collect();
    let options = MakeOptions { metadata: Some(nodes), data: Some(data), ..MakeOptions::default() };
    make_on(&parts, &options).expect("a volume");
    bases
}

fn forks(devices: &[MemoryDevice], lost: &[usize]) -> Vec<Arc<dyn Device>> {
    let there = devices.iter().enumerate().filter(|(index, _)| !lost.contains(index));
    there.map(|(_, device)| Arc::new(device.fork()) as Arc<dyn Device>).collect()
}

/// All sets of devices that can be lost.
fn losses(count: usize, parity: usize) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    for one in 0..count {
        if parity == 1 {
            all.push(vec![one]);
        }
        all.extend((one + 1..count).filter(|_| parity == 2).map(|other| vec![one, other]));
    }
    all
}

/// Works in rounds, each with files, some fsyncs and a commit. Returns the files that are durable
/// at each mark of the log.
fn work(fs: &Filesystem, log: &Log, seed: u64, rounds: u64) -> Vec<Durable> {
    let root = fs.root();
    let name = |round: u64, file: u64| format!("{seed} {round} {file}");
    let mut marks: Vec<Durable> = vec![Vec::new()];
    let mut last = Durable::new();
    for round in 0..rounds {
        let (mut mine, mut synced) = (Durable::new(), last.clone());
        for file in 0..FILES {
            let bytes = pattern(seed * 1000 + round * 100 + file, 700 + 900 * (file as usize % 9));
            let inode = file_with(&root, &name(round, file), &bytes);
            mine.push((name(round, file), bytes));
            if file % 4 == 0 {
                inode.sync().expect("an fsync");
                synced.extend(mine.last().cloned());
                marks.push(synced.clone());
                log.mark(marks.len() as u64 - 1);
            }
            if round > 1 && file % 3 > 0 {
                root.unlink(name(round - 2, file).as_bytes()).expect("an old file");
            }
        }
        fs.sync().expect("a sync");
        marks.push(mine.clone());
        log.mark(marks.len() as u64 - 1);
        last = mine;
    }
    marks
}

fn expect_all(fs: &Filesystem, durable: &Durable, when: &str) {
    let root = fs.root();
    for (name, bytes) in durable {
        let found = root.lookup(name.as_bytes());
        let found = content(&found.unwrap_or_else(|e| panic!("{when}: {e}: {:?}", list(&root))));
        assert!(found == *bytes, "{when}: {name}");
    }
}

struct Recorded {
    log: Arc<Log>,
    recorders: Vec<Arc<Recorder>>,
    fs: Filesystem,
}

fn record(bases: &[MemoryDevice]) -> Recorded {
    let log = Log::new();
    let recorders: Vec<_> = bases.iter().map(|base| log.device(base, 4096)).collect();
    let devices = recorders.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    let fs = open(devices, "rw,commit=300");
    log.start(&recorders.iter().map(|device| &**device).collect::<Vec<_>>());
    Recorded { log, recorders, fs }
}

/// Loses devices in every way after a cut. What is durable is found, and a commit can be made.
fn expect_after(crash: &Crash, marks: &[Durable], parity: usize, what: &str) {
    let durable = &marks[crash.mark.unwrap_or(0) as usize];
    for lost in losses(crash.devices.len(), parity) {
        let when = format!("{what} event {} draw {} lost {lost:?}", crash.event, crash.draw);
        let fs = open(forks(&crash.devices, &lost), "rw,degraded");
        expect_all(&fs, durable, &when);
        file_with(&fs.root(), "after", &[1; 5000]);
        fs.close().expect("a close");
    }
}

fn power_is_cut(data: Profile, nodes: Profile, count: usize, parity: usize, rounds: u64) {
    let bases = made(data, nodes, count, 256);
    let recorded = record(&bases);
    let marks = work(&recorded.fs, &recorded.log, 1, rounds);
    recorded.fs.close().expect("a close");
    let more = setting("BUTTRESS_CUTS", 1) as usize;
    let mut rng = Rng::new(71 + campaign::round());
    let (mut seen, mut behind) = (0, 0);
    let shown = recorded.log.intervals(&mut rng, 2 * more, more, |crash| {
        expect_after(crash, &marks, parity, "first");
        seen += 1;
        let generation = |device| Volume::read_superblock(device).expect("a device").generation;
        let generations: BTreeSet<_> = crash.devices.iter().map(|one| generation(one)).collect();
        behind += u64::from(generations.len() > 1);
        // Of the states in which a device is a transaction behind, several are looked at.
        let is_behind = generations.len() > 1 && behind % 4 == 1;
        if seen % 24 != 1 && !is_behind {
            return;
        }
        // With all devices, the checker finds nothing after the recovery. Work after the cut may
        // overwrite what the cut left of older commits, so power is cut again.
        let again = record(&crash.devices);
        let before = &marks[crash.mark.unwrap_or(0) as usize];
        let mut then = work(&again.fs, &again.log, 2, 1);
        then.iter_mut().for_each(|durable| durable.extend(before.iter().cloned()));
        again.fs.close().expect("a close");
        let clean: Vec<_> = again.recorders.iter().map(|device| device.fork()).collect();
        let faults = find_faults_of(forks(&clean, &[]));
        faults.unwrap_or_else(|what| panic!("event {}: {what}", crash.event));
        let mut few = Rng::new(crash.event as u64);
        let stride = (again.log.len() / if is_behind { 12 } else { 4 }).max(1);
        again.log.crashes(&mut few, more, stride, |second| {
            expect_after(second, &then, parity, &format!("after {}", crash.event));
        });
    });
    campaign::count("states", shown);
    assert!(shown > 100 && behind > 3, "{shown} states, {behind} with a device behind");
}

#[test]
fn power_is_cut_with_nodes_in_raid5() {
    power_is_cut(Profile::Raid5, Profile::Raid5, 3, 1, 4);
}

/// Data that an fsync writes together with its log.
#[test]
fn power_is_cut_with_nodes_in_raid5_beside_mirrored_data() {
    power_is_cut(Profile::Raid1, Profile::Raid5, 4, 1, 3);
}

#[test]
fn power_is_cut_with_nodes_in_raid6() {
    power_is_cut(Profile::Raid6, Profile::Raid6, 4, 2, 2);
}

/// A full volume refuses with an error, loses nothing, and goes on when files are deleted.
#[test]
fn a_full_volume_refuses() {
    let bases = made(Profile::Raid5, Profile::Raid5, 3, 96);
    let devices: Vec<_> = bases.iter().map(|base| Arc::new(base.fork())).collect();
    let all = || devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    let fs = open(all(), "rw");
    let root = fs.root();
    let mut durable = Durable::new();
    let mut refusals = 0;
    for file in 0..60_000_u64 {
        let name = format!("a long name so that few names fill a leaf {file:>60}");
        let bytes = pattern(file, 1500);
        let made = root.create(name.as_bytes(), NewInode::file(0o644));
        let outcome = made.and_then(|inode| {
            inode.write_at(0, &bytes)?;
            if file % 7 == 0 { inode.sync() } else { Ok(()) }
        });
        match outcome {
            Ok(()) => durable.push((name, bytes)),
            Err(_) => refusals += 1,
        }
        if refusals > 20 {
            break;
        }
        if file % 300 == 299 {
            fs.sync().expect("a commit does not lack space");
        }
    }
    assert!(refusals > 20, "the volume never became full");
    assert!(durable.len() > 1000, "{} files", durable.len());
    fs.sync().expect("a commit does not lack space");
    expect_all(&fs, &durable, "full");
    for (name, _) in durable.drain(..).step_by(3) {
        root.unlink(name.as_bytes()).expect("a delete on a full volume");
    }
    fs.sync().expect("a commit does not lack space");
    drop(root);
    fs.close().expect("a close");
    find_faults_of(all()).unwrap_or_else(|what| panic!("{what}"));
}

/// Conversions to parity and back keep all files, and the volume stays whole without a device.
#[test]
fn nodes_are_converted() {
    let bases = made(Profile::Raid1, Profile::Raid1c3, 4, 400);
    let devices: Vec<_> = bases.iter().map(|base| Arc::new(base.fork())).collect();
    let all = || devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    let fs = open(all(), "rw");
    let log = Log::new();
    let marks = work(&fs, &log, 3, 4);
    let durable = marks.last().expect("a mark");
    for to in [Profile::Raid5, Profile::Raid6, Profile::Raid1] {
        let target = Some(Filter { convert: Some(to), ..Filter::default() });
        let options =
            BalanceOptions { data: target.clone(), metadata: target.clone(), system: target };
        fs.balance(&options, &mut |_| true).expect("a conversion");
        expect_all(&fs, durable, "converted");
        fs.sync().expect("a sync");
        find_faults_of(forks(&devices.iter().map(|d| d.fork()).collect::<Vec<_>>(), &[]))
            .unwrap_or_else(|what| panic!("{to}: {what}"));
        let copies: Vec<_> = devices.iter().map(|device| device.fork()).collect();
        for lost in losses(4, 1) {
            let fs = open(forks(&copies, &lost), "rw,degraded");
            expect_all(&fs, durable, &format!("{to} without {lost:?}"));
            fs.close().expect("a close");
        }
    }
    fs.close().expect("a close");
}
