//! Tests of the read cache on a local disk: it is used after restarts, and its content is never
//! wrong.

use std::path::Path;
use std::sync::{Arc, Mutex};

use buttress_base::Rng;
use buttress_block::{Device, Read};
use buttress_remote::store::simulated::SimStore;
use buttress_remote::store::watched::{Request, Watched};
use buttress_remote::store::{Store, StoreError};
use buttress_remote::{Durability, Options, Secret, Site};

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
fn read_lines_stay_over_restarts() {
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
        // These bytes are sent to the store and read from it, but are never in a commit.
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

/// A store that notes the names of the objects of which something was read.
#[derive(Debug)]
struct Noting {
    inner: Arc<SimStore>,
    names: Mutex<Vec<String>>,
}

impl Noting {
    /// How many reads there were of objects with data or parts of the map.
    fn count(&self) -> usize {
        let names = self.names.lock().expect("no panic");
        names.iter().filter(|name| name.contains("/map/") || name.contains("/data/")).count()
    }
}

impl Watched for Noting {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn look(&self, request: Request<'_>) -> Result<(), StoreError> {
        let mut names = self.names.lock().expect("no panic");
        match request {
            Request::Get(name) => names.push(name.to_owned()),
            Request::Parts(wants) => names.extend(wants.iter().map(|(name, _)| name.clone())),
            _ => {}
        }
        Ok(())
    }
}

/// After a volume was used with a folder, an opening with the folder reads no part of the map from
/// the store, and no extents: neither those of a checkpoint nor those of later objects. A read of
/// data that the folder has reads no part of the map from the store, either. If the folder is
/// damaged, the store has everything.
#[test]
fn a_warm_start_reads_no_map() {
    const LONG: u64 = 400 << 20;
    for secret in [None, Some(Secret::new(b"secret".to_vec()).expect("some bytes"))] {
        let (dir, store) = (tempfile::tempdir().expect("tempdir"), store(4));
        let options = |write| Options { memory: 16 << 20, ..keeping(dir.path(), write) };
        let site = |write| {
            let inner = store.clone();
            let store = Arc::new(Noting { inner, names: Mutex::default() });
            let site = Site::in_store(store.clone(), "v", options(write));
            let site = match &secret {
                Some(secret) => site.encrypted(secret.clone()),
                None => site,
            };
            (site, store)
        };
        let mut rng = Rng::new(4);
        let mut content = vec![0; 60 << 10];
        let device = site(true).0.create(LONG).expect("a store");
        for round in 0..200 {
            rng.fill(&mut content);
            device.write_at(rng.below(LONG / 4096 - 15) * 4096, &content).expect("within");
            if round == 150 {
                device.checkpoint().expect("a store");
            }
        }
        device.push().expect("a store");
        device.close().expect("a store");
        drop(device);
        // The disk has all objects that this writer sent, except the superblock, which is no node
        // in this test.
        let (place, seen) = site(true);
        let device = place.open().expect("a volume");
        assert!(seen.count() <= 1, "{:?}", seen.names.lock().expect("no panic"));
        let read = |device: &dyn Device| {
            let mut all = vec![0; LONG as usize];
            device.read_at(0, &mut all).expect("whole");
            crc_fast::crc32_iscsi(&all)
        };
        let right = read(&device);
        device.close().expect("a store");
        drop(device);
        for write in [false, true] {
            let (place, seen) = site(write);
            let device = place.open().expect("a volume");
            assert_eq!(read(&device), right);
            assert_eq!(seen.count(), 0, "{write}");
            device.close().expect("a store");
        }
        let path = dir.path().join("read/lines");
        let mut bytes = std::fs::read(&path).expect("a file");
        bytes.iter_mut().step_by(1001).for_each(|byte| *byte ^= 1);
        std::fs::write(&path, bytes).expect("a file");
        let (place, seen) = site(false);
        assert_eq!(read(&place.open().expect("a volume")), right);
        assert!(seen.count() > 10, "what was changed comes from the store");
    }
}
