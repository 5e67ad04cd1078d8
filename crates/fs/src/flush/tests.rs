//! What a sync or a snapshot finds that others are writing, in part or not yet at all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use buttress_block::{Device, Error, MemoryDevice};

use super::*;
use crate::{Filesystem, Inode, InodeFlags, MakeOptions, MountOptions, SetAttr};

/// How long something is given to happen that must not.
const PATIENCE: Duration = Duration::from_millis(150);

/// A device that lets a write through when the door of its first byte is open.
#[derive(Debug)]
struct Doors {
    below: MemoryDevice,
    doors: Vec<(u8, Door)>,
}

#[derive(Debug, Default)]
struct Door {
    knocked: AtomicBool,
    open: AtomicBool,
}

impl Doors {
    fn door(&self, byte: u8) -> &Door {
        &self.doors.iter().find(|(which, _)| *which == byte).expect("a door").1
    }
}

impl Door {
    fn wait_for_knock(&self) {
        while !self.knocked.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}

impl Device for Doors {
    fn name(&self) -> String {
        "doors".to_owned()
    }

    fn len(&self) -> u64 {
        self.below.len()
    }

    fn writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        for (_, door) in self.doors.iter().filter(|(byte, _)| buf.iter().all(|b| b == byte)) {
            door.knocked.store(true, Ordering::SeqCst);
            while !door.open.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        self.below.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), Error> {
        self.below.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.below.discard(offset, len)
    }
}

/// A volume of so many MiB behind doors for writes that are all of one byte.
fn volume(mib: u64, doors: &[u8], options: &str) -> (Arc<Doors>, Filesystem) {
    let below = MemoryDevice::new(mib << 20);
    Filesystem::make(&below, &MakeOptions::default()).expect("an empty volume");
    let doors = doors.iter().map(|byte| (*byte, Door::default())).collect();
    let device = Arc::new(Doors { below, doors });
    let options = MountOptions::parse(options).expect("options");
    let shown: Arc<dyn Device> = Arc::clone(&device) as _;
    (device, Filesystem::open(vec![shown], options).expect("a mount"))
}

fn file(fs: &Filesystem, name: &str) -> Inode {
    fs.root().create(name.as_bytes(), 0o644, 0, 0, 0).expect("a file")
}

/// While one thread writes a file, a batch finds it busy, puts it back, and is only then done with the other of its
/// files. Whoever began in between, and found nothing listed, waits for both; `seen` looks at the file behind that.
fn while_a_batch_is_away(act: impl Fn(&Filesystem) + Sync, seen: impl Fn(&Filesystem)) {
    const OLD: u8 = 0xA0;
    const BUSY: u8 = 0xB0;
    const OTHER: u8 = 0xC0;
    let (device, fs) = volume(128, &[BUSY, OTHER], "rw");
    let busy = file(&fs, "busy");
    let in_place = SetAttr { flags: Some(InodeFlags::NODATACOW), ..SetAttr::default() };
    busy.set_attr(&in_place).expect("flags");
    busy.write_at(0, &[OLD; 64 << 10]).expect("a write");
    let other = file(&fs, "other");
    fs.sync().expect("durable");
    busy.write_at(0, &[BUSY; 64 << 10]).expect("a write");
    other.write_at(0, &[OTHER; 64 << 10]).expect("a write");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| busy.flush_data().expect("it arrives"));
        device.door(BUSY).wait_for_knock();
        scope.spawn(|| fs.shared().write_free_batch(u64::MAX));
        device.door(OTHER).wait_for_knock();
        let acts = scope.spawn(|| {
            act(&fs);
            is_done.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(PATIENCE);
        device.door(OTHER).open();
        std::thread::sleep(PATIENCE);
        let was_done = is_done.load(Ordering::SeqCst);
        device.door(BUSY).open();
        acts.join().expect("no panic");
        assert!(!was_done, "what was written before had not arrived");
    });
    seen(&fs);
    drop((busy, other));
    fs.close().expect("closed");
}

/// G2: what a sync says is durable has arrived.
#[test]
fn a_sync_waits_for_what_a_batch_put_back() {
    while_a_batch_is_away(
        |fs| fs.sync().expect("durable"),
        |fs| assert_eq!(fs.shared().files.dirty_bytes(), 0),
    );
}

/// The same for a snapshot, whose content would change under who reads it: the file is written in place.
#[test]
fn a_snapshot_waits_for_what_a_batch_put_back() {
    while_a_batch_is_away(
        |fs| {
            let source = fs.root().id().tree;
            drop(fs.root().snapshot(b"snapshot", source, true).expect("a snapshot"));
        },
        |fs| {
            let mut found = vec![0; 64 << 10];
            let file = fs.resolve("snapshot/busy").expect("it is there");
            file.read_at(0, &mut found).expect("a read");
            assert!(found.iter().all(|byte| *byte == 0xB0), "as it was when it was cut");
        },
    );
}

/// G2: a file of which one round writes a part only is written whole.
#[test]
fn a_sync_waits_for_more_than_a_round() {
    const FIRST: u8 = 0xB0;
    const SECOND: u8 = 0xC0;
    const ROUND: u64 = 128 << 20;
    let (device, fs) = volume(1024, &[FIRST, SECOND], "rw,dirty=1G");
    let large = file(&fs, "large");
    large.write_at(0, &vec![FIRST; ROUND as usize]).expect("a write");
    large.write_at(ROUND, &[SECOND; 1 << 20]).expect("a write");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let batch = scope.spawn(|| fs.shared().write_free_batch(u64::MAX));
        device.door(FIRST).wait_for_knock();
        let syncs = scope.spawn(|| {
            fs.sync().expect("durable");
            is_done.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(PATIENCE);
        device.door(FIRST).open();
        assert_eq!(batch.join().expect("no panic"), ROUND);
        std::thread::sleep(PATIENCE);
        let was_done = is_done.load(Ordering::SeqCst);
        device.door(SECOND).open();
        syncs.join().expect("no panic");
        assert!(!was_done, "what was written before had not arrived");
    });
    drop(large);
    fs.close().expect("closed");
}
