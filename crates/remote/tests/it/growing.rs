//! Devices that get longer while they are open.

use std::sync::Arc;
use std::time::Duration;

use buttress_block::{Device, Error as BlockError};
use buttress_remote::store::simulated::SimStore;
use buttress_remote::{Options, RemoteDevice};

use crate::{create, open, options, store};

const LEN: u64 = 8 << 20;
const LONGER: u64 = 200 << 20;

fn reading() -> Options {
    Options { write: false, ..options() }
}

fn byte_at(device: &dyn Device, offset: u64) -> u8 {
    let mut content = [0; 4096];
    device.read_at(offset, &mut content).expect("within");
    content[0]
}

/// W1, W2: at each change of the store, a reader finds the old length or the new one, and with the
/// new length the whole content. An acknowledged length stays, also without a flush.
#[test]
fn a_device_grows_in_one_commit() {
    let store = store(6);
    let device = create(&store, LEN);
    device.write_at(0, &[1; 4096]).expect("within");
    device.write_at(LEN, &[1; 4096]).expect_err("past the end");
    device.grow(LONGER - 100).expect("a store");
    assert_eq!(device.len(), LONGER, "whole sectors");
    let acknowledged = store.changes().len();
    assert_eq!(byte_at(&device, LONGER - 4096), 0);
    device.write_at(LONGER - 4096, &[2; 4096]).expect("within");
    device.write_at(LONGER, &[2; 4096]).expect_err("past the end");
    device.flush().expect("a store");
    let flushed = store.changes().len();
    device.checkpoint().expect("a store");
    device.grow(LEN).expect("it is long enough");
    let too_long = device.grow(u64::MAX - 5).expect_err("no map has that");
    assert!(format!("{too_long:?}").contains("the most are"), "{too_long:?}");
    assert_eq!(device.len(), LONGER, "it never shrinks");
    device.close().expect("a store");
    let changes = store.changes();
    for count in 3..=changes.len() {
        let cut = Arc::new(SimStore::replay(&changes[..count], 1));
        let Ok(reader) = open(&cut, reading()) else { continue };
        assert!([LEN, LONGER].contains(&reader.len()));
        assert!(reader.len() == LONGER || count < acknowledged, "{count} of {acknowledged}");
        if count >= flushed {
            assert_eq!((byte_at(&reader, 0), byte_at(&reader, LONGER - 4096)), (1, 2));
        }
    }
    let reader = open(&store, reading()).expect("a volume");
    assert!(!reader.can_grow());
    assert!(matches!(reader.grow(2 * LONGER), Err(BlockError::ReadOnly { .. })));
}

/// A crash leaves writes past the old end only in the local log. The writes are replayed, since the
/// commit under them has the longer length (W1).
#[test]
fn a_log_has_writes_past_the_old_end() {
    let store = store(7);
    drop(create(&store, LEN));
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options {
        cache_dir: Some(folder.path().join("cache")),
        cache_size: 64 << 20,
        max_lag: Duration::from_secs(3600),
        ..options()
    };
    let device = open(&store, options.clone()).expect("free");
    device.grow(LONGER).expect("a store");
    device.write_at(LONGER - 4096, &[3; 4096]).expect("within");
    device.flush().expect("a disk");
    device.abandon();
    drop(device);
    let behind = open(&store, reading()).expect("a volume");
    assert_eq!((behind.len(), byte_at(&behind, LONGER - 4096)), (LONGER, 0));
    store.advance_ms(60_000);
    let next = open(&store, options).expect("the dead writer is old");
    assert_eq!((next.len(), byte_at(&next, LONGER - 4096)), (LONGER, 3));
    next.close().expect("a store");
}

/// Several threads grow one device. Each thread returns when its length is durable, and the longest
/// length counts. A reader from before the growth keeps its length. Its `newer_commit` has the
/// longest length.
#[test]
fn the_longest_of_several_lengths_counts() {
    let store = store(8);
    let device: Arc<RemoteDevice> = Arc::new(create(&store, LEN));
    let reader = open(&store, reading()).expect("a volume");
    std::thread::scope(|scope| {
        for number in 1..8 {
            let (device, store) = (&device, &store);
            scope.spawn(move || {
                device.grow(LEN + number * (1 << 20)).expect("a store");
                let seen = open(store, reading()).expect("a volume").len();
                assert!(seen >= LEN + number * (1 << 20), "{seen} {number}");
            });
        }
    });
    assert_eq!(device.len(), LEN + (7 << 20));
    let newer = reader.newer_commit().expect("a store").expect("a newer commit");
    assert_eq!((reader.len(), newer.len()), (LEN, LEN + (7 << 20)));
}
