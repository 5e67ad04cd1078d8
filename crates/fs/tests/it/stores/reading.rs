//! How often readers of files wait for a store that is far away, in simulated time: each request
//! takes the same time, and nothing else takes any.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use buttress_base::{clock, seeded, thread};
use buttress_block::Device;
use buttress_fs::{Filesystem, MakeOptions, MountOptions, NewInode};
use buttress_remote::store::simulated::{SimStore, Weather};
use buttress_remote::store::watched::{Request, Watched};
use buttress_remote::store::{Store, StoreError};
use buttress_remote::{Options, Site};

use crate::checker::check;
use crate::volume::pattern;

const LATENCY: Duration = Duration::from_millis(30);
const MIB: u64 = 1 << 20;
const LEN: u64 = 512 * MIB;

/// A store where each request for parts takes [`LATENCY`].
#[derive(Debug)]
struct Far {
    inner: Arc<SimStore>,
    now: AtomicU64,
    /// The most parts that were asked for at once.
    most: AtomicU64,
    bytes: AtomicU64,
}

impl Watched for Far {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn look(&self, request: Request<'_>) -> Result<(), StoreError> {
        let Request::Parts(wants) = request else { return Ok(()) };
        let count = wants.len() as u64;
        let bytes: u64 = wants.iter().map(|(_, range)| range.end - range.start).sum();
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        let now = self.now.fetch_add(count, Ordering::SeqCst) + count;
        self.most.fetch_max(now, Ordering::SeqCst);
        thread::sleep(LATENCY);
        self.now.fetch_sub(count, Ordering::SeqCst);
        Ok(())
    }
}

fn site(store: Arc<dyn Store>, write: bool) -> Site {
    let options = Options { write, object_len: 4 * MIB, memory: 256 << 20, ..Options::default() };
    Site::in_store(store, "v", options)
}

/// A volume with the files `whole` and `pieces`. Each MiB of `pieces` is an extent of its own, and
/// lies apart from the others. The seed decides when data is written back, and so where it lies.
fn filled() -> Arc<SimStore> {
    seeded::run(1, seeded::Options { leaps: false, ..seeded::Options::default() }, fill)
        .expect("it goes on")
        .0
}

fn fill() -> Arc<SimStore> {
    let store = Arc::new(SimStore::new(1, Weather::default()));
    let device = Arc::new(site(store.clone(), true).create(LEN).expect("an honest store"));
    let make = MakeOptions { seed: Some(1), ..MakeOptions::default() };
    Filesystem::make(&*device, &make).expect("a volume");
    let options = MountOptions::parse("rw,noatime,commit=3000").expect("options");
    let fs = Filesystem::open(vec![device.clone()], options).expect("a mount");
    let create = |name: &[u8]| fs.root().create(name, NewInode::file(0o644)).expect("a file");
    let whole = create(b"whole");
    for at in 0..40 {
        whole.write_at(at * MIB, &pattern(at, MIB as usize)).expect("a write");
    }
    whole.sync().expect("a sync");
    let (pieces, between) = (create(b"pieces"), create(b"between"));
    for at in 0..24 {
        for file in [&pieces, &between] {
            file.write_at(at * MIB, &pattern(at, MIB as usize)).expect("a write");
            file.sync().expect("a sync");
        }
    }
    drop((whole, pieces, between));
    fs.close().expect("a close");
    check(&(device.clone() as Arc<dyn Device>));
    device.close().expect("a store");
    store
}

/// What the page cache has is read without a request, also if the device has it no longer.
#[test]
fn cached_files_are_not_asked_for_again() {
    let store = filled();
    let (now, most, bytes) = Default::default();
    let store = Arc::new(Far { inner: store, now, most, bytes });
    let work = move || {
        let options = Options { memory: 32 << 20, ..Options::default() };
        let place = Site::in_store(store.clone(), "v", options);
        let device = Arc::new(place.open().expect("a volume"));
        let options = MountOptions::parse("ro,page_cache=128M").expect("options");
        let fs = Filesystem::open(vec![device.clone()], options).expect("a mount");
        let file = fs.resolve("whole").expect("a file");
        let mut found = vec![0; 128 << 10];
        for pass in 0..2 {
            store.bytes.store(0, Ordering::SeqCst);
            for at in (0..40 * MIB).step_by(128 << 10) {
                file.read_at(at, &mut found).expect("a read");
                // What is read ahead has time to come.
                thread::sleep(LATENCY);
            }
            let read = store.bytes.load(Ordering::SeqCst);
            assert!(if pass == 0 { read >= 40 * MIB } else { read == 0 }, "pass {pass}: {read}");
        }
        drop(file);
        fs.close().expect("a close");
        device.close().expect("a store");
    };
    let options = seeded::Options { leaps: false, ..seeded::Options::default() };
    seeded::run(1, options, work).expect("it goes on");
}

/// Reads a file of `mib` MiB in order, by a reader that has nothing in its caches. Returns how
/// often it waited, and the store with the counts of its requests.
fn cold(store: &Arc<SimStore>, name: &'static str, mib: u64, piece: u64) -> (u128, Arc<Far>) {
    let (now, most, bytes) = Default::default();
    let far = Arc::new(Far { inner: store.clone(), now, most, bytes });
    let store = far.clone();
    let options = seeded::Options { leaps: false, ..seeded::Options::default() };
    let work = move || {
        let device = Arc::new(site(store.clone(), false).open().expect("a volume"));
        let options = MountOptions::parse("ro").expect("options");
        let fs = Filesystem::open(vec![device.clone()], options).expect("a mount");
        let file = fs.resolve(name).expect("a file");
        store.most.store(0, Ordering::SeqCst);
        store.bytes.store(0, Ordering::SeqCst);
        let begun = clock::now();
        let mut found = vec![0; piece as usize];
        for at in (0..mib * MIB).step_by(piece as usize) {
            file.read_at(at, &mut found).expect("a read");
            let (whole, from) = (pattern(at / MIB, MIB as usize), (at % MIB) as usize);
            assert!(found == whole[from..from + found.len()], "{name} at {at}");
        }
        let taken = clock::since(begun);
        drop(file);
        fs.close().expect("a close");
        device.close().expect("a store");
        taken
    };
    let (taken, _) = seeded::run(1, options, work).expect("it goes on");
    (taken.as_millis() / LATENCY.as_millis(), far)
}

/// The most requests at once: eight for reads ahead in the device, the reader's own, and those of
/// two threads that read ahead in the engine.
const MOST: u64 = 11;

/// Eight requests at once bring a MiB each. So a reader of 40 MiB needs five rounds at least. At
/// its start it waits for metadata besides. Nothing is read twice.
#[test]
fn a_reader_from_the_front_waits_seldom() {
    let store = filled();
    for (piece, most) in [(MIB, 8), (128 << 10, 9)] {
        let (waits, far) = cold(&store, "whole", 40, piece);
        assert!(waits <= most, "{waits} waits by {piece} bytes");
        assert!(far.most.load(Ordering::SeqCst) <= MOST);
        assert!(far.bytes.load(Ordering::SeqCst) <= 50 * MIB);
    }
}

/// Reads ahead go over gaps in the addresses of a file.
#[test]
fn gaps_in_addresses_stop_no_reads_ahead() {
    let store = filled();
    for (piece, most) in [(MIB, 5), (128 << 10, 7)] {
        let (waits, far) = cold(&store, "pieces", 24, piece);
        assert!(waits <= most, "{waits} waits by {piece} bytes");
        assert!(far.most.load(Ordering::SeqCst) <= MOST);
    }
}
