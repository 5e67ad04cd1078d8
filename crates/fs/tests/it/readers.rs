//! Many readers of one file, in orders that a seed decides: by chance, and on simulated processors,
//! each reader at its own pace.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use buttress_base::seeded::{self, Options};
use buttress_base::{Rng, thread};
use buttress_block::{Device, Error, MemoryDevice};
use buttress_fs::{Filesystem, MountOptions};
use buttress_sim::processors::{Cost, Processors};
use buttress_sim::{Slow, Slowness};

use crate::devices::{Hook, Hooked};
use crate::volume::{copy, file_with, memory, mount, mount_with, pattern};

const LEN: usize = 8 << 20;
const PIECE: usize = 32 << 10;

/// The length of each request. Requests of the size of a node are not recorded.
#[derive(Debug, Default)]
struct Requests(Mutex<Vec<usize>>);

impl Hook for Requests {
    fn read(&self, below: &dyn Device, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        if buf.len() != 16384 {
            self.0.lock().expect("a list").push(buf.len());
        }
        below.read_at(offset, buf)
    }
}

/// The readers of a file, and their reads.
#[derive(Clone, Copy)]
struct Reading {
    readers: u64,
    /// Bytes of a read.
    piece: usize,
    content: fn() -> Vec<u8>,
}

fn plain() -> Vec<u8> {
    pattern(9, LEN)
}

/// Data that compression makes half as long.
fn digits() -> Vec<u8> {
    pattern(9, LEN).iter().map(|byte| b"0123456789abcdef"[usize::from(byte % 16)]).collect()
}

/// Reads a file from its beginning to its end, with threads that wait for up to `pause` after each
/// read. Returns the lengths of the requests.
fn read_cold(device: MemoryDevice, how: Reading, pause: Duration, seed: u64) -> Vec<usize> {
    let Reading { readers, piece, content } = how;
    let slowness = Slowness {
        mib_s: Some(500.0),
        latency: Duration::from_micros(200),
        depth: 32,
        forgets_data: false,
    };
    let slow = Arc::new(Slow::new(device, slowness));
    slow.begin();
    let watched = Hooked::new(&(slow as Arc<dyn Device>), Requests::default());
    let options = MountOptions::parse("ro").expect("options");
    let fs = Filesystem::open(vec![watched.clone()], options).expect("a mount");
    let file = fs.resolve("large").expect("a file");
    watched.hook.0.lock().expect("a list").clear();
    let readers: Vec<_> = (0..readers)
        .map(|reader| {
            let (file, mut rng) = (file.clone(), Rng::new(seed * 100 + reader));
            let work = move || {
                let (mut buf, expected) = (vec![0; piece], content());
                for offset in (0..LEN).step_by(piece) {
                    assert_eq!(file.read_at(offset as u64, &mut buf).expect("a read"), piece);
                    assert!(buf == expected[offset..offset + piece], "at {offset}");
                    if !pause.is_zero() {
                        thread::sleep(pause * rng.below(1000) as u32 / 1000);
                    }
                }
            };
            thread::Builder::new().spawn(work).expect("a thread")
        })
        .collect();
    readers.into_iter().for_each(|reader| reader.join().expect("a reader"));
    let requests = watched.hook.0.lock().expect("a list").clone();
    drop(file);
    fs.close().expect("a close");
    requests
}

/// As [`read_cold`], on a copy of a device. A seed or simulated processors decide the order of the
/// threads.
fn read_in_order(
    device: &Arc<dyn Device>,
    how: Reading,
    pause: Duration,
    (seed, processors): (u64, Option<Processors>),
) -> Vec<usize> {
    let copy = copy(&**device);
    let work = move || read_cold(copy, how, pause, seed);
    let options = Options {
        processors: processors.map(Processors::machine),
        steps_max: u64::MAX,
        ..Options::default()
    };
    seeded::run(seed, options, work).unwrap_or_else(|stuck| panic!("{stuck}")).0
}

/// R1: 2 to 64 threads read a file in any order and at any distance. Requests are at least nine
/// tenths as long as the requests of one thread, and each block is read once.
#[test]
fn readers_in_any_order_make_long_requests() {
    let device = memory(256);
    let fs = mount(&device);
    file_with(&fs.root(), "large", &pattern(9, LEN));
    fs.close().expect("a close");
    let machine = Some(Processors { count: 2, cost: Cost::Step(Duration::from_nanos(500)) });
    let pauses = [(None, 0), (machine, 40), (machine, 400)];
    for (seed, (processors, micros)) in (1..).zip(pauses) {
        let read = |readers| {
            let how = Reading { readers, piece: PIECE, content: plain };
            let pause = Duration::from_micros(micros);
            let requests = read_in_order(&device, how, pause, (seed, processors));
            assert_eq!(requests.iter().sum::<usize>(), LEN, "each block once, {readers} readers");
            requests
        };
        let alone = read(1).len();
        for readers in [2, 4, 16, 64] {
            let requests = read(readers);
            let is_as_long = requests.len() * 9 <= alone * 10;
            assert!(is_as_long, "{readers} readers, seed {seed}: {requests:?}, one: {alone}");
        }
    }
}

/// A compressed extent is read and unpacked once for all concurrent readers. The readers may read
/// the whole extent or parts of it.
#[test]
fn whole_compressed_extents_are_read_once() {
    let device = memory(256);
    let fs = mount_with(&device, "compress-force=zstd");
    file_with(&fs.root(), "large", &digits());
    fs.close().expect("a close");
    let machine = Some(Processors { count: 4, cost: Cost::Step(Duration::from_nanos(500)) });
    for piece in [PIECE, 128 << 10, 1 << 20] {
        let read = |readers| {
            let how = Reading { readers, piece, content: digits };
            read_in_order(&device, how, Duration::ZERO, (1, machine)).iter().sum::<usize>()
        };
        let alone = read(1);
        assert!(alone < LEN * 2 / 3, "{alone} bytes are not compressed");
        for readers in [2, 4] {
            assert_eq!(read(readers), alone, "{readers} readers of {piece} bytes");
        }
    }
}

/// Long calls read straight into their callers' buffers. If several readers are at the same place,
/// each block is read once, by one of them.
#[test]
fn long_calls_at_one_place_are_read_once() {
    let device = memory(256);
    let fs = mount(&device);
    file_with(&fs.root(), "large", &pattern(9, LEN));
    fs.close().expect("a close");
    let machine = Some(Processors { count: 4, cost: Cost::Step(Duration::from_nanos(500)) });
    for (seed, piece) in (1..).zip([512 << 10, 1 << 20, 2 << 20, LEN]) {
        for readers in [1, 2, 4] {
            let how = Reading { readers, piece, content: plain };
            let requests = read_in_order(&device, how, Duration::ZERO, (seed, machine));
            let sum = requests.iter().sum::<usize>();
            assert_eq!(sum, LEN, "{readers} readers of {piece} bytes: {requests:?}");
        }
    }
}
