//! Making room for waiting requests. The tests are named after the faults that they should find
//! (`docs/internals/kernel-bugs.md`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use buttress_base::Rng;
use buttress_block::{Device, Error};
use buttress_fs::{
    ErrorKind, FallocateMode, Filesystem, FlushState, Inode, MakeOptions, NewInode, SetAttr,
    SpaceKind, StepFigures,
};

use crate::checker::check;
use crate::devices::{Hook, Hooked};
use crate::volume::{file_with, memory, memory_with, mount, mount_with, pattern};

const BLOCK: u64 = 4096;

/// Fills a volume, and then frees `spare` bytes of it with a commit.
pub(crate) fn fill(fs: &Filesystem, spare: u64) -> Inode {
    fill_with(fs, "filler", 1 << 20, spare)
}

fn fill_with(fs: &Filesystem, name: &str, step: u64, spare: u64) -> Inode {
    let filler = file_with(&fs.root(), name, b"");
    let mut at = 0;
    while filler.fallocate(at, step, FallocateMode::Allocate { keep_size: false }).is_ok() {
        at += step;
    }
    let cut = SetAttr { size: Some(at - spare), ..SetAttr::default() };
    filler.set_attr(&cut).expect("shrinking always works");
    filler
}

/// E4: much dirty data holds worst-case reservations. Small requests wait until this data is
/// written, and do not fail.
#[test]
fn dirty_data_is_no_reason_to_refuse() {
    for rule in ["off", "clamp", "off,reserve=levels", "clamp,reserve=levels"] {
        let device = memory(160);
        let fs = mount_with(&device, &format!("preempt={rule},dirty=64M"));
        let files: Vec<_> = (0..4).map(|i| file_with(&fs.root(), &format!("f{i}"), b"")).collect();
        std::thread::scope(|scope| {
            for (i, file) in files.iter().enumerate() {
                scope.spawn(move || {
                    let mut rng = Rng::new(i as u64);
                    for _ in 0..1500 {
                        let at = rng.below(2000) * BLOCK * 2;
                        file.write_at(at, &[i as u8 + 1; BLOCK as usize]).expect("there is room");
                    }
                });
            }
            for i in 0..300 {
                file_with(&fs.root(), &format!("small{i}"), &[7; 100]);
            }
        });
        let stats = fs.space_stats();
        assert_eq!((stats.engine.enospc, stats.accounts.waiting), (0, (0, 0)), "{rule}");
        fs.close().expect("it closes");
        check(&device);
    }
}

/// E4 for data: an overwrite needs new space, and frees the old space only when it is committed. As
/// long as old, new and dirty data fit together, no write is refused.
#[test]
fn overwriting_waits_for_the_space_it_frees() {
    let device = memory(160);
    let fs = mount_with(&device, "dirty=8M");
    let _filler = fill(&fs, 40 << 20);
    fs.sync().expect("durable");
    let before = fs.space_stats().engine.enospc;
    let files: Vec<_> = (0..4).map(|i| file_with(&fs.root(), &format!("f{i}"), b"")).collect();
    std::thread::scope(|scope| {
        for (i, file) in files.iter().enumerate() {
            scope.spawn(move || {
                let mut rng = Rng::new(i as u64);
                for _ in 0..2500 {
                    let at = rng.below(512) * BLOCK;
                    file.write_at(at, &[i as u8 + 1; 4 * BLOCK as usize]).expect("there is room");
                }
            });
        }
    });
    assert_eq!(fs.space_stats().engine.enospc, before);
    fs.close().expect("it closes");
    check(&device);
}

/// E4 for chunks: a group that became empty gives its chunk back with the next commit. A request
/// that needs that space makes the commit, even if nothing else needs a commit.
#[test]
fn writers_wait_for_a_chunk_that_goes() {
    for commits in 1..4 {
        let device = memory(160);
        let fs = mount_with(&device, "commit=300");
        let _filler = fill(&fs, 40 << 20);
        for _ in 0..commits {
            fs.sync().expect("durable");
        }
        let file = file_with(&fs.root(), "f", b"");
        file.write_at(0, &vec![1; 8 << 20]).expect("there is room");
        fs.close().expect("it closes");
        check(&device);
    }
}

/// E5: dirty data reserves its whole length. When it is compressed, it takes only a part of this
/// length, and the part is known only after the writeback.
#[test]
fn compressed_data_is_waited_for() {
    let device = memory(160);
    let fs = mount_with(&device, "compress-force=zstd,dirty=64M");
    let _filler = fill(&fs, 8 << 20);
    fs.sync().expect("durable");
    // The data has four times the length of the free space, and compresses to a thirtieth.
    for i in 0..32_u64 {
        let file = file_with(&fs.root(), &format!("f{i}"), b"");
        file.write_at(0, &vec![i as u8; 1 << 20]).expect("packed it fits");
    }
    fs.close().expect("it closes");
    check(&device);
}

/// How often dirty data was written, or waited for, to make room, and the bytes of such writes.
fn written_for_room(fs: &Filesystem) -> (u64, u64) {
    let stats = fs.space_stats();
    let times = |(_, step, figures): (SpaceKind, FlushState, StepFigures)| {
        let writes = [FlushState::Dirty, FlushState::AllDirty, FlushState::Ordered];
        if writes.contains(&step) { figures.times } else { 0 }
    };
    (stats.engine.steps.rows().map(times).sum(), stats.flushed)
}

/// The space of removed chunks becomes free again without another commit. A request that needs this
/// space earlier gets it without any writeback of dirty data.
#[test]
fn removed_chunks_come_back_by_themselves() {
    let device = memory(512);
    let fs = mount_with(&device, "dirty=64M,preempt=off,commit=300");
    let filler = fill(&fs, 0);
    fs.sync().expect("durable");
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    filler.set_attr(&empty).expect("shrinking always works");
    fs.sync().expect("durable");
    let left = fs.space_stats().accounts.data;
    assert!(left.total < 12 << 20, "all but one group went: {left}");
    let before = written_for_room(&fs);
    for i in 0..6 {
        file_with(&fs.root(), &format!("f{i}"), &pattern(i, 2 << 20));
    }
    // The threads that write back may write anyway, because there is much dirty data.
    assert_eq!(written_for_room(&fs), before, "nothing had to be written");
    fs.root().unlink(b"filler").expect("removing always works");
    fs.sync().expect("durable");
    while fs.space_stats().accounts.unallocated < 300 << 20 {
        std::thread::sleep(Duration::from_millis(1));
    }
    fs.close().expect("it closes");
    check(&device);
}

/// E11: metadata that is made and removed again and again takes at most twice the number of earlier
/// chunks, and one more. A chunk is made when a commit finds no place for a node, or when a
/// reservation fits neither groups nor future chunks. Until a commit is durable, the nodes that it
/// replaces keep their places. In the worst case, all old trees exist beside all new trees.
#[test]
fn churn_takes_no_chunks() {
    // The metadata takes a part of the first chunk, or several chunks.
    for (mib, names, len) in [(512_u64, 1500, 500), (64, 6000, 1500)] {
        let device = memory(mib);
        let fs = mount(&device);
        let (mut totals, mut used) = (Vec::new(), 0);
        for step in 0..12 {
            for name in (0..names).map(|i| format!("f{i}")) {
                match step % 2 {
                    0 => drop(file_with(&fs.root(), &name, &vec![1; len])),
                    _ => fs.root().unlink(name.as_bytes()).expect("removed"),
                }
            }
            fs.sync().expect("durable");
            let metadata = fs.space_stats().accounts.metadata;
            totals.push(metadata.total);
            used = used.max(metadata.used);
        }
        let most = 2 * used + (mib << 20) / 10;
        assert!(totals.iter().all(|total| *total <= most), "{totals:?}, used {used} at most");
        // The chunks of the first cycles are enough for all later cycles.
        assert!(totals[2..].iter().all(|total| *total <= totals[0].max(totals[1])), "{totals:?}");
        fs.close().expect("it closes");
        check(&device);
    }
}

/// A1: a thousand times, data that needs new block groups is written and removed. Nothing stays
/// reserved, and not every round makes and removes groups.
#[test]
fn chunks_do_not_come_and_go() {
    let device = memory(4096);
    let fs = mount_with(&device, "commit=300");
    let groups = || fs.space_stats().accounts.data.total;
    let (mut changes, mut before) = (0, groups());
    for cycle in 0..1000 {
        let file = file_with(&fs.root(), "file", &[7; 9000]);
        let how = FallocateMode::Allocate { keep_size: false };
        file.fallocate(9000, 600 << 20, how).expect("space");
        drop(file);
        fs.root().unlink(b"file").expect("removed");
        fs.sync().expect("durable");
        let data = fs.space_stats().accounts.data;
        assert_eq!((data.may_use, data.reserved), (0, 0), "cycle {cycle}: {data}");
        changes += u32::from(data.total != before);
        before = data.total;
    }
    assert!(changes <= 4, "{changes} times in 1000 cycles there were more groups or fewer");
    fs.close().expect("it closes");
    check(&device);
}

/// E14: a mount is closed while requests wait for space. No thread hangs, and each request gets an
/// error.
#[test]
fn volume_closes_while_others_wait() {
    for round in 0..4_u64 {
        let device = memory(120);
        let fs = mount_with(&device, "dirty=4M");
        let filler = file_with(&fs.root(), "filler", b"");
        let mut at = 0;
        while filler.fallocate(at, 1 << 20, FallocateMode::Allocate { keep_size: false }).is_ok() {
            at += 1 << 20;
        }
        drop(filler);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (fs, over) = (fs.clone(), &over);
                scope.spawn(move || {
                    for i in 0.. {
                        let name = format!("{thread}-{i}");
                        let Ok(file) = fs.root().create(name.as_bytes(), NewInode::file(0o644))
                        else {
                            if over.load(Ordering::SeqCst) {
                                return;
                            }
                            continue;
                        };
                        match file.write_at(0, &pattern(thread, 30_000)).map_err(|e| e.kind()) {
                            Ok(_) | Err(ErrorKind::NoSpace) => {}
                            Err(_) if over.load(Ordering::SeqCst) => return,
                            Err(kind) => panic!("{kind:?}"),
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(60 + round * 40));
            over.store(true, Ordering::SeqCst);
            fs.clone().close().expect("it closes");
        });
        check(&device);
    }
}

/// Reservations of metadata take the height of a subvolume's tree into account from the first
/// lookup on, not only from the first change. After a mount this tree may be the tallest.
#[test]
fn reservations_know_the_height_of_a_subvolume() {
    let device = memory_with(256, &MakeOptions { nodesize: 4096, ..MakeOptions::default() });
    let fs = mount(&device);
    let tall = fs.root().create_subvolume(b"tall", 0o755, 0, 0).expect("a subvolume");
    for i in 0..4000 {
        drop(tall.create(format!("file-{i}").as_bytes(), NewInode::file(0o644)).expect("a file"));
    }
    drop(tall);
    fs.sync().expect("a commit");
    let height = fs.space_stats().accounts.height;
    fs.close().expect("closed");
    let fs = mount(&device);
    let before = fs.space_stats().accounts.height;
    assert!(before < height, "{height} levels, of which {before} are not the subvolume's");
    drop(fs.root().lookup(b"tall").expect("there"));
    assert_eq!(fs.space_stats().accounts.height, height);
    fs.close().expect("closed");
    check(&device);
}

/// The state of the gate that holds back flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GateState {
    Open,
    Closed,
    /// The gate is closed, and a flush waits for it.
    Reached,
    /// New flushes fail.
    Failing,
}

/// Holds back flushes while it is closed.
#[derive(Debug)]
pub(crate) struct HeldFlushes(Mutex<GateState>, Condvar);

impl HeldFlushes {
    pub(crate) fn set(&self, state: GateState) {
        *self.0.lock().expect("a gate") = state;
        self.1.notify_all();
    }

    pub(crate) fn wait_until_reached(&self) {
        let state = self.0.lock().expect("a gate");
        drop(self.1.wait_while(state, |state| *state != GateState::Reached).expect("a gate"));
    }
}

impl Hook for HeldFlushes {
    fn flush(&self, below: &dyn Device) -> Result<(), Error> {
        let mut state = self.0.lock().expect("a gate");
        while !matches!(*state, GateState::Open | GateState::Failing) {
            *state = GateState::Reached;
            self.1.notify_all();
            state = self.1.wait(state).expect("a gate");
        }
        match *state {
            // A write past the end of the device fails.
            GateState::Failing => below.write_at(u64::MAX, &[0]),
            _ => below.flush(),
        }
    }
}

pub(crate) fn held(mib: u64) -> (Arc<dyn Device>, Arc<Hooked<HeldFlushes>>, Filesystem) {
    let below = memory(mib);
    let held = Hooked::new(&below, HeldFlushes(Mutex::new(GateState::Open), Condvar::new()));
    let device: Arc<dyn Device> = Arc::clone(&held) as _;
    let fs = mount_with(&device, "commit=300");
    (below, held, fs)
}

/// A commit holds metadata back from other requests until its nodes have addresses, but not while
/// they are written.
#[test]
fn a_commit_that_writes_keeps_nothing_back() {
    let (below, held, fs) = held(64);
    for i in 0..500 {
        file_with(&fs.root(), &i.to_string(), &[1; 500]);
    }
    held.hook.set(GateState::Closed);
    std::thread::scope(|scope| {
        scope.spawn(|| fs.sync().expect("durable"));
        held.hook.wait_until_reached();
        let frozen = fs.space_stats().accounts.frozen;
        held.hook.set(GateState::Open);
        assert_eq!(frozen, 0);
    });
    fs.close().expect("it closes");
    check(&below);
}

/// A request that waits for the space of a commit under way does not cause another commit right
/// after it.
#[test]
fn one_commit_is_enough() {
    let (below, held, fs) = held(160);
    let _filler = fill(&fs, 4 << 20);
    let before = fs.space_stats().engine;
    held.hook.set(GateState::Closed);
    std::thread::scope(|scope| {
        scope.spawn(|| fs.sync().expect("durable"));
        held.hook.wait_until_reached();
        // This file is in the next transaction. A commit of the next transaction would free
        // nothing.
        let file = file_with(&fs.root(), "file", b"");
        scope.spawn(move || file.write_at(0, &[1; 1 << 20]).expect("room for it"));
        while fs.space_stats().accounts.waiting.0 == 0 {
            std::thread::yield_now();
        }
        // Waits until the flush steps have come to the commit. A shorter wait would prove nothing.
        std::thread::sleep(Duration::from_millis(200));
        held.hook.set(GateState::Open);
    });
    let after = fs.space_stats().engine;
    assert_eq!((after.commits - before.commits, after.enospc - before.enospc), (1, 0));
    fs.close().expect("it closes");
    check(&below);
}

/// V1: a write over dirty data or over an ordered extent reserves the metadata that makes both old
/// and new data visible. Otherwise writeback would need that metadata, and writeback cannot wait
/// for room.
#[test]
fn reservation_is_enough_to_write() {
    for seed in 0..6_u64 {
        let device = memory(1024);
        let fs = mount_with(&device, "dirty=2M,commit=1");
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let fs = fs.clone();
                scope.spawn(move || {
                    let mut rng = Rng::new(seed << 8 | thread);
                    let name = format!("f{thread}");
                    let file = file_with(&fs.root(), &name, b"");
                    for _ in 0..2500 {
                        // Data at the front that is always dirty keeps the length on disk short.
                        if seed % 2 == 0 && rng.chance(1, 3) {
                            file.write_at(0, &[9; 100]).expect("there is room");
                        }
                        let at = rng.below(600) * BLOCK + rng.below(3) * 100;
                        let len = match rng.below(12) {
                            _ if seed % 2 == 0 => 9_000,
                            0 => 300_000,
                            1..3 => 60_000,
                            3..6 => 9_000,
                            _ => BLOCK,
                        };
                        let written = file.write_at(at, &vec![thread as u8; len as usize]);
                        written.expect("there is room");
                        match rng.below(80) {
                            _ if seed % 2 == 0 => {}
                            0 => file.sync().expect("durable"),
                            1 => {
                                let size = Some(rng.below(600) * BLOCK);
                                let cut = SetAttr { size, ..SetAttr::default() };
                                file.set_attr(&cut).expect("a cut");
                            }
                            2 => fs.sync().expect("durable"),
                            _ => {}
                        }
                    }
                });
            }
        });
        assert_eq!(fs.space_stats().shortfalls, 0, "seed {seed}");
        fs.close().expect("it closes");
        check(&device);
    }
}

/// V1: if all free space is single sectors, each sector becomes an extent. The metadata of each
/// extent is reserved before it is written.
#[test]
fn parts_are_reserved_before_writing() {
    let device = memory(160);
    let fs = mount_with(&device, "dirty=64M");
    let _filler = fill(&fs, 8 << 20);
    let name = |i: u32| format!("dust {i}");
    for i in 0..1500 {
        file_with(&fs.root(), &name(i), &[1; BLOCK as usize]);
    }
    fs.sync().expect("durable");
    // The volume is full except for the single sectors.
    let _rest = fill_with(&fs, "rest", BLOCK, 0);
    for i in (0..1500).step_by(2) {
        fs.root().unlink(name(i).as_bytes()).expect("removed");
    }
    fs.sync().expect("durable");
    let file = file_with(&fs.root(), "file", b"");
    for i in 0..8 {
        file.write_at(i << 18, &[i as u8; 128 << 10]).expect("there is room");
    }
    fs.sync().expect("durable");
    assert_eq!(fs.space_stats().shortfalls, 0);
    fs.close().expect("it closes");
    check(&device);
}
