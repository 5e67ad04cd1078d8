//! Discards of free space. They never include space in use, space that the last commit reaches, or
//! a superblock.
//!
//! The device fills discarded space with garbage at once, so that a wrong discard shows.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use buttress_base::Rng;
use buttress_block::{Device, Error, MemoryDevice};
use buttress_format::{FileExtent, Key, Kind, Logical};
use buttress_fs::{Filesystem, Inode, MakeOptions, TrimOptions};

use crate::checker::{check, expect_sound};
use crate::devices::{Hook, Hooked};
use crate::room;
use crate::volume::{content, file_with, memory, mount, pattern};

const MIB: u64 = 1 << 20;

/// A device that damages discarded space at once, and the list of its discards.
#[derive(Debug)]
struct Oblivious {
    memory: Arc<MemoryDevice>,
    told: Mutex<Vec<Range<u64>>>,
    /// The states that a power cut after each of the first discards would leave.
    cuts: Mutex<Vec<MemoryDevice>>,
    cuts_max: usize,
}

impl Hook for Oblivious {
    fn discard(&self, below: &dyn Device, offset: u64, len: u64) -> Result<(), Error> {
        self.told.lock().expect("no panic").push(offset..offset + len);
        // Some bytes at both ends and in the middle of each discard are enough.
        for at in [offset, offset + len / 2 / 512 * 512, offset + len - 512] {
            below.write_at(at, &[0xa5; 512])?;
        }
        let mut cuts = self.cuts.lock().expect("no panic");
        if cuts.len() < self.cuts_max {
            cuts.push(self.memory.fork());
        }
        Ok(())
    }
}

/// The device below, the device that records discards, and a mount.
fn oblivious(mib: u64, cuts_max: usize) -> (Arc<dyn Device>, Arc<Hooked<Oblivious>>, Filesystem) {
    let memory = Arc::new(MemoryDevice::new(mib << 20));
    Filesystem::make(&*memory, &MakeOptions::default()).expect("an empty volume");
    let below: Arc<dyn Device> = Arc::clone(&memory) as _;
    let hook = Oblivious { memory, told: Mutex::default(), cuts: Mutex::default(), cuts_max };
    let told = Hooked::new(&below, hook);
    let device: Arc<dyn Device> = Arc::clone(&told) as _;
    let fs = mount(&device);
    (below, told, fs)
}

fn bytes(told: &Hooked<Oblivious>) -> u64 {
    told.hook.told.lock().expect("no panic").iter().map(|range| range.end - range.start).sum()
}

/// A trim discards all free space and nothing else, in groups and outside of them. A power cut at
/// any point leaves the last commit whole.
#[test]
fn only_what_is_free() {
    let (below, told, fs) = oblivious(400, 24);
    let mut files: Vec<(String, Inode, Vec<u8>)> = Vec::new();
    for i in 0..60_u64 {
        let name = format!("file-{i}");
        let bytes = pattern(i, (i as usize % 9 + 1) * 60_000);
        files.push((name.clone(), file_with(&fs.root(), &name, &bytes), bytes));
    }
    fs.sync().expect("durable");
    for (name, file, _) in files.extract_if(.., |(name, ..)| name.ends_with(['1', '4', '7'])) {
        drop(file);
        fs.root().unlink(name.as_bytes()).expect("removed");
    }
    let figures = fs.statfs().expect("figures");
    let used = 2 * (figures.blocks - figures.blocks_free) * u64::from(figures.block_size);
    let found = fs.trim(TrimOptions::default(), &mut |_| true).expect("trimmed");
    assert_eq!(found.trimmed, bytes(&told), "what is said is what the device was told");
    assert!(found.trimmed > 400 * MIB - used - 60 * MIB, "{found:?}, {used} in use");
    for range in told.hook.told.lock().expect("no panic").iter() {
        for start in [64 << 10, 64 << 20_u64] {
            assert!(range.end <= start || range.start >= start + 4096, "a superblock: {range:?}");
        }
        assert!(range.start >= MIB, "{range:?}");
    }
    for (name, file, bytes) in &files {
        assert!(content(file) == *bytes, "{name}");
    }
    let cuts = std::mem::take(&mut *told.hook.cuts.lock().expect("no panic"));
    assert!(cuts.len() > 4, "only {} discards", cuts.len());
    for cut in cuts {
        let cut: Arc<dyn Device> = Arc::new(cut);
        expect_sound(&cut);
        let fs = mount(&cut);
        for (name, _, bytes) in &files {
            assert!(content(&fs.resolve(name).expect("there")) == *bytes, "{name} after a cut");
        }
    }
    drop(files);
    fs.close().expect("closed");
    check(&below);
}

/// A trim can be limited to a part of the addresses, or to long runs.
#[test]
fn trim_covers_the_requested_range() {
    let (below, told, fs) = oblivious(300, 0);
    file_with(&fs.root(), "file", &pattern(1, 3 << 20));
    let all = fs.trim(TrimOptions::default(), &mut |_| true).expect("trimmed").trimmed;
    assert!(all > 200 * MIB);
    let some = |from: u64, len: u64, least: u64| {
        let options = TrimOptions { from: Logical(from), len, least };
        let before = bytes(&told);
        let found = fs.trim(options, &mut |_| true).expect("trimmed");
        assert_eq!(found.trimmed, bytes(&told) - before);
        found.trimmed
    };
    assert_eq!(some(0, u64::MAX, u64::MAX), 0, "nothing is as long");
    let part = some(20 * MIB, 16 * MIB, 0);
    assert!(part > 0 && part <= 2 * 16 * MIB, "{part} of 16 MiB in two copies");
    assert_eq!(some(1 << 50, MIB, 0), 0, "nothing is there");
    let mut steps = 0;
    let stopped = fs.trim(TrimOptions::default(), &mut |_| {
        steps += 1;
        steps < 2
    });
    assert!(steps == 2 && stopped.expect("ended").trimmed < all);
    fs.close().expect("closed");
    check(&below);
}

/// A trim runs beside writers that fill the volume and delete. The data of the writers stays, and
/// no write is refused.
#[test]
fn beside_writers() {
    let (below, _, fs) = oblivious(300, 0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (fs, stop) = (&fs, &stop);
        for seed in 0..3_u64 {
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) || round < 20 {
                    round += 1;
                    let name = format!("{seed}-{}", round % 7);
                    let bytes = pattern(round, 1 + rng.below(400_000) as usize);
                    let file = file_with(&fs.root(), &name, &bytes);
                    if rng.chance(1, 2) {
                        file.sync().expect("there is room");
                    }
                    assert!(content(&file) == bytes, "{name}");
                    drop(file);
                    fs.root().unlink(name.as_bytes()).expect("removed");
                }
            });
        }
        for _ in 0..6 {
            fs.trim(TrimOptions::default(), &mut |_| true).expect("trimmed");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs.space_stats().engine.enospc, 0);
    fs.close().expect("closed");
    check(&below);
}

/// Reports when a discard begins, and holds the discard back until the test lets it go.
#[derive(Debug)]
struct Held(Mutex<Option<(Sender<()>, Receiver<()>)>>);

impl Hook for Held {
    fn discard(&self, below: &dyn Device, offset: u64, len: u64) -> Result<(), Error> {
        if let Some((told, go_on)) = &*self.0.lock().expect("no panic") {
            let _ = told.send(());
            let _ = go_on.recv();
        }
        below.discard(offset, len)
    }
}

/// M1, M2: little space is free, and the device is slow to discard a part of it. No write is
/// refused if there is room for it. Ordered extents that finish during the discard lie elsewhere.
#[test]
fn beside_a_writer_where_little_is_free() {
    let below = memory(160);
    let (told, is_told) = channel();
    let (may, go_on) = channel();
    let device = Hooked::new(&below, Held(Mutex::new(None)));
    let fs = mount(&(Arc::clone(&device) as Arc<dyn Device>));
    let target = file_with(&fs.root(), "target", b"");
    let removed = file_with(&fs.root(), "removed", &pattern(1, 4 * MIB as usize));
    removed.sync().expect("durable");
    let key = Key::new(removed.id().ino.0, Kind::EXTENT_DATA, 0);
    let item = fs.view().get(removed.id().tree, &key).expect("it reads").expect("an extent");
    let extent = FileExtent::parse(&item).expect("an extent");
    let from = extent.region().expect("not inline").disk;
    drop(room::fill(&fs, 0));
    // After this drop the free space is one piece. A trim could take so much of it that the rest is
    // too little for a write.
    drop(removed);
    fs.root().unlink(b"removed").expect("removed");
    fs.sync().expect("durable");
    let refused = || fs.space_stats().engine.enospc;
    let (before, mut outcomes) = (refused(), Vec::new());
    std::thread::scope(|scope| {
        *device.hook.0.lock().expect("no panic") = Some((told, go_on));
        let (fs, device) = (&fs, &device);
        let trim = scope.spawn(move || {
            let options = TrimOptions { from, len: 4 * MIB, least: MIB };
            let found = fs.trim(options, &mut |_| true);
            *device.hook.0.lock().expect("no panic") = None;
            found
        });
        while is_told.recv().is_ok() {
            if outcomes.is_empty() {
                let written = target.write_at(0, &pattern(2, 2 * MIB as usize));
                outcomes.push(written.and_then(|_| target.flush_data()));
            }
            let _ = may.send(());
        }
        let found = trim.join().expect("no panic").expect("trimmed");
        assert!(found.trimmed >= MIB, "{found:?}");
    });
    let outcome = outcomes.pop().expect("the device was told of something");
    outcome.expect("half of what there is is left to writers");
    assert_eq!(refused(), before, "no request but those that filled it is refused");
    assert!(
        content(&target) == pattern(2, 2 * MIB as usize),
        "the device was told of what the writer had by then"
    );
    drop(target);
    fs.close().expect("closed");
    check(&below);
}
