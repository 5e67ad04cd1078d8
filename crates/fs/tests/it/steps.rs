//! Files that grow by `fallocate` in small steps: the same extents grow with them, whatever other
//! operations run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::BlockGroupFlags;
use buttress_fs::{
    BalanceOptions, FallocateMode, Filesystem, Filter, Inode, MakeOptions, MountOptions, NewInode,
    SetAttr,
};

use crate::checker::{check, expect_sound};
use crate::volume::{content, memory_with, mount, pattern};

const SECTOR: u64 = 4096;
const GROWS: FallocateMode = FallocateMode::Allocate { keep_size: false };

fn open(device: &Arc<MemoryDevice>) -> Filesystem {
    let device: Arc<dyn Device> = Arc::clone(device) as _;
    Filesystem::open(vec![device], MountOptions::default()).expect("a mount")
}

fn find(fs: &Filesystem, name: &str) -> Inode {
    fs.root().lookup(name.as_bytes()).expect("it was synced")
}

/// Checks the content of a file after a crash at this moment, and that the volume has no fault.
fn survives(device: &Arc<MemoryDevice>, name: &str, expected: &[u8]) {
    let left = Arc::new(device.fork());
    let fs = open(&left);
    assert!(content(&find(&fs, name)) == expected, "{name} after a crash");
    fs.close().expect("an unmount");
    let left: Arc<dyn Device> = left;
    expect_sound(&left);
}

/// Files grow beside operations that share the extent, cut it, or write its items. No file ever has
/// a byte of another file, and the checker never finds a fault.
#[test]
fn growth_beside_everything_else() {
    for seed in 0..3 {
        let mut rng = Rng::new(seed);
        let device = Arc::new(MemoryDevice::new(256 << 20));
        Filesystem::make(&*device, &MakeOptions::default()).expect("an empty volume");
        let fs = open(&device);
        let names = ["a", "b", "c"];
        let create = |name: &&str| fs.root().create(name.as_bytes(), NewInode::file(0o644));
        let files: Vec<Inode> = names.iter().map(|name| create(name).expect("a file")).collect();
        let mut bytes = vec![Vec::new(); files.len()];
        fs.sync().expect("a commit");
        let mut snapshots: Vec<(String, Vec<Vec<u8>>)> = Vec::new();
        for step in 0..400 {
            let at = rng.below(files.len() as u64) as usize;
            let (file, mine) = (&files[at], &mut bytes[at]);
            let len = mine.len() as u64;
            match rng.below(100) {
                0..70 => {
                    let more = SECTOR * *rng.choose(&[1, 2, 2, 2, 3, 16]).expect("some");
                    let start = len.next_multiple_of(SECTOR);
                    file.fallocate(start, more, GROWS).expect("room");
                    mine.resize((start + more) as usize, 0);
                }
                70..78 => {
                    let offset = rng.below(len + 1);
                    let data = pattern(seed * 1000 + step, 1 + rng.below(20_000) as usize);
                    file.write_at(offset, &data).expect("room");
                    let end = offset as usize + data.len();
                    mine.resize(mine.len().max(end), 0);
                    mine[offset as usize..end].copy_from_slice(&data);
                }
                78..82 => {
                    let size = if rng.chance(1, 2) { 0 } else { rng.below(len + 1) };
                    let cut = SetAttr { size: Some(size), ..SetAttr::default() };
                    file.set_attr(&cut).expect("a cut");
                    mine.resize(size as usize, 0);
                }
                82..86 if len > 0 => {
                    let offset = rng.below(len);
                    let hole = 1 + rng.below(len - offset);
                    file.fallocate(offset, hole, FallocateMode::PunchHole).expect("a hole");
                    mine[offset as usize..(offset + hole) as usize].fill(0);
                }
                86..92 => {
                    file.sync().expect("a log");
                    survives(&device, names[at], mine);
                }
                92..95 => fs.sync().expect("a commit"),
                95..98 if len >= SECTOR => {
                    let to = (at + 1) % files.len();
                    let whole = len / SECTOR * SECTOR;
                    file.clone_range(0, &files[to], 0, whole).expect("a clone");
                    let part = mine[..whole as usize].to_vec();
                    let other = &mut bytes[to];
                    other.resize(other.len().max(part.len()), 0);
                    other[..part.len()].copy_from_slice(&part);
                }
                _ => {
                    let name = format!("s{step}");
                    let tree = fs.root().id().tree;
                    drop(fs.root().snapshot(name.as_bytes(), tree, true).expect("a snapshot"));
                    snapshots.push((name, bytes.clone()));
                }
            }
        }
        fs.close().expect("an unmount");
        let same: Arc<dyn Device> = Arc::clone(&device) as _;
        if seed == 0 {
            check(&same);
        } else {
            expect_sound(&same);
        }
        let fs = open(&device);
        for (name, expected) in names.iter().zip(&bytes) {
            assert!(content(&find(&fs, name)) == *expected, "seed {seed}: {name}");
        }
        for (name, all) in snapshots {
            let top = find(&fs, &name);
            for (name, expected) in names.iter().zip(&all) {
                let file = top.lookup(name.as_bytes()).expect("a file of the snapshot");
                assert!(content(&file) == *expected, "seed {seed}: {name} of a snapshot");
            }
        }
    }
}

/// Windows keep space behind the ends of growing files. The space is not lost, because other files
/// can fill the volume to the end.
#[test]
fn windows_are_given_back() {
    let device = memory_with(128, &MakeOptions::default());
    let fs = mount(&device);
    let create =
        |name: &str| fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
    let growing: Vec<Inode> = (0..8).map(|i| create(&format!("g{i}"))).collect();
    for step in 0..4 {
        for file in &growing {
            file.fallocate(step * SECTOR, SECTOR, GROWS).expect("room");
        }
    }
    let full = |file: &Inode, piece: u64| {
        let mut at = 0;
        while file.fallocate(at, piece, GROWS).is_ok() {
            at += piece;
        }
        at
    };
    full(&create("large"), 1 << 20);
    full(&create("small"), SECTOR);
    let usage = fs.info().expect("figures").usage;
    let data = usage.kinds.iter().filter(|kind| kind.flags.kind() == BlockGroupFlags::DATA);
    let left: u64 = data.map(|kind| kind.total - kind.used).sum();
    assert_eq!(left, 0, "bytes that no file got");
    fs.close().expect("an unmount");
    expect_sound(&device);
}

/// W2, W3 of windows: files grow step by step while their block groups are emptied again and again.
/// No group is removed while a step has space in it, and no account keeps the bytes of a window.
#[test]
fn steps_beside_a_balance() {
    const STEP: u64 = 2 * SECTOR;
    let device = memory_with(512, &MakeOptions::default());
    let fs = mount(&device);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..3 {
            let (fs, stop) = (&fs, &stop);
            scope.spawn(move || {
                let name = format!("g{number}");
                let file =
                    fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
                let most = (number + 1) * (384 << 10);
                while !stop.load(Ordering::Relaxed) {
                    for at in (0..most).step_by(STEP as usize) {
                        file.fallocate(at, STEP, GROWS).expect("room");
                    }
                    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
                    file.set_attr(&empty).expect("a cut");
                }
                file.fallocate(0, STEP, GROWS).expect("room");
            });
        }
        for _ in 0..6 {
            let all = BalanceOptions { data: Some(Filter::default()), ..BalanceOptions::default() };
            fs.balance(&all, &mut |_| true).expect("a balance");
        }
        stop.store(true, Ordering::Relaxed);
    });
    fs.sync().expect("a commit");
    let data = fs.space_stats().accounts.data;
    assert_eq!((data.used, data.reserved, data.may_use), (3 * STEP, 0, 0), "three files of a step");
    fs.close().expect("an unmount");
    check(&device);
}
