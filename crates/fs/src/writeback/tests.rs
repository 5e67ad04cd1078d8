//! Tests of a sync or a snapshot while other threads are about to write data back, or have written
//! a part.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use buttress_block::{Device, MemoryDevice};

use super::*;
use crate::gated_device::GatedDevice;
use crate::{Filesystem, Inode, InodeFlags, MakeOptions, MountOptions, NewInode, SetAttr};

/// How long a test waits to see that a forbidden event does not happen.
const PAUSE: Duration = Duration::from_millis(150);

/// A volume of `mib` MiB on a device that holds back writes of one repeated byte value, for the
/// values in `gates`.
fn volume(mib: u64, gates: &[u8], options: &str) -> (Arc<GatedDevice<MemoryDevice>>, Filesystem) {
    volume_with(mib, gates, MountOptions::parse(options).expect("options"))
}

fn volume_with(
    mib: u64,
    gates: &[u8],
    options: MountOptions,
) -> (Arc<GatedDevice<MemoryDevice>>, Filesystem) {
    let below = MemoryDevice::new(mib << 20);
    Filesystem::make(&below, &MakeOptions::default()).expect("an empty volume");
    let device = GatedDevice::new(Arc::new(below), gates);
    let shown: Arc<dyn Device> = Arc::clone(&device) as _;
    (device, Filesystem::open(vec![shown], options).expect("a mount"))
}

fn file(fs: &Filesystem, name: &str) -> Inode {
    fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file")
}

/// One thread writes a file. A batch finds this file busy and puts it back, and is still writing
/// its other file. A thread that calls `act` meanwhile finds an empty list, and must wait for both
/// files. Afterwards `seen` checks the file.
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
        device.gate(BUSY).wait_until_reached();
        scope.spawn(|| fs.mount().writeback.write_free_batch(u64::MAX));
        device.gate(OTHER).wait_until_reached();
        let acts = scope.spawn(|| {
            act(&fs);
            is_done.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(PAUSE);
        device.gate(OTHER).open();
        std::thread::sleep(PAUSE);
        let was_done = is_done.load(Ordering::SeqCst);
        device.gate(BUSY).open();
        acts.join().expect("no panic");
        assert!(!was_done, "what was written before had not arrived");
    });
    seen(&fs);
    drop((busy, other));
    fs.close().expect("closed");
}

/// G2: after a sync, the data of the file is on the device.
#[test]
fn a_sync_waits_for_what_a_batch_put_back() {
    while_a_batch_is_away(
        |fs| fs.sync().expect("durable"),
        |fs| assert_eq!(fs.mount().files.counters().dirty_bytes(), 0),
    );
}

/// G2: a snapshot also waits for data that a batch put back. The file is written in place, so
/// otherwise the content of the snapshot would change later.
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

/// G2: a file with more data than one round is written completely.
#[test]
fn a_sync_waits_for_more_than_a_round() {
    const FIRST: u8 = 0xB0;
    const SECOND: u8 = 0xC0;
    const ROUND: u64 = 128 << 20;
    // Threads of the mount would write the file themselves.
    let options =
        MountOptions { background: false, dirty_bytes_max: 1 << 30, ..MountOptions::default() };
    let (device, fs) = volume_with(1024, &[FIRST, SECOND], options);
    let large = file(&fs, "large");
    large.write_at(0, &vec![FIRST; ROUND as usize]).expect("a write");
    large.write_at(ROUND, &[SECOND; 1 << 20]).expect("a write");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let batch = scope.spawn(|| fs.mount().writeback.write_free_batch(u64::MAX));
        device.gate(FIRST).wait_until_reached();
        let syncs = scope.spawn(|| {
            fs.sync().expect("durable");
            is_done.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(PAUSE);
        device.gate(FIRST).open();
        assert_eq!(batch.join().expect("no panic"), ROUND);
        std::thread::sleep(PAUSE);
        let was_done = is_done.load(Ordering::SeqCst);
        device.gate(SECOND).open();
        syncs.join().expect("no panic");
        assert!(!was_done, "what was written before had not arrived");
    });
    drop(large);
    fs.close().expect("closed");
}

/// The content of a snapshot's file, read through a new mount of the device.
fn bytes_in_snapshot(device: MemoryDevice, name: &str) -> Vec<u8> {
    let options = MountOptions::parse("ro").expect("options");
    let fs = Filesystem::open(vec![Arc::new(device)], options).expect("a mount");
    let file = fs.resolve(name).expect("it is there");
    let mut found = vec![0; file.attr().size as usize];
    file.read_at(0, &mut found).expect("a read");
    found
}

/// N16: the device holds back a write in place of buffered data. While the write is held back, the
/// file gets dirty again. The file gets dirty once more between the making of a snapshot and the
/// commit of the snapshot. The snapshot holds the data from before it was requested, and no byte of
/// the snapshot changes.
#[test]
fn buffered_data_reaches_a_snapshot_while_it_is_made() {
    const OLD: u8 = 0xA0;
    const ON_ITS_WAY: u8 = 0xB0;
    const AGAIN: u8 = 0xC0;
    const LATER: u8 = 0xD0;
    const LEN: usize = 64 << 10;
    for case in 0..6 {
        let (overwrites, by_batch) = (case % 2 == 0, case / 2 % 2 == 0);
        let options = if case < 3 { "rw,commit=300" } else { "rw,commit=300,nocow_check=always" };
        let (device, fs) = volume(128, &[ON_ITS_WAY], options);
        let file = file(&fs, "file");
        if overwrites {
            let flags = Some(InodeFlags::NODATACOW);
            file.set_attr(&SetAttr { flags, ..SetAttr::default() }).expect("flags");
            file.write_at(0, &[OLD; LEN]).expect("a write");
        } else {
            let allocate = crate::FallocateMode::Allocate { keep_size: false };
            file.fallocate(0, LEN as u64, allocate).expect("space");
        }
        fs.sync().expect("durable");
        let mut expected = vec![ON_ITS_WAY; LEN];
        file.write_at(0, &expected).expect("a write");
        let first = std::thread::scope(|scope| {
            scope.spawn(|| {
                if by_batch {
                    fs.mount().writeback.write_free_batch(u64::MAX);
                } else {
                    file.flush_data().expect("it arrives");
                }
            });
            device.gate(ON_ITS_WAY).wait_until_reached();
            file.write_at(LEN as u64 / 2, &[AGAIN; LEN]).expect("a write");
            expected.resize(LEN / 2 * 3, 0);
            expected[LEN / 2..].fill(AGAIN);
            device.flush_is_barred.store(true, Ordering::SeqCst);
            let snapshot = scope.spawn(|| {
                let source = fs.root().id().tree;
                drop(fs.root().snapshot(b"snapshot", source, true).expect("a snapshot"));
                bytes_in_snapshot(device.below.fork(), "snapshot/file")
            });
            // A snapshot that does not wait for the data on its way reaches the flush during this
            // sleep.
            std::thread::sleep(PAUSE);
            if device.flush.reached.load(Ordering::SeqCst) {
                device.flush.open();
                std::thread::sleep(PAUSE);
            }
            device.gate(ON_ITS_WAY).open();
            device.flush.wait_until_reached();
            file.write_at(0, &[LATER; LEN / 4]).expect("a write");
            file.flush_data().expect("it arrives");
            device.flush.open();
            snapshot.join().expect("no panic")
        });
        file.write_at(LEN as u64 / 4, &[LATER; LEN / 2]).expect("a write");
        file.flush_data().expect("it arrives");
        fs.sync().expect("durable");
        drop(file);
        fs.close().expect("closed");
        let last = bytes_in_snapshot(device.below.fork(), "snapshot/file");
        assert!(first == last, "case {case}: the snapshot has changed");
        assert!(last == expected, "case {case}: it is not what was written before");
        expected[..LEN / 4 * 3].fill(LATER);
        assert!(bytes_in_snapshot(device.below.fork(), "file") == expected, "case {case}");
    }
}

/// A writer waits for threads that write back. Without such threads it does not wait.
#[test]
fn a_writer_waits_only_where_threads_write_back() {
    const MIB: u64 = 1 << 20;
    for has_threads in [true, false] {
        let below = MemoryDevice::new(128 << 20);
        Filesystem::make(&below, &MakeOptions::default()).expect("an empty volume");
        let options = MountOptions { background: has_threads, ..MountOptions::default() };
        let fs = Filesystem::open(vec![Arc::new(below)], options).expect("a mount");
        let writeback = &fs.mount().writeback;
        // Note a slow write that lasts longer than a sample.
        std::thread::sleep(PAUSE);
        let written = Written { files: 1, bytes: 4096, device: PAUSE };
        writeback.throttle.note_written(&written, PAUSE, true);
        let delay = writeback.delay(MIB, 100 * MIB, None);
        assert_eq!(delay > Duration::ZERO, has_threads, "{delay:?}");
    }
}

/// G4: files that are written by their writers, synced or removed leave the list, though no thread
/// writes back and the volume is never synced.
#[test]
fn list_drops_clean_and_removed_files() {
    for kind in ["written", "synced", "removed"] {
        let below = MemoryDevice::new(128 << 20);
        Filesystem::make(&below, &MakeOptions::default()).expect("an empty volume");
        let options =
            MountOptions { background: false, dirty_bytes_max: 1 << 20, ..MountOptions::default() };
        let fs = Filesystem::open(vec![Arc::new(below)], options).expect("a mount");
        let writeback = &fs.mount().writeback;
        let most = writeback.listed_max();
        for number in 0..3 * most {
            let name = format!("file {number}");
            let file = file(&fs, &name);
            file.write_at(0, b"content").expect("a write");
            match kind {
                "synced" => file.flush_data().expect("it arrives"),
                "removed" => fs.root().unlink(name.as_bytes()).expect("a name"),
                _ => {}
            }
            assert!(writeback.list.len() <= most + 1, "{kind}, {number}");
        }
        fs.close().expect("closed");
    }
}
