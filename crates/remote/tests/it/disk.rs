//! Tests of the read cache on a local disk: it is used after restarts, and its content is never
//! wrong.

use std::path::Path;

use buttress_base::Rng;
use buttress_block::{Device, Read};
use buttress_remote::{Durability, Options};

use crate::conformance::{self, conforms};
use crate::{create, open, options, store};

const LEN: u64 = 8 << 20;

/// Options of a reader, or of a writer without a local log, with almost no memory.
fn keeping(dir: &Path, write: bool) -> Options {
    let durability = write.then_some(Durability::Remote);
    Options { cache_dir: Some(dir.to_owned()), durability, write, memory: 1 << 20, ..options() }
}

/// After a volume is opened again, its data is read from the local disk. Data that changed since is
/// read from the store. The files stay within their bound.
#[test]
fn what_was_read_is_kept_over_restarts() {
    let (dir, store) = (tempfile::tempdir().expect("tempdir"), store(1));
    let device = create(&store, LEN);
    let (mut right, mut rng) = (vec![0; LEN as usize], Rng::new(1));
    rng.fill(&mut right);
    device.write_at(0, &right).expect("within");
    device.close().expect("a good store");
    let read = |gets: &mut u64| {
        let reader = open(&store, keeping(dir.path(), false)).expect("a commit");
        let before = reader.status().gets;
        let mut found = vec![0; LEN as usize];
        reader.read_at(0, &mut found).expect("whole");
        assert!(found == right);
        let status = reader.status();
        *gets = status.gets - before;
        status
    };
    let (mut cold, mut warm) = (0, 0);
    let first = read(&mut cold).disk_hits;
    let status = read(&mut warm);
    assert!(cold > 0 && warm == 0, "{cold} and {warm} requests");
    assert!(status.disk_hits > first + 100 && status.disk_bytes >= LEN, "{status:?}");
    let path = dir.path().join("read/lines");
    let mut bytes = std::fs::read(&path).expect("a file");
    bytes.iter_mut().step_by(10_007).for_each(|byte| *byte ^= 1);
    std::fs::write(&path, bytes).expect("a file");
    let mut mended = 0;
    read(&mut mended);
    assert!(mended > 0, "lines that were changed come from the store");
    let small = Options { cache_size: 1 << 20, ..keeping(dir.path(), false) };
    let reader = open(&store, small).expect("a commit");
    let mut found = vec![0; LEN as usize];
    reader.read_at(0, &mut found).expect("whole");
    assert!(found == right);
    let len = |name: &str| std::fs::metadata(dir.path().join(name)).expect("a file").len();
    assert!(len("read/lines") + len("read/index") <= (1 << 20) + 4096);
}

/// Writers in any order use one folder; an object number that a crashed writer used for other
/// content causes no mix-up.
#[test]
fn a_volume_with_a_cache_on_disk_conforms() {
    let (dir, store) = (tempfile::tempdir().expect("tempdir"), store(2));
    drop(create(&store, conformance::LEN));
    let mut right = vec![0; 2 << 20];
    for round in 0..3 {
        let device = open(&store, keeping(dir.path(), true)).expect("no writer");
        if round == 0 {
            conforms(&device, round, 600);
        }
        let mut found = vec![0; 2 << 20];
        device.read_at(0, &mut found).expect("whole");
        assert!(round == 0 || found == right, "round {round}");
        right = found;
        device.push().expect("a good store");
        // These bytes are sent and read from the store, but are never in a commit.
        let lost = vec![round as u8 + 1; 512 << 10];
        device.write_at(0, &lost).expect("within");
        while device.status().in_flight > 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let mut again = vec![0; 512 << 10];
        device.read_at(0, &mut again).expect("whole");
        assert!(again == lost);
        device.abandon();
        drop(device);
        store.advance_ms(60_000);
    }
}

/// Several reads at once return the same bytes as single reads.
#[test]
fn reads_at_once_answer_as_single_reads() {
    let store = store(3);
    let device = create(&store, LEN);
    let (mut right, mut rng) = (vec![0; LEN as usize], Rng::new(3));
    rng.fill(&mut right);
    device.write_at(0, &right).expect("within");
    device.close().expect("a good store");
    drop(device);
    let reader = open(&store, Options { write: false, ..options() }).expect("a commit");
    let places: Vec<(u64, usize)> = (0..40)
        .map(|_| {
            let grain = if rng.chance(1, 4) { 100 } else { 4096 };
            let len = grain * (1 + rng.below(9));
            (rng.below((LEN - len) / grain) * grain, len as usize)
        })
        .collect();
    let mut bufs: Vec<Vec<u8>> = places.iter().map(|(_, len)| vec![0; *len]).collect();
    let reads = places.iter().zip(&mut bufs);
    let mut reads: Vec<Read<'_>> =
        reads.map(|((offset, _), buf)| Read { offset: *offset, buf }).collect();
    reader.read_many(&mut reads).expect("within");
    for ((offset, len), buf) in places.iter().zip(&bufs) {
        assert!(*buf == right[*offset as usize..*offset as usize + len], "{len} at {offset}");
    }
    let (mut one, mut two) = ([0; 4096], [0; 4096]);
    let mut past = [Read { offset: 0, buf: &mut one }, Read { offset: LEN, buf: &mut two }];
    reader.read_many(&mut past).expect_err("past the end");
}
