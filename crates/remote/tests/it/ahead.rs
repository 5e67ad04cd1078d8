//! Readers of a store that is far away, in simulated time: each request takes the same time, and
//! nothing else takes any.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use buttress_base::{Rng, clock, seeded, thread};
use buttress_block::{Device, Read};
use buttress_remote::store::simulated::SimStore;
use buttress_remote::store::watched::{Request, Watched};
use buttress_remote::store::{Store, StoreError};
use buttress_remote::{Options, Site};

use crate::{options, store};

const LATENCY: Duration = Duration::from_millis(30);
const LEN: u64 = 72 << 20;
/// The part of the device with data, and the length of one read.
const DATA: u64 = 64 << 20;
const READ: u64 = 128 << 10;

/// A store where each request takes [`LATENCY`].
#[derive(Debug)]
struct Far {
    inner: Arc<SimStore>,
    /// Requests for parts of objects: the number of all, the number under way, and the most that
    /// were under way at once.
    parts: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
    bytes: AtomicUsize,
    /// Requests for parts of the map.
    maps: AtomicUsize,
    /// Whether the store answers no more.
    is_away: AtomicBool,
}

impl Far {
    fn new(inner: &Arc<SimStore>) -> Arc<Self> {
        let (parts, now, most, bytes, maps, is_away) = Default::default();
        Arc::new(Self { inner: inner.clone(), parts, now, most, bytes, maps, is_away })
    }

    fn parts(&self) -> usize {
        self.parts.load(Ordering::SeqCst)
    }
}

impl Watched for Far {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn look(&self, request: Request<'_>) -> Result<(), StoreError> {
        let wants = if let Request::Parts(wants) = request { wants } else { &[] };
        let bytes: u64 = wants.iter().map(|(_, range)| range.end - range.start).sum();
        self.bytes.fetch_add(bytes as usize, Ordering::SeqCst);
        self.parts.fetch_add(wants.len(), Ordering::SeqCst);
        let maps = wants.iter().filter(|(name, _)| name.contains("/map/")).count();
        self.maps.fetch_add(maps, Ordering::SeqCst);
        let now = self.now.fetch_add(wants.len(), Ordering::SeqCst) + wants.len();
        self.most.fetch_max(now, Ordering::SeqCst);
        thread::sleep(LATENCY);
        self.now.fetch_sub(wants.len(), Ordering::SeqCst);
        match self.is_away.load(Ordering::SeqCst) {
            true => Err(StoreError::Failed("no answer".to_owned())),
            false => Ok(()),
        }
    }
}

fn large(memory: u64) -> Options {
    Options { object_len: 4 << 20, memory, ..options() }
}

/// The byte that fills a sector.
fn byte(sector: u64) -> u8 {
    (sector % 251) as u8
}

/// A volume with [`DATA`] bytes, written one after the other.
fn filled() -> Arc<SimStore> {
    filled_from(0, LEN)
}

/// A volume of `len` bytes with [`DATA`] bytes from `start` on.
fn filled_from(start: u64, len: u64) -> Arc<SimStore> {
    let store = store(1);
    let device = Site::in_store(store.clone(), "v", large(64 << 20)).create(len).expect("a store");
    for sector in start / 4096..(start + DATA) / 4096 {
        device.write_at(sector * 4096, &[byte(sector); 4096]).expect("within");
    }
    device.checkpoint().expect("a store");
    device.close().expect("a store");
    store
}

/// Runs `work` with a reader of the store, in simulated time. Returns the time that `work` took,
/// and the store with the counts of its requests. Neither includes the opening.
fn far(
    store: &Arc<SimStore>,
    memory: u64,
    work: impl Fn(&dyn Device) + Send + 'static,
) -> (Duration, Arc<Far>) {
    let store = Far::new(store);
    let site = Site::in_store(store.clone(), "v", Options { write: false, ..large(memory) });
    let far = store.clone();
    let options = seeded::Options { leaps: false, ..seeded::Options::default() };
    let run = seeded::run(1, options, move || {
        let device = site.open().expect("a volume");
        for count in [&far.parts, &far.most, &far.bytes, &far.maps] {
            count.store(0, Ordering::SeqCst);
        }
        let begun = clock::now();
        work(&device);
        let taken = clock::since(begun);
        device.close().expect("a store");
        taken
    });
    (run.expect("it goes on").0, store)
}

fn read(device: &dyn Device, at: u64, len: u64) {
    let mut found = vec![0; len as usize];
    device.read_at(at, &mut found).expect("a store");
    for (sector, content) in (at / 4096..).zip(found.chunks(4096)) {
        assert!(content.iter().all(|found| *found == byte(sector)), "sector {sector}");
    }
}

/// A sequential reader waits for the store a few times in all, although each of its reads needs
/// another part. No part is asked for twice, and requests and memory are bounded.
#[test]
fn a_sequential_reader_is_not_slowed_by_latency() {
    let store = filled();
    let (taken, seen) = far(&store, 256 << 20, |device| {
        (0..DATA / READ).for_each(|number| read(device, number * READ, READ));
    });
    let waits = taken.as_millis() / LATENCY.as_millis();
    assert!(waits <= 24, "{waits} waits for {} reads", DATA / READ);
    let (parts, most) = (seen.parts(), seen.most.load(Ordering::SeqCst));
    assert!(parts <= 100, "{parts} requests");
    assert!(most <= 9, "{most} requests at once");
    let bytes = seen.bytes.load(Ordering::SeqCst) as u64;
    assert!(bytes <= DATA + DATA / 500, "{bytes} bytes: something was read twice");
    // With little memory the reader still reads on, with one request ahead.
    let (taken, seen) = far(&store, 16 << 20, |device| {
        (0..DATA / READ).for_each(|number| read(device, number * READ, READ));
    });
    let waits = taken.as_millis() / LATENCY.as_millis();
    assert!(waits <= 150, "{waits} waits for {} reads", DATA / READ);
    assert!(seen.most.load(Ordering::SeqCst) <= 2);
}

/// A reader that works on the data of each read waits for the store only at its start. The rest of
/// the data comes while the reader works.
#[test]
fn lines_arrive_while_a_reader_works() {
    const WORK: Duration = Duration::from_millis(4);
    let store = filled();
    let (taken, _) = far(&store, 256 << 20, |device| {
        for number in 0..DATA / READ {
            read(device, number * READ, READ);
            thread::sleep(WORK);
        }
    });
    let waits = (taken - WORK * (DATA / READ) as u32).as_millis() / LATENCY.as_millis();
    assert!(waits <= 6, "{waits} waits beside the work");
}

/// A random reader causes exactly its own requests.
#[test]
fn a_random_reader_has_nothing_read_ahead() {
    let store = filled();
    let (_, seen) = far(&store, 256 << 20, |device| {
        let mut rng = Rng::new(7);
        // No line has two of these sectors.
        let mut lines: Vec<u64> = (0..DATA / 65536).collect();
        for index in 0..200 {
            let other = index + rng.below((lines.len() - index) as u64) as usize;
            lines.swap(index, other);
            read(device, lines[index] * 65536 + rng.below(16) * 4096, 4096);
        }
    });
    assert_eq!(seen.parts(), 201, "with the page of the map");
}

/// Several threads that want one part cause one request for it.
#[test]
fn readers_of_one_part_share_a_request() {
    let store = filled();
    let (taken, seen) = far(&store, 256 << 20, |device| {
        // This read loads the page of the map.
        read(device, 60 << 20, 4096);
        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| read(device, 5 << 20, 4096));
            }
        });
        let mut bufs = vec![vec![0; 4096]; 64];
        let mut reads: Vec<Read<'_>> = (0_u64..)
            .zip(&mut bufs)
            .map(|(number, buf)| Read { offset: number * (1 << 20) + 8192, buf })
            .collect();
        device.read_many(&mut reads).expect("a store");
    });
    // Two of the 64 lines are in the cache already.
    assert_eq!(seen.parts(), 2 + 1 + 62);
    assert_eq!(taken.as_millis() / LATENCY.as_millis(), 4);
}

/// Threads that need one page of the map cause one request for it.
#[test]
fn readers_of_one_page_of_the_map_share_a_request() {
    let store = filled();
    let (taken, seen) = far(&store, 256 << 20, |device| {
        thread::scope(|scope| {
            for number in 0..6 {
                scope.spawn(move || read(device, number * (5 << 20), 4096));
            }
        });
    });
    assert_eq!((seen.parts(), seen.maps.load(Ordering::SeqCst)), (1 + 6, 1));
    assert_eq!(taken.as_millis() / LATENCY.as_millis(), 2);
}

/// The page of the map that a sequential reader needs next is read before its data is, once.
#[test]
fn pages_of_the_map_are_read_ahead() {
    let start = 40 << 20;
    let store = Far::new(&filled_from(start, 128 << 20));
    let options = Options { write: false, ..large(256 << 20) };
    let site = Site::in_store(store.clone(), "v", options);
    let seen = store.clone();
    let work = move || {
        let device = site.open().expect("a volume");
        store.maps.store(0, Ordering::SeqCst);
        let mut second = None;
        for number in 0..DATA / READ {
            read(&device, start + number * READ, READ);
            if store.maps.load(Ordering::SeqCst) > 1 {
                second.get_or_insert(start + number * READ);
            }
        }
        device.close().expect("a store");
        second
    };
    let options = seeded::Options { leaps: false, ..seeded::Options::default() };
    let second = seeded::run(1, options, work).expect("it goes on").0.expect("a second page");
    // The window ahead of the reader has 16 MiB, and a page 64 MiB.
    assert!(second < (64 - 20) << 20, "{} MiB", second >> 20);
    assert_eq!(seen.maps.load(Ordering::SeqCst), 2);
    assert!(seen.most.load(Ordering::SeqCst) <= 9);
}

/// What a caller says is read in advance, and each part once. A caller that says too much is heard
/// in part.
#[test]
fn announced_lines_are_read_ahead() {
    let store = filled();
    let said = [3 << 20..7 << 20, 41 << 20..43 << 20];
    let ranges = said.clone();
    let (taken, seen) = far(&store, 256 << 20, move |device| {
        assert!(device.ahead_bytes() >= 8 << 20);
        device.expect(&ranges);
        thread::sleep(LATENCY * 2);
        for range in &ranges {
            let len = range.end - range.start;
            read(device, range.start, len);
        }
    });
    // One wait for the page of the map, and one for the data.
    assert_eq!(taken.as_millis() / LATENCY.as_millis(), 2);
    assert!(seen.parts() <= 1 + 8, "{}", seen.parts());
    assert!(seen.most.load(Ordering::SeqCst) <= 8);
    let (_, seen) = far(&store, 256 << 20, |device| {
        device.expect(&[0..DATA, 0..DATA]);
        thread::sleep(LATENCY * 40);
    });
    let bytes = seen.bytes.load(Ordering::SeqCst) as u64;
    assert!(bytes <= (16 << 20) + (1 << 20), "{bytes}");
}

/// While the store is away, the close of a reader does not wait until requests ahead of the reader
/// give up by themselves: no thread needs their answers.
#[test]
fn a_close_does_not_wait_for_reads_ahead() {
    let store = Far::new(&filled());
    let timeout = Duration::from_secs(600);
    let options = Options { write: false, timeout, ..large(64 << 20) };
    let site = Site::in_store(store.clone(), "v", options);
    let options = seeded::Options { leaps: false, ..seeded::Options::default() };
    let run = seeded::run(1, options, move || {
        let device = site.open().expect("a volume");
        // Reads until a request ahead is under way, which then gets no answer.
        let is_under_way = (0..64).any(|number| {
            read(&device, number * READ, READ);
            thread::sleep(LATENCY / 10);
            store.now.load(Ordering::SeqCst) > 0
        });
        assert!(is_under_way);
        store.is_away.store(true, Ordering::SeqCst);
        thread::sleep(LATENCY);
        let begun = clock::now();
        device.close().expect("there is nothing to write");
        clock::since(begun)
    });
    let taken = run.expect("it goes on").0;
    assert!(taken < Duration::from_secs(3), "{taken:?}");
}
