//! R7: reads while other threads move extents and cut files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use buttress_base::Rng;
use buttress_block::{Device, Error};
use buttress_fs::{BalanceOptions, Filesystem, Filter, Inode, MountOptions, SetAttr};

use crate::checker::check;
use crate::devices::{Hook, Hooked};
use crate::volume::{file_with, memory, setting};

const SECTOR: usize = 4096;
const LEN: usize = 4 << 20;

/// A device on which discarded bytes become wrong at once, and some reads are slow.
#[derive(Debug, Default)]
struct Forgets(AtomicU64);

impl Hook for Forgets {
    fn read(&self, below: &dyn Device, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        if buf.len() != 16384 && self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(4) {
            thread::sleep(Duration::from_millis(3));
        }
        below.read_at(offset, buf)
    }

    fn discard(&self, below: &dyn Device, offset: u64, len: u64) -> Result<(), Error> {
        for at in (offset..offset + len).step_by(SECTOR) {
            below.write_at(at, &[0xA5; 512])?;
        }
        Ok(())
    }
}

/// The byte of a file at a place that was written. Bytes at other places, and bytes of other files
/// at this place, are different.
fn byte(seed: u64, at: usize) -> u8 {
    ((at as u64 / 64 * 0x9E37_79B9 + seed * 0x1234_5677) >> 16) as u8 | 1
}

fn bytes(seed: u64, from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| byte(seed, at)).collect()
}

fn resize(file: &Inode, size: u64) {
    file.set_attr(&SetAttr { size: Some(size), ..SetAttr::default() }).expect("another length");
}

/// Makes a short or long read, through the page cache or past it. Each byte must be the written
/// byte. It may also be zero if the file may have been cut.
fn read(file: &Inode, seed: u64, may_be_cut: bool, rng: &mut Rng, buf: &mut [u8]) {
    let most = *rng.choose(&[SECTOR, 40_000, 700_000]).expect("some");
    let len = rng.range(1..most as u64 + 1) as usize;
    let at = rng.below((LEN - len) as u64) as usize;
    let found = file.read_at(at as u64, &mut buf[..len]).expect("a read");
    assert!(found == len || may_be_cut, "{found} of {len} at {at}");
    let is_right = |n: &usize| buf[*n] == byte(seed, at + n) || (may_be_cut && buf[*n] == 0);
    let wrong = (0..found).find(|n| !is_right(n));
    assert_eq!(wrong, None, "{found} bytes at {at}, seed {seed}");
}

/// Tests R7.
/// All of the data is moved again and again, while some files are cut, grow and are written, and
/// others never change. Old space is discarded, and given to other files. No read returns wrong
/// bytes or an error about a checksum.
#[test]
fn reads_are_right_beside_moves_and_cuts() {
    const MOVES: u64 = 4;
    let seed = setting("BUTTRESS_SEED", 5);
    for options in ["rw,discard,commit=1,page_cache=2m", "rw,discard,commit=1,compress=zstd:1"] {
        let below = memory(320);
        let device: Arc<dyn Device> = Hooked::new(&below, Forgets::default()) as _;
        let options = MountOptions::parse(options).expect("options");
        let fs = Filesystem::open(vec![device], options).expect("a mount");
        let make = |number: u64| {
            let file = file_with(&fs.root(), &format!("file-{number}"), &bytes(number, 0, LEN));
            file.sync().expect("a sync");
            file
        };
        // The first of these files never changes.
        let files: Vec<_> = (0..3).map(make).collect();
        let done = AtomicBool::new(false);
        let rounds = AtomicU64::new(0);
        thread::scope(|scope| {
            let (files, done, fs) = (&files, &done, &fs);
            let guarded = |work: &dyn Fn()| {
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                // Stop the other threads, which would otherwise run for ever.
                if outcome.is_err() {
                    done.store(true, Ordering::SeqCst);
                }
                outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            };
            for reader in 0..2 {
                scope.spawn(move || {
                    guarded(&|| {
                        let mut rng = Rng::new(seed * 100 + reader);
                        let mut buf = vec![0; LEN];
                        while !done.load(Ordering::SeqCst) {
                            let number = rng.below(3);
                            read(&files[number as usize], number, number > 0, &mut rng, &mut buf);
                        }
                    });
                });
            }
            for number in 1..3_u64 {
                let rounds = &rounds;
                scope.spawn(move || {
                    guarded(&|| {
                        let file = &files[number as usize];
                        let mut rng = Rng::new(seed * 1000 + number);
                        while !done.load(Ordering::SeqCst) {
                            rounds.fetch_add(1, Ordering::SeqCst);
                            let len = rng.range(1..200_000) as usize;
                            let at = rng.below((LEN - len) as u64) as usize;
                            file.write_at(at as u64, &bytes(number, at, len)).expect("a write");
                            match rng.below(8) {
                                0 => resize(file, rng.below(LEN as u64)),
                                1 => resize(file, LEN as u64),
                                2 => file.sync().expect("a sync"),
                                3 => file.flush_data().expect("it arrives"),
                                _ => {}
                            }
                        }
                    });
                });
            }
            guarded(&|| {
                let all =
                    BalanceOptions { data: Some(Filter::default()), ..BalanceOptions::default() };
                let mut moved = 0;
                while moved < MOVES && !done.load(Ordering::SeqCst) {
                    let found = fs.balance(&all, &mut |_| true).expect("a balance");
                    moved += u64::from(found.completed > 0);
                }
                done.store(true, Ordering::SeqCst);
            });
        });
        assert!(rounds.load(Ordering::SeqCst) > 20);
        let stats = fs.io_stats();
        assert_eq!((stats.csum_failures, stats.repairs, stats.io_failures), (0, 0, 0));
        drop(files);
        fs.close().expect("a close");
        check(&below);
    }
}
