//! Tests of the log while another thread holds its lock. A committed write that the log lacks is
//! never undone.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use buttress_block::{Device, MemoryDevice};

use crate::device::RemoteDevice;
use crate::open::Site;
use crate::options::Options;
use buttress_store::simulated::{SimStore, Weather};

const LEN: u64 = 4 << 20;

fn site(store: &Arc<SimStore>, dir: &Path) -> Site {
    let options = Options {
        write: true,
        object_len: 64 << 10,
        memory: 16 << 20,
        max_lag: Duration::from_secs(3600),
        cache_dir: Some(dir.to_owned()),
        ..Options::default()
    };
    Site::in_store(store.clone(), "v", options)
}

fn begun(dir: &Path) -> (Arc<SimStore>, RemoteDevice) {
    let store = Arc::new(SimStore::new(1, Weather::default()));
    let device = site(&store, dir).create(LEN).expect("an honest store");
    (store, device)
}

fn sector(device: &dyn Device, at: u64) -> u8 {
    let mut found = [0; 4096];
    device.read_at(at * 4096, &mut found).expect("within");
    assert!(found.iter().all(|&byte| byte == found[0]), "one write made the sector {at}");
    found[0]
}

/// J5: a commit has a write that the log lacks, since the log was locked when the commit was made.
/// Neither replay nor salvage puts an older record over that write.
#[test]
fn an_older_record_never_undoes_what_a_commit_has() {
    let dir = tempfile::tempdir().expect("tempdir");
    let (store, device) = begun(dir.path());
    let write = |at: u64, byte: u8| device.write_at(at * 4096, &[byte; 4096]).expect("within");
    write(0, 1);
    write(2, 9);
    device.flush().expect("a good disk");
    write(0, 2);
    device.discard(2 * 4096, 4096).expect("within");
    std::thread::scope(|scope| {
        // Locks the log, as another flush does while it waits for the disk.
        let held = device.core.log.get().expect("it has a log").inside.lock();
        let pushing = scope.spawn(|| device.push());
        let is_behind = || {
            let state = device.core.state.lock();
            state.committed < state.position
        };
        while is_behind() {
            std::thread::yield_now();
        }
        drop(held);
        pushing.join().expect("no panic").expect("a good store");
    });
    write(1, 3);
    device.flush().expect("a good disk");
    device.abandon();
    drop(device);
    let target = Arc::new(MemoryDevice::new(LEN));
    let made = target.clone();
    site(&store, dir.path()).salvage(|_| Ok(made), &|_| ()).expect("a log");
    assert_eq!([0, 1, 2].map(|at| sector(&*target, at)), [2, 3, 0], "what was salvaged");
    store.advance_ms(60_000);
    let device = site(&store, dir.path()).open().expect("the log fits");
    assert_eq!([0, 1, 2].map(|at| sector(&device, at)), [2, 3, 0], "what was replayed");
}

/// X2: the store takes segments, but the log takes none, since another thread holds its lock. The
/// memory of sealed segments stays within its bound, and the writer waits.
#[test]
fn a_writer_waits_while_the_log_lacks_too_many_segments() {
    let dir = tempfile::tempdir().expect("tempdir");
    let (_store, device) = begun(dir.path());
    let bound = device.core.budget.sealed + 1;
    std::thread::scope(|scope| {
        let held = device.core.log.get().expect("it has a log").inside.lock();
        // Four times as many segments of 64 KiB as may stay in memory.
        let writing = scope.spawn(|| {
            let mut segments = (0..bound as u64 * 4).map(|number| number << 16);
            segments.try_for_each(|at| device.write_at(at, &[7; 1 << 16]))
        });
        let is_still = || {
            let state = device.core.state.lock();
            let sealed = state.logging.as_ref().map_or(0, |logging| logging.sealed);
            assert!(sealed <= bound, "{sealed} segments are in memory");
            sealed == bound && state.sealed.is_empty()
        };
        while !is_still() {
            assert!(!writing.is_finished(), "the writer did not wait");
            std::thread::yield_now();
        }
        drop(held);
        writing.join().expect("no panic").expect("within");
    });
    assert_eq!(sector(&device, 9), 7);
    device.close().expect("a good store");
}

/// If a commit has all acknowledged writes, it needs no pin when another writer takes the volume. A
/// pin that a log needs is deleted when the log is removed.
#[test]
fn a_pin_for_salvage_stays_only_while_its_log_does() {
    for is_behind in [false, true] {
        let dir = tempfile::tempdir().expect("tempdir");
        let (store, first) = begun(dir.path());
        first.write_at(0, &[1; 4096]).expect("within");
        first.flush().expect("a good disk");
        first.push().expect("a good store");
        first.write_at(0, &[2; 4096]).expect("within");
        if is_behind {
            first.flush().expect("a good disk");
        }
        let mut other = site(&store, dir.path());
        other.options.cache_dir = None;
        other.options.takeover = true;
        let second = other.open().expect("taken over");
        first.push().expect_err("fenced");
        first.close().expect_err("fenced");
        second.close().expect("it has the volume");
        let pins = || store.names().iter().filter(|name| name.contains("/pin/")).count();
        assert_eq!(pins(), usize::from(is_behind));
        let mut third = site(&store, dir.path());
        third.options.discard_local = is_behind;
        third.open().expect("nothing stays of the log").close().expect("a good store");
        assert_eq!(pins(), 0);
        third.delete().expect("nothing keeps it");
    }
}

/// A closed device refuses writes, so its content stays as it was at the close.
#[test]
fn a_closed_device_takes_no_write() {
    let dir = tempfile::tempdir().expect("tempdir");
    let (_store, device) = begun(dir.path());
    device.write_at(0, &[1; 4096]).expect("within");
    device.close().expect("a good store");
    device.flush().expect("a commit has everything");
    device.write_at(0, &[2; 4096]).expect_err("closed");
    device.write_zeroes(0, 4096, buttress_block::Space::Free).expect_err("closed");
    device.discard(0, 4096).expect_err("closed");
    assert_eq!(sector(&device, 0), 1);
}

/// The copy of frames that a flush writes to the log takes the memory of the copy before.
#[test]
fn copies_of_frames_share_memory() {
    let dir = tempfile::tempdir().expect("tempdir");
    let (_store, device) = begun(dir.path());
    let room = || {
        let state = device.core.state.lock();
        let room = &state.logging.as_ref().expect("it has a log").room;
        (room.as_ptr(), room.capacity())
    };
    let flush = |at: u64| {
        device.write_at(at * 4096, &[7; 4096]).expect("within");
        device.flush().expect("a good disk");
        room()
    };
    let first = flush(0);
    assert!(first.1 >= 4096);
    assert!((1..8).all(|at| flush(at) == first));
    device.close().expect("a close");
}
