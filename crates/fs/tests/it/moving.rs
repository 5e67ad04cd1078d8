//! Block groups move while files are used: the contents stay, the accounts agree, and the checkers
//! find nothing.
//!
//! `BUTTRESS_MOVING` multiplies the rounds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::{DeviceId, Key, Kind, Profile, TreeId};
use buttress_fs::make::make_on;
use buttress_fs::{
    BalanceOptions, ErrorKind, FallocateMode, Filesystem, Filter, Inode, InodeFlags, MakeOptions,
    MountOptions, NewInode, ReplaceState, SetAttr,
};
use buttress_sim::{Log, campaign};

use crate::checker::{check, expect_cut_sound, find_faults_of};
use crate::snapshots::Snapshots;
use crate::volume::{
    content, copy, file_with, memory, memory_with, mount, mount_with, pattern, recorded, setting,
};

const SIZE_MAX: u64 = 768 << 10;

fn rounds() -> u64 {
    setting("BUTTRESS_MOVING", 1)
}

/// A thread that changes files of its own, and knows their content.
struct Writer {
    rng: Rng,
    dir: Inode,
    files: BTreeMap<String, (Inode, Vec<u8>)>,
    next: u64,
}

impl Writer {
    fn new(fs: &Filesystem, number: u64) -> Self {
        let name = format!("writer-{number}");
        let dir = fs.root().mkdir(name.as_bytes(), 0o755, 0, 0).expect("a directory");
        Self { rng: Rng::new(number), dir, files: BTreeMap::new(), next: 0 }
    }

    fn create(&mut self) {
        self.next += 1;
        let nocow = self.rng.chance(1, 3);
        let name = format!("{}-{}", if nocow { "nocow" } else { "file" }, self.next);
        let file = self.dir.create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
        if nocow {
            let flags = Some(InodeFlags::NODATACOW);
            file.set_attr(&SetAttr { flags, ..SetAttr::default() }).expect("flags");
        }
        self.files.insert(name, (file, Vec::new()));
    }

    fn pick(&mut self) -> String {
        let names: Vec<_> = self.files.keys().cloned().collect();
        self.rng.choose(&names).expect("some file").clone()
    }

    fn verify(&self, when: &str) {
        for (name, (file, expected)) in &self.files {
            let found = content(file);
            assert_eq!(found.len(), expected.len(), "{when}: length of {name}");
            if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
                panic!("{when}: {name} differs at {at}");
            }
        }
    }

    fn step(&mut self) {
        if self.files.len() < 6 {
            return self.create();
        }
        let name = self.pick();
        let what = self.rng.below(24);
        let (file, known) = self.files.get_mut(&name).expect("it was listed");
        let rng = &mut self.rng;
        match what {
            0..12 => {
                let at = rng.below(SIZE_MAX / 4096) * 4096 + rng.below(2) * 17;
                let data = pattern(rng.next_u64(), rng.range(1..100_000) as usize);
                let end = at as usize + data.len();
                if rng.chance(1, 4) {
                    file.write_direct(at, &data).expect("a write");
                } else {
                    file.write_at(at, &data).expect("a write");
                }
                known.resize(known.len().max(end), 0);
                known[at as usize..end].copy_from_slice(&data);
            }
            12 => {
                let size = rng.below(SIZE_MAX);
                file.set_attr(&SetAttr { size: Some(size), ..SetAttr::default() }).expect("a cut");
                known.resize(size as usize, 0);
            }
            13 => {
                let (at, len) = (rng.below(SIZE_MAX), rng.range(1..200_000));
                file.fallocate(at, len, FallocateMode::PunchHole).expect("a hole");
                let end = known.len().min((at + len) as usize);
                if (at as usize) < end {
                    known[at as usize..end].fill(0);
                }
            }
            14 => {
                let (at, len) = (rng.below(SIZE_MAX), rng.range(1..200_000));
                file.fallocate(at, len, FallocateMode::Allocate { keep_size: false })
                    .expect("room");
                known.resize(known.len().max((at + len) as usize), 0);
            }
            15..18 => self.share(&name),
            18..20 => file.sync().expect("a sync"),
            20 => {
                self.dir.unlink(name.as_bytes()).expect("an unlink");
                self.files.remove(&name);
            }
            _ => assert!(content(file) == *known, "{name} while it is moved"),
        }
    }

    fn share(&mut self, name: &str) {
        let kind = name.split('-').next();
        let alike: Vec<_> =
            self.files.keys().filter(|other| other.split('-').next() == kind).cloned().collect();
        let source = self.rng.choose(&alike).expect("itself").clone();
        let (from, bytes) = &self.files[&source];
        let sectors = bytes.len() as u64 / 4096;
        if source == name || sectors == 0 {
            return;
        }
        let at = self.rng.below(sectors) * 4096;
        let len = (self.rng.range(1..sectors + 1) * 4096).min(sectors * 4096 - at);
        let to = self.rng.below(SIZE_MAX / 4096) * 4096;
        let shown = bytes[at as usize..(at + len) as usize].to_vec();
        let from = from.clone();
        let (file, known) = self.files.get_mut(name).expect("it was listed");
        from.clone_range(at, file, to, len).expect("shared");
        let end = to as usize + shown.len();
        known.resize(known.len().max(end), 0);
        known[to as usize..end].copy_from_slice(&shown);
    }
}

fn device(mib: u64) -> Arc<dyn Device> {
    Arc::new(MemoryDevice::new(mib << 20))
}

fn convert(profile: Profile) -> BalanceOptions {
    let some = Some(Filter { convert: Some(profile), soft: true, ..Filter::default() });
    BalanceOptions { data: some.clone(), metadata: some.clone(), system: some }
}

/// The work of an administrator: balances and changes of devices. Returns the device that is the
/// volume's only device at the end.
fn upkeep(fs: &Filesystem, mut first: Arc<dyn Device>, rng: &mut Rng) -> Arc<dyn Device> {
    let balance = |options: &BalanceOptions| {
        let done = fs.balance(options, &mut |_| true).expect("a balance");
        assert!(!done.is_paused);
    };
    balance(&BalanceOptions::full());
    let second = fs.add_device(device(384)).expect("a device more");
    if rng.chance(1, 2) {
        balance(&convert(Profile::Raid1));
        let found = fs.replace_device(second, device(384), &mut |_| true).expect("another");
        assert_eq!(found.uncorrectable_errors, 0);
        balance(&BalanceOptions { data: Some(Filter::default()), ..BalanceOptions::default() });
        balance(&convert(Profile::Single));
    } else {
        let done = fs.balance(&BalanceOptions::full(), &mut |done| done.completed == 0);
        if done.expect("a balance").is_paused {
            assert!(!fs.balance_status().expect("it").expect("one").is_running);
            fs.resume_balance(&mut |_| true).expect("the rest");
        }
        first = device(512);
        fs.replace_device(DeviceId(1), Arc::clone(&first), &mut |_| true).expect("another");
        fs.resize_device(DeviceId(1), 512 << 20, &mut |_| true).expect("more of it");
    }
    fs.resize_device(second, 320 << 20, &mut |_| true).expect("a cut");
    fs.remove_device(second, &mut |_| true).expect("a removal");
    first
}

fn one(seed: u64, options: &str) {
    let first = memory(512);
    let fs = mount_with(&first, options);
    let stop = AtomicBool::new(false);
    let snapshots = Snapshots::default();
    let writers: Vec<Writer> = (0..3).map(|number| Writer::new(&fs, seed * 10 + number)).collect();
    let last = std::thread::scope(|scope| {
        let run = |mut writer: Writer| {
            while !stop.load(Ordering::Relaxed) {
                writer.step();
            }
            writer
        };
        let writers: Vec<_> =
            writers.into_iter().map(|writer| scope.spawn(move || run(writer))).collect();
        let copier = scope.spawn(|| {
            let mut rng = Rng::new(seed);
            while !stop.load(Ordering::Relaxed) {
                snapshots.step(&fs, &mut rng);
                std::thread::sleep(std::time::Duration::from_millis(rng.below(30)));
            }
        });
        // A failed check ends the test, and not only its thread.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            upkeep(&fs, Arc::clone(&first), &mut Rng::new(seed))
        }));
        stop.store(true, Ordering::Relaxed);
        copier.join().expect("snapshots");
        for writer in writers {
            let writer = writer.join().expect("a writer");
            writer.verify("behind the moves");
        }
        outcome.expect("the moves")
    });
    snapshots.verify(&fs);
    fs.sync().expect("a sync");
    assert_eq!(fs.devices().len(), 1, "the second is gone");
    fs.close().expect("a close");
    check(&last);
}

#[test]
fn everything_moves_beside_writers() {
    for round in 0..rounds() {
        for (seed, options) in [(1, "rw"), (2, "compress=zstd:1,commit=1")] {
            one(round * 100 + seed, options);
        }
    }
}

/// The number of tree nodes of a volume, according to its extent tree.
fn nodes(fs: &Filesystem) -> usize {
    let (low, high) = (Key::MIN, Key::new(u64::MAX, Kind(u8::MAX), u64::MAX));
    let view = fs.view();
    let keys = view.range(TreeId::EXTENT, low, high).map(|entry| entry.expect("it reads").0);
    keys.filter(|key| key.kind == Kind::METADATA_ITEM).count()
}

/// Snapshots share nodes and extents. A balance moves nodes and extents, and the snapshots still
/// share them afterwards. This holds even if the snapshots differ in some leaves, and if a file
/// changes meanwhile.
#[test]
fn snapshots_share_what_they_shared_when_groups_have_moved() {
    const FILES: u64 = 600;
    const SNAPSHOTS: u64 = 8;
    let device = memory(512);
    let fs = mount_with(&device, "rw,commit=3600");
    let live = fs.root().create_subvolume(b"live", 0o755, 0, 0).expect("a subvolume");
    let name = |at: u64| format!("file-{at:04}").into_bytes();
    for at in 0..FILES {
        drop(file_with(&live, &format!("file-{at:04}"), &pattern(at, 4096)));
    }
    fs.sync().expect("a sync");
    for at in 0..SNAPSHOTS {
        let copy = format!("snapshot-{at}");
        let is_read_only = at % 2 == 0;
        drop(fs.root().snapshot(copy.as_bytes(), live.id().tree, is_read_only).expect("a copy"));
        let file = live.lookup(&name(at * 70)).expect("a file");
        file.write_at(0, &pattern(1000 + at, 100)).expect("a write");
        fs.sync().expect("a sync");
    }
    let before = nodes(&fs);
    for round in 0..3 {
        let done = fs.balance(&BalanceOptions::full(), &mut |_| true).expect("a balance");
        assert_eq!(done.completed, done.expected, "{done:?}");
        fs.sync().expect("a sync");
        let after = nodes(&fs);
        assert!(after < before * 5 / 4, "round {round}: {after} nodes where {before} were");
        // Only a change of a file copies shared data.
        let file = live.lookup(&name(599 - round)).expect("a file");
        file.write_at(10, &pattern(2000 + round, 50)).expect("a write");
    }
    for at in 0..SNAPSHOTS {
        let copy = fs.resolve(format!("/snapshot-{at}")).expect("a snapshot");
        for file in 0..FILES {
            let mut expected = pattern(file, 4096);
            if file % 70 == 0 && file / 70 < at {
                expected[..100].copy_from_slice(&pattern(1000 + file / 70, 100));
            }
            let found = content(&copy.lookup(&name(file)).expect("a file"));
            assert!(found == expected, "file {file} of snapshot {at}");
        }
    }
    // Each snapshot can be deleted by itself: no reference is missing, and no reference is left
    // over.
    for at in [3, 0, 7] {
        let name = format!("snapshot-{at}");
        fs.root().delete_subvolume(name.as_bytes()).expect("a removal");
    }
    drop(live);
    fs.sync().expect("a sync");
    fs.close().expect("a close");
    check(&device);
}

/// A snapshot shares nodes with its source. The nodes below the shared ones have one reference
/// each, but are shared as well. A balance moves all of them while the source changes in the same
/// commits, and the snapshots keep their content.
#[test]
fn snapshots_of_deep_trees_stay_what_they_were_while_groups_move() {
    const FILES: u64 = 6000;
    let options = MakeOptions { nodesize: 4096, ..MakeOptions::default() };
    let device = memory_with(512, &options);
    let fs = mount_with(&device, "rw,commit=3600");
    let live = fs.root().create_subvolume(b"live", 0o755, 0, 0).expect("a subvolume");
    // The names are hashes, so that keys are made in no order.
    let name = |at: u64| format!("{:x}", at.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    for at in 0..FILES {
        drop(file_with(&live, &name(at), &pattern(at, 100)));
    }
    let (tree, shares) = (live.id().tree, ["first", "second", "third"]);
    for copy in shares {
        drop(fs.root().snapshot(copy.as_bytes(), tree, copy == "first").expect("a copy"));
    }
    fs.sync().expect("a sync");
    let level = fs.view().committed_root(tree).expect("it reads").expect("a tree").level;
    assert!(level >= 2, "three levels at least: the root lies at {level}");

    // With each commit of the balance, the source and one snapshot change a little, far from their
    // earlier changes. In these places the trees still share the nodes above the leaves.
    let changed = fs.resolve("/third").expect("a snapshot");
    let mut next = 0;
    let mut change = || {
        for dir in [&live, &changed] {
            let file = dir.lookup(name(next * 379 % FILES).as_bytes()).expect("a file");
            file.write_at(0, &pattern(FILES + next, 50)).expect("a write");
            file.set_attr(&SetAttr { mode: Some(0o600), ..SetAttr::default() }).expect("a mode");
        }
        next += 1;
    };
    let full = BalanceOptions::full();
    let done = fs.balance(&full, &mut |_| {
        change();
        true
    });
    let done = done.expect("a balance");
    assert_eq!(done.completed, done.expected, "{done:?}");
    change();
    fs.sync().expect("a sync");
    let fs = {
        fs.close().expect("a close");
        mount(&device)
    };
    for copy in ["first", "second"] {
        let dir = fs.resolve(format!("/{copy}")).expect("a snapshot");
        for at in 0..FILES {
            let file = dir.lookup(name(at).as_bytes()).expect("a file");
            assert!(content(&file) == pattern(at, 100), "file {at} of the {copy} snapshot");
            assert_eq!(file.attr().mode & 0o777, 0o644, "file {at} of the {copy} snapshot");
        }
    }
    fs.close().expect("a close");
    check(&device);
}

/// An extent may be longer than a new chunk, because the device was larger when the extent was
/// written. Such an extent moves as a whole, to a chunk of sufficient length that is made for it.
#[test]
fn extents_longer_than_new_chunks_move() {
    const LEN: u64 = 100 << 20;
    let device = memory(2 << 10);
    let fs = mount(&device);
    let file = file_with(&fs.root(), "long", b"");
    file.fallocate(0, LEN, FallocateMode::Allocate { keep_size: false }).expect("one extent");
    let known = pattern(1, 200_000);
    for at in [0, LEN / 2, LEN - known.len() as u64] {
        file.write_at(at, &known).expect("a write");
    }
    fs.sync().expect("a sync");
    // New chunks have a tenth of this size.
    fs.resize_device(DeviceId(1), 800 << 20, &mut |_| true).expect("nothing lies behind");
    for _ in 0..2 {
        let done = fs.balance(&BalanceOptions::full(), &mut |_| true).expect("a balance");
        assert_eq!(done.completed, done.expected, "{done:?}");
        for at in [0, LEN / 2, LEN - known.len() as u64] {
            let mut found = vec![0; known.len()];
            file.read_at(at, &mut found).expect("a read");
            assert!(found == known, "at {at}");
        }
    }
    drop(file);
    fs.close().expect("a close");
    check(&device);
}

/// Does `work` while another thread writes and syncs new versions of the file `busy`. After each
/// version, `more` does further work, and the log gets the version's number as a mark.
pub(crate) fn beside_writes<T>(
    log: &Log,
    fs: &Filesystem,
    version: impl Fn(u64) -> Vec<u8> + Sync,
    more: impl Fn(u64) + Sync,
    work: impl FnOnce() -> T,
) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let busy = fs.root().lookup(b"busy").expect("it");
            for number in 1.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                busy.write_at(0, &version(number)).expect("a write");
                busy.sync().expect("a sync");
                more(number);
                log.mark(number);
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
        });
        let done = work();
        stop.store(true, Ordering::Relaxed);
        done
    })
}

#[test]
fn power_is_cut_while_groups_move() {
    const FILES: u64 = 10;
    let still = |file: u64| pattern(file, 1 + 150_000 * file as usize);
    let version = |number: u64| pattern(1000 + number, 60_000);
    let base = MemoryDevice::new(256 << 20);
    Filesystem::make(&base, &MakeOptions::default()).expect("a volume");
    let shared: Arc<dyn Device> = Arc::new(base.fork());
    let fs = mount(&shared);
    for file in 0..FILES {
        drop(file_with(&fs.root(), &format!("still-{file}"), &still(file)));
    }
    file_with(&fs.root(), "busy", &version(0)).sync().expect("a sync");
    let source = fs.root().lookup(b"still-9").expect("it");
    let shown = fs.root().create(b"copy", NewInode::file(0o644)).expect("a file");
    source.clone_range(0, &shown, 0, 0).expect("shared");
    drop((source, shown));
    drop(fs.root().snapshot(b"before", TreeId::FS, true).expect("a snapshot"));
    fs.close().expect("a close");

    let base = copy(&*shared);
    let (log, recorder, fs) = recorded(&base);
    log.start(&[&recorder]);
    let balance = || fs.balance(&BalanceOptions::full(), &mut |_| true);
    let done = beside_writes(&log, &fs, version, |_| (), balance);
    assert!(done.expect("a balance").completed > 2);
    fs.close().expect("a close");

    let stride = (log.len() / (16 * rounds() as usize)).max(1);
    let shown = log.crashes(&mut Rng::new(99 + campaign::round()), 1, stride, |crash| {
        let mark = crash.mark.unwrap_or(0);
        let when = format!("event {} draw {} mark {mark}", crash.event, crash.draw);
        let device: Arc<dyn Device> = Arc::new(crash.devices[0].fork());
        expect_cut_sound(&device, &when);
        let fs = mount(&device);
        assert_eq!(fs.read_only_reason(), None, "{when}");
        for top in ["", "before/"] {
            for file in 0..FILES {
                let found = fs.resolve(format!("{top}still-{file}")).expect("it");
                assert!(content(&found) == still(file), "{when}: {top}still-{file}");
            }
            let copy = fs.resolve(format!("{top}copy")).expect("it");
            assert!(content(&copy) == still(9), "{when}: {top}copy");
        }
        let busy = content(&fs.resolve("busy").expect("it"));
        assert!((mark..mark + 3).any(|number| version(number) == busy), "{when}: busy");
        // An interrupted balance can be resumed or cancelled.
        if fs.paused_balance().expect("the item").is_some() {
            fs.cancel_balance().expect("forgotten");
        }
        fs.close().expect("a close");
        expect_cut_sound(&device, &when);
    });
    campaign::count("states", shown);
    assert!(shown > 20, "{shown} states");
}

/// A replacement has a status while it runs and afterwards. A replacement that was stopped leaves
/// the old device in the volume, and its status says so.
#[test]
fn replacements_have_a_status() {
    let fs = mount(&memory(512));
    assert_eq!(fs.replace_status().expect("the record"), None);
    assert!(!fs.cancel_replace().expect("the record"), "none is running");
    let state = || fs.replace_status().expect("the record").map(|status| status.state);
    let mut seen = Vec::new();
    let stopped = fs.replace_device(DeviceId(1), device(512), &mut |_| {
        seen.push(state());
        false
    });
    assert!(stopped.is_err());
    assert_eq!((seen[0], state()), (Some(ReplaceState::Running), Some(ReplaceState::Canceled)));
    assert!(!fs.cancel_replace().expect("the record"), "it has ended");
    fs.replace_device(DeviceId(1), device(512), &mut |_| true).expect("a replacement");
    let status = fs.replace_status().expect("the record").expect("a status");
    assert_eq!((status.state, status.lost), (ReplaceState::Finished, 0));
    assert!(status.copied > 0 && status.copied == status.total, "{status:?}");

    // The status tells whether the cancellation came in time.
    std::thread::scope(|scope| {
        let (begun, begins) = std::sync::mpsc::channel();
        let fs = &fs;
        let canceller = scope.spawn(move || {
            begins.recv().expect("a replacement");
            fs.cancel_replace().expect("the record")
        });
        let done = fs.replace_device(DeviceId(1), device(512), &mut |_| {
            let _ = begun.send(());
            std::thread::sleep(std::time::Duration::from_millis(5));
            true
        });
        let is_cancelled = canceller.join().expect("no panic");
        assert_eq!(done.is_err(), is_cancelled);
        let end = if is_cancelled { ReplaceState::Canceled } else { ReplaceState::Finished };
        assert_eq!(state(), Some(end));
    });
    fs.close().expect("closed");
}

/// A missing device stays a part of the volume if its removal stops. The device gets no chunks, and
/// the next removal succeeds.
#[test]
fn a_stopped_removal_of_a_missing_device_changes_nothing() {
    let bases: Vec<_> = (0..3).map(|_| Arc::new(MemoryDevice::new(1 << 30))).collect();
    let parts: Vec<_> = bases.iter().map(|device| &**device as &dyn Device).collect();
    let raid1 = Some(Profile::Raid1);
    let options = MakeOptions { metadata: raid1, data: raid1, ..MakeOptions::default() };
    make_on(&parts, &options).expect("a volume");
    let first = |count: usize| {
        let devices = bases[..count].iter().map(|device| Arc::clone(device) as Arc<dyn Device>);
        devices.collect::<Vec<_>>()
    };
    let open = |count: usize, options: &str| {
        let options = MountOptions::parse(options).expect("options");
        Filesystem::open(first(count), options).expect("a mount")
    };
    let fs = open(3, "rw");
    for file in 0..8 {
        file_with(&fs.root(), &format!("{file}"), &pattern(file, 8 << 20));
    }
    fs.close().expect("closed");

    let fs = open(2, "rw,degraded");
    let missing = DeviceId(3);
    let stopped = fs.remove_device(missing, &mut |_| false);
    assert!(stopped.is_err(), "it was told to stop");
    assert_eq!(fs.missing_devices().expect("the devices"), [missing]);
    file_with(&fs.root(), "behind", &pattern(99, 12 << 20));
    fs.sync().expect("written to the devices that are there");
    fs.remove_device(missing, &mut |_| true).expect("a removal");
    assert_eq!(fs.missing_devices().expect("the devices"), []);
    fs.close().expect("closed");

    let fs = open(2, "ro");
    for (name, seed, len) in (0..8).map(|file| (format!("{file}"), file, 8 << 20)).chain([(
        "behind".into(),
        99,
        12 << 20,
    )]) {
        let found = fs.resolve(&name).expect("the file");
        assert!(content(&found) == pattern(seed, len), "{name}");
    }
    fs.close().expect("closed");
    find_faults_of(first(2)).expect("no faults");
}

/// A removal that would leave too few devices for the profiles changes nothing. The removal of the
/// last device changes nothing either. After a conversion the removal succeeds.
#[test]
fn removals_leave_enough_devices_for_the_profiles() {
    let bases: Vec<_> = (0..2).map(|_| Arc::new(MemoryDevice::new(1 << 30))).collect();
    let parts: Vec<_> = bases.iter().map(|device| &**device as &dyn Device).collect();
    let raid1 = Some(Profile::Raid1);
    let options = MakeOptions { metadata: raid1, data: raid1, ..MakeOptions::default() };
    make_on(&parts, &options).expect("a volume");
    let devices = bases.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    let fs = Filesystem::open(devices, MountOptions::parse("rw").expect("options")).expect("mount");
    file_with(&fs.root(), "file", &pattern(1, 8 << 20));
    let refuses = |id: u64| {
        let refused = fs.remove_device(DeviceId(id), &mut |_| true).expect_err("too few are left");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    };
    refuses(1);
    refuses(2);
    fs.balance(&convert(Profile::Single), &mut |_| true).expect("a balance");
    fs.remove_device(DeviceId(2), &mut |_| true).expect("a removal");
    refuses(1);
    assert!(content(&fs.resolve("file").expect("the file")) == pattern(1, 8 << 20));
    fs.close().expect("closed");
    find_faults_of(vec![Arc::clone(&bases[0]) as Arc<dyn Device>]).expect("no faults");
}
