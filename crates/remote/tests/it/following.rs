//! Tests of readers that go on to newer commits.

use std::sync::Arc;

use buttress_block::Device;
use buttress_remote::store::simulated::Weather;
use buttress_remote::{Options, RemoteDevice};

use crate::{create, open, options, store};

const LEN: u64 = 16 << 20;

fn reading() -> Options {
    Options { write: false, ..options() }
}

fn first_byte(device: &dyn Device) -> u8 {
    let mut content = [0; 4096];
    device.read_at(0, &mut content).expect("within");
    content[0]
}

fn commit(device: &RemoteDevice, byte: u8) {
    device.write_at(0, &[byte; 4096]).expect("within");
    device.flush().expect("a commit");
}

/// F1: each device keeps its commit, also after checkpoints, when the store fails at random, and
/// after newer devices were opened.
#[test]
fn devices_of_newer_commits_keep_their_content() {
    let store = store(3);
    let writer = create(&store, LEN);
    commit(&writer, 1);
    store.set_weather(Weather { refused: 50, wrong: 30, short: 30, ..Weather::default() });
    let first = Arc::new(open(&store, reading()).expect("a volume"));
    let newest = first.newest();
    assert!(first.newer_commit().expect("a store").is_none());
    let mut all: Vec<Arc<RemoteDevice>> = vec![first];
    for byte in 2..20 {
        commit(&writer, byte);
        if byte % 5 == 0 {
            writer.checkpoint().expect("a commit");
        }
        let last = all.last().expect("one at least");
        assert!(last.newer().expect("a store").is_some(), "as the engine asks");
        let newer = last.newer_commit().expect("a store").expect("a newer commit");
        all.push(newer);
    }
    for (byte, device) in (1..).zip(&all) {
        assert_eq!(first_byte(&**device), byte);
    }
    assert!(newest.get().is_some());
    drop(all);
    assert!(newest.get().is_none(), "it keeps none open");
}

/// F2: a reader that slept while the next commits were deleted finds the newest commit by the list.
#[test]
fn a_reader_that_slept_finds_the_newest_commit() {
    let store = store(4);
    let writer = open_with_no_keep(&store);
    commit(&writer, 1);
    let reader = open(&store, reading()).expect("a volume");
    for byte in 2..8 {
        commit(&writer, byte);
    }
    store.advance_ms(10_000);
    writer.collect_all().expect("a store");
    commit(&writer, 9);
    let newer = reader.newer_commit().expect("a store").expect("a newer commit");
    assert_eq!(first_byte(&*newer), 9);
}

fn open_with_no_keep(store: &Arc<buttress_remote::store::simulated::SimStore>) -> RemoteDevice {
    drop(create(store, LEN));
    let options = Options { min_keep: std::time::Duration::ZERO, ..options() };
    open(store, options).expect("the only writer")
}
