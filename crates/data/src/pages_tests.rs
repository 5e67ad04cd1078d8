use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use buttress_base::{AlignedBuf, Rng};
use buttress_format::{Extent, Logical};

use crate::pages::{PageLookup, Pages, Purpose, REGION, RunClaim};

const SECTOR: u64 = 4096;

/// A simulated device: each sector holds its own number and how often it was written.
#[derive(Debug)]
struct Disk(Vec<AtomicU64>);

impl Disk {
    fn read(&self, extent: Extent) -> Arc<AlignedBuf> {
        let mut bytes = AlignedBuf::zeroed(extent.len as usize);
        for (index, sector) in bytes.chunks_mut(SECTOR as usize).enumerate() {
            let number = extent.start.0 / SECTOR + index as u64;
            let stamp = self.0[number as usize].load(Ordering::SeqCst);
            sector[..8].copy_from_slice(&number.to_le_bytes());
            sector[8..16].copy_from_slice(&stamp.to_le_bytes());
        }
        Arc::new(bytes)
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Many readers want the same run: one reader reads it, and all get its bytes.
#[test]
fn a_run_is_read_once() {
    let pages = Pages::new(64 << 20);
    let reads = AtomicU64::new(0);
    let start = Barrier::new(8);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                for region in 0..8 {
                    let at = Logical(region * REGION);
                    loop {
                        match pages.find(at, REGION, false) {
                            PageLookup::Ready { bytes, from } => {
                                assert_eq!((bytes.len() as u64, from), (REGION, 0));
                                break;
                            }
                            PageLookup::Claimed(claim) => {
                                reads.fetch_add(1, Ordering::Relaxed);
                                let bytes = AlignedBuf::zeroed(claim.extent().len as usize);
                                claim.publish(&Arc::new(bytes), Purpose::Now);
                            }
                            PageLookup::Loading { .. } => pages.wait(at),
                        }
                    }
                }
            });
        }
    });
    assert_eq!(reads.into_inner(), 8);
    // Each of the readers finds each run in the end.
    let stats = pages.stats();
    assert_eq!((stats.hits, stats.misses, stats.bytes), (64, 8, 8 * REGION));
}

/// When a claim is dropped, a thread that waited claims the run.
#[test]
fn a_failed_read_is_tried_by_the_next() {
    let pages = Pages::new(64 << 20);
    let at = Logical(12288);
    let PageLookup::Claimed(claim) = pages.find(at, SECTOR, false) else { panic!("it is free") };
    let seen = Barrier::new(2);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            assert!(matches!(pages.find(at, SECTOR, false), PageLookup::Loading { .. }));
            seen.wait();
            pages.wait(at);
            matches!(pages.find(at, SECTOR, false), PageLookup::Claimed(_))
        });
        seen.wait();
        // This is usually long enough for the thread to fall asleep. The test does not depend on
        // the sleep.
        thread::sleep(std::time::Duration::from_millis(20));
        drop(claim);
        assert!(waiter.join().expect("a thread"));
    });
}

/// A reader never finds old data after a write that came during a read; memory stays in bounds.
#[test]
fn lookups_find_no_old_data() {
    let seed = std::env::var("BUTTRESS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let sectors = 3 * REGION / SECTOR;
    let budget = 1 << 20;
    let pages = Pages::new(budget);
    let disk = Disk((0..sectors).map(|_| AtomicU64::new(0)).collect());
    // The oldest state of each sector that a reader may see.
    let told: Vec<AtomicU64> = (0..sectors).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..3 {
            let (pages, disk, told, done) = (&pages, &disk, &told, &done);
            scope.spawn(move || {
                let mut rng = Rng::new(seed * 100 + reader);
                while !done.load(Ordering::Relaxed) {
                    let number = rng.below(sectors);
                    let at = Logical(number * SECTOR);
                    let least = told[number as usize].load(Ordering::SeqCst);
                    let (bytes, from) = match pages.find(at, rng.range(1..40) * SECTOR, false) {
                        PageLookup::Ready { bytes, from } => (bytes, from),
                        PageLookup::Claimed(claim) => {
                            let bytes = disk.read(claim.extent());
                            claim.publish(&bytes, Purpose::Now);
                            (bytes, 0)
                        }
                        PageLookup::Loading { .. } => {
                            pages.wait(at);
                            continue;
                        }
                    };
                    assert_eq!(word(&bytes, from), number, "another sector, seed {seed}");
                    let found = word(&bytes, from + 8);
                    assert!(found >= least, "sector {number}: {found} < {least}, seed {seed}");
                }
            });
        }
        let mut rng = Rng::new(seed);
        for stamp in 1..20_000 {
            let first = rng.below(sectors);
            let count = rng.range(1..9).min(sectors - first);
            for number in first..first + count {
                disk.0[number as usize].store(stamp, Ordering::SeqCst);
            }
            pages.forget(Extent::new(Logical(first * SECTOR), count * SECTOR));
            for number in first..first + count {
                told[number as usize].store(stamp, Ordering::SeqCst);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    pages.audit();
}

/// Reads a run of 256 KiB that no other thread wants; returns whether the cache had it.
fn touch(pages: &Pages, at: u64, continues: bool) -> bool {
    touch_for(pages, at, Purpose::Now, continues)
}

fn touch_for(pages: &Pages, at: u64, purpose: Purpose, continues: bool) -> bool {
    match pages.find(Logical(at), 256 << 10, continues) {
        PageLookup::Ready { .. } => true,
        PageLookup::Claimed(claim) => {
            let bytes = AlignedBuf::zeroed(claim.extent().len as usize);
            claim.publish(&Arc::new(bytes), purpose);
            false
        }
        PageLookup::Loading { .. } => panic!("no other thread is here"),
    }
}

/// A run that is read again and again stays, however much other data is read once meanwhile.
#[test]
fn a_scan_drives_out_nothing_that_is_used() {
    let pages = Pages::new(16 << 20);
    let hot: Vec<u64> = (0..16).map(|index| index * REGION).collect();
    for _ in 0..3 {
        hot.iter().for_each(|at| _ = touch(&pages, *at, false));
    }
    for index in 0..400 {
        touch(&pages, (1 << 40) + index * (256 << 10), false);
        if index % 20 == 0 {
            hot.iter().for_each(|at| _ = touch(&pages, *at, false));
        }
    }
    let kept = hot.iter().filter(|at| touch(&pages, **at, false)).count();
    assert!(kept >= 14, "{kept} of 16 are left");
}

/// Runs that are used now replace runs that were used before. This holds even if the new runs
/// together do not fit into the queue for data that is read once.
#[test]
fn used_runs_give_way_to_newer_ones() {
    let pages = Pages::new(16 << 20);
    let runs = |base: u64, count: u64| (0..count).map(move |index| base + index * REGION);
    // These runs take three quarters of the budget, and are in use until other data is read.
    for _ in 0..3 {
        runs(0, 48).for_each(|at| _ = touch(&pages, at, false));
    }
    runs(1 << 40, 32).for_each(|at| _ = touch(&pages, at, false));
    runs(0, 48).for_each(|at| _ = touch(&pages, at, false));
    let mut found = 0;
    for _ in 0..6 {
        found = runs(2 << 40, 32).filter(|at| touch(&pages, *at, false)).count();
    }
    assert!(found >= 28, "{found} of 32 are found in the sixth round");
    // A cycle of reads that is too long to be cached does not evict these runs.
    for _ in 0..6 {
        runs(3 << 40, 128).for_each(|at| _ = touch(&pages, at, false));
    }
    let found = runs(2 << 40, 32).filter(|at| touch(&pages, *at, false)).count();
    assert!(found >= 24, "{found} of 32 are left");
    pages.audit();
}

/// Overwritten runs take no memory, even if they were used.
#[test]
fn forgotten_runs_take_no_room() {
    let pages = Pages::new(16 << 20);
    for round in 0..20 {
        // Each of these runs is read twice, so that it enters the queue of used runs.
        for at in (0..48).map(|index| index * REGION) {
            touch(&pages, at, false);
            touch(&pages, at, false);
        }
        (0..32)
            .for_each(|index| _ = touch(&pages, (1 << 40) + (round * 64 + index) * REGION, false));
        pages.forget(Extent::new(Logical(0), 48 * REGION));
    }
    let fresh = || (0..56).map(|index| (2 << 40) + index * REGION);
    fresh().for_each(|at| _ = touch(&pages, at, false));
    let kept = fresh().filter(|at| touch(&pages, *at, false)).count();
    assert!(kept >= 54, "{kept} of 56 are kept, where 64 have room");
    pages.audit();
}

/// A sequential read in pieces shorter than a run counts as one read of each run.
#[test]
fn pieces_of_a_sector_are_one_visit() {
    let pages = Pages::new(16 << 20);
    let hot: Vec<u64> = (0..40).map(|index| index * REGION).collect();
    for _ in 0..3 {
        hot.iter().for_each(|at| _ = touch(&pages, *at, false));
    }
    for index in 0..400 {
        let at = (1 << 40) + index * REGION;
        (0..4).for_each(|piece| _ = touch(&pages, at, piece > 0));
    }
    let kept = hot.iter().filter(|at| touch(&pages, **at, false)).count();
    assert!(kept >= 36, "{kept} of 40 are left");
}

/// Data that was read ahead stays until its reader reads it, even while other threads scan. After
/// that one read, a scan may evict the data.
#[test]
fn read_ahead_survives_other_scans_until_it_is_read() {
    let pages = Pages::new(16 << 20);
    let touch = |at: u64, purpose: Purpose| touch_for(&pages, at, purpose, false);
    let ahead: Vec<u64> = (0..8).map(|index| index * REGION).collect();
    ahead.iter().for_each(|at| _ = touch(*at, Purpose::Later));
    for index in 0..80 {
        touch((1 << 40) + index * (256 << 10), Purpose::Now);
    }
    assert!(ahead.iter().all(|at| touch(*at, Purpose::Now)), "all eight are there");
    for index in 0..400 {
        touch((2 << 40) + index * (256 << 10), Purpose::Now);
    }
    assert!(!ahead.iter().any(|at| touch(*at, Purpose::Now)), "they were read once");
}

/// Even if used runs fill the cache, a sequential reader's run stays while two windows ahead of it
/// are read. No run is read twice.
#[test]
fn a_reader_keeps_the_run_it_reads() {
    const PIECE: u64 = 32 << 10;
    const LEN: u64 = 64 << 20;
    for budget in [4 << 20, (17 << 20) / 4, 10_000_000, 16 << 20, 64 << 20] {
        let pages = Pages::new(budget);
        let load = |claim: RunClaim<'_>, purpose: Purpose| {
            let len = claim.extent().len;
            claim.publish(&Arc::new(AlignedBuf::zeroed(len as usize)), purpose);
            len
        };
        let used = (0..budget / REGION).map(|region| (1 << 40) + region * REGION);
        for at in used.clone().chain(used.clone()).chain(used) {
            if let PageLookup::Claimed(claim) = pages.find(Logical(at), REGION, false) {
                load(claim, Purpose::Now);
            }
        }
        let window = pages.widest_window();
        assert!(window.is_multiple_of(SECTOR) && window >= budget / 64, "{window} of {budget}");
        let (mut scanned, mut told) = (0, 0);
        for at in (0..LEN).step_by(PIECE as usize) {
            let is_due = told < at + PIECE + window;
            while is_due && told < at + PIECE + 2 * window {
                match pages.claim(Logical(told), window) {
                    Ok(claim) => {
                        told = claim.extent().end().0;
                        scanned += load(claim, Purpose::Later);
                    }
                    Err(there) => told = there.0,
                }
            }
            if let PageLookup::Claimed(claim) = pages.find(Logical(at), window, false) {
                scanned += load(claim, Purpose::Now);
            }
        }
        assert_eq!(scanned, told, "bytes are read of so many, with a budget of {budget}");
    }
}
