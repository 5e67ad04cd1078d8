//! Tests of the two queues of waiting requests, and of the one thread that makes room for both
//! queues.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use buttress_block::MemoryDevice;
use buttress_txn::{Cost, ReserveClass};

use super::*;
use crate::{
    ErrorKind, FallocateMode, Filesystem, Inode, InodeFlags, MakeOptions, MountOptions, NewInode,
    SetAttr,
};

/// A cost that exceeds every volume of these tests.
const IMPOSSIBLE: Cost = Cost::of(100_000, 1 << 30);
/// The most metadata requests while the data request waits. The data request is served after far
/// fewer runs of the flush states.
const ASKED_MAX: usize = 400;

/// A volume without space for data, and a file that is written in place. Space after the end of the
/// file is missing, too.
fn full(options: &str) -> (Filesystem, Inode, u64) {
    let device = MemoryDevice::new(128 << 20);
    Filesystem::make(&device, &MakeOptions::default()).expect("an empty volume");
    let options = MountOptions::parse(options).expect("options");
    let fs = Filesystem::open(vec![Arc::new(device)], options).expect("a mount");
    let file = fs.root().create(b"file", NewInode::file(0o644)).expect("a file");
    let flags = Some(InodeFlags::NODATACOW);
    file.set_attr(&SetAttr { flags, ..SetAttr::default() }).expect("flags");
    let how = FallocateMode::Allocate { keep_size: false };
    let mut size = 0;
    while file.fallocate(size, 1 << 20, how).is_ok() {
        size += 1 << 20;
    }
    (fs, file, size)
}

/// M3: a waiter for data is served, even if other waiters always wait for metadata without success.
#[test]
fn data_is_not_behind_metadata() {
    let (fs, file, size) = full("commit=300");
    let (done, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    // Requests that ended while data waited. The thread that writes may come late to the queue, and
    // late out of it.
    let beside = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let engine = &fs.mount().engine;
                while !done.load(Ordering::Relaxed) && beside.load(Ordering::Relaxed) < ASKED_MAX {
                    engine
                        .reserve(IMPOSSIBLE, ReserveClass::Normal)
                        .expect_err("there is no such room");
                    asked.fetch_add(1, Ordering::Relaxed);
                    if engine.reservations().accounts().waiting.0 > 0 {
                        beside.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        while asked.load(Ordering::Relaxed) < 8 {
            std::thread::yield_now();
        }
        let written = file.write_at(size, &[1; 8 << 20]);
        done.store(true, Ordering::Relaxed);
        assert_eq!(written.expect_err("there is no room").kind(), ErrorKind::NoSpace);
        let beside = beside.load(Ordering::Relaxed);
        assert!(beside < ASKED_MAX, "data waited until no thread waited for metadata");
    });
    drop(file);
    fs.close().expect("closed");
}

/// The clamp concerns metadata. Writers that find no space for data do not lower the threshold of
/// preemptive flushing.
#[test]
fn data_does_not_lower_the_clamp() {
    let (fs, file, size) = full("preempt=clamp,commit=300");
    let before = fs.space_stats();
    for _ in 0..10 {
        file.write_at(size, &[1; 8 << 20]).expect_err("there is no room");
        // Dirty data causes preemptive flushing. Write until a round has run.
        for _ in 0..5 {
            file.write_at(0, &[1; 64 << 10]).expect("in place");
            std::thread::sleep(Duration::from_millis(4));
        }
    }
    let after = fs.space_stats();
    assert!(after.flush_runs >= before.flush_runs + 10, "the flusher took steps for them");
    assert!(after.clamp <= 1, "as at the beginning, not {}", after.clamp);
    drop(file);
    fs.close().expect("closed");
}
