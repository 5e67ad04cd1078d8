//! Tests of the local log. Acknowledged writes survive any crash, and a log that does not fit is
//! never applied.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_remote::store::simulated::{Change, SimStore, Weather};
use buttress_remote::{Durability, Error, Options, RemoteDevice, Site};

use crate::conformance::{self, conforms};
use crate::{open, options, store};

const LEN: u64 = 4 << 20;

/// Options with a local log. Writes are committed to the store only when a test makes a commit.
fn logging(dir: &Path) -> Options {
    let max_lag = Duration::from_secs(3600);
    Options { cache_dir: Some(dir.to_owned()), max_lag, ..options() }
}

fn reading() -> Options {
    Options { write: false, ..options() }
}

fn site(store: &Arc<SimStore>, options: Options) -> Site {
    Site::in_store(store.clone(), "v", options)
}

#[track_caller]
fn same(device: &dyn Device, model: &MemoryDevice, what: &str) {
    let (mut found, mut right) = (vec![0; LEN as usize], vec![0; LEN as usize]);
    device.read_at(0, &mut found).expect("whole");
    model.read_at(0, &mut right).expect("whole");
    assert!(found == right, "{what}: the content differs");
}

/// The remains of a crash: the changes of the store, the files of the cache, and for each flush the
/// length of the log and the content.
struct Crash {
    changes: Vec<Change>,
    identity: Vec<u8>,
    log: Vec<u8>,
    states: Vec<(usize, MemoryDevice)>,
    /// The content of the newest commit.
    committed: MemoryDevice,
}

fn log_file(dir: &Path) -> PathBuf {
    dir.join("log/0000000000000001")
}

/// Changes the device and a model in the same way.
fn change(device: &RemoteDevice, model: &MemoryDevice, rng: &mut Rng) {
    for _ in 0..3 {
        let at = rng.below(LEN / 4096 - 20) * 4096;
        let mut content = vec![0; 4096 * (1 + rng.below(12) as usize)];
        rng.fill(&mut content);
        device.write_at(at, &content).expect("within");
        model.write_at(at, &content).expect("within");
    }
    if rng.chance(1, 2) {
        let at = rng.below(LEN / 8192) * 4096;
        device.discard(at, 1 << 20).expect("within");
        model.discard(at, 1 << 20).expect("within");
    }
}

/// Writes, flushes and ends without closing. The store has only the first flushes, and the log has
/// all flushes.
fn crash(seed: u64) -> Crash {
    let (dir, store) = (tempfile::tempdir().expect("tempdir"), store(seed));
    let device = site(&store, logging(dir.path())).create(LEN).expect("an honest store");
    let (model, mut rng) = (MemoryDevice::new(LEN), Rng::new(seed));
    let mut states = Vec::new();
    let mut committed = model.fork();
    for round in 0..6 {
        change(&device, &model, &mut rng);
        device.flush().expect("a good disk");
        let len = std::fs::metadata(log_file(dir.path())).expect("a log").len() as usize;
        states.push((len, model.fork()));
        if round == 1 {
            device.push().expect("a good store");
            committed = model.fork();
        }
    }
    // These writes were not acknowledged, so they may be lost.
    change(&device, &model, &mut rng);
    device.abandon();
    drop(device);
    let read = |path: PathBuf| std::fs::read(path).expect("a file");
    let (identity, log) = (read(dir.path().join("identity")), read(log_file(dir.path())));
    Crash { changes: store.changes(), identity, log, states, committed }
}

impl Crash {
    /// A copy of the folder of the cache, with another log.
    fn folder(&self, log: &[u8]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir(dir.path().join("log")).expect("a folder");
        std::fs::write(dir.path().join("identity"), &self.identity).expect("a file");
        std::fs::write(log_file(dir.path()), log).expect("a file");
        dir
    }

    /// The store at a time when the writer's sign of life is old.
    fn store(&self) -> Arc<SimStore> {
        let store = Arc::new(SimStore::replay(&self.changes, 1));
        store.advance_ms(60_000);
        store
    }

    /// The ends of all records.
    fn ends(&self) -> Vec<usize> {
        let mut ends = vec![88];
        while let Some(raw) = self.log.get(ends[ends.len() - 1] + 16..).and_then(|r| r.get(..8)) {
            let len = u64::from_le_bytes(raw.try_into().expect("eight bytes"));
            ends.push(ends[ends.len() - 1] + len as usize);
        }
        ends
    }

    /// The content at the last flush that a log of `len` bytes has completely, or otherwise the
    /// content of the newest commit.
    fn state(&self, len: usize) -> &MemoryDevice {
        let whole = self.states.iter().rev().find(|(end, _)| *end <= len);
        // The newest commit has the first two flushes.
        whole.filter(|_| len >= self.states[1].0).map_or(&self.committed, |(_, state)| state)
    }
}

/// The log is truncated at the end of each record and within each record. The next opening finds
/// the content of the last whole flush, and the store has this content afterwards.
#[test]
fn a_log_that_was_cut_anywhere_is_replayed_to_its_last_whole_cut() {
    let crash = crash(1);
    let ends = crash.ends();
    assert!(ends.len() > 12, "several records a flush");
    let lens = ends.windows(2).flat_map(|pair| {
        let len = pair[1] - pair[0];
        [pair[0], pair[0] + 1, pair[0] + len / 2, pair[1] - 1]
    });
    for len in lens.chain([crash.log.len(), 0, 40]) {
        let (store, dir) = (crash.store(), crash.folder(&crash.log[..len.min(crash.log.len())]));
        let right = crash.state(len);
        let device = open(&store, logging(dir.path())).expect("the log fits");
        same(&device, right, &format!("a log of {len} bytes"));
        let reader = open(&store, reading()).expect("a commit");
        same(&reader, right, &format!("the store, by a log of {len} bytes"));
        device.close().expect("a good store");
        let again = open(&store, logging(dir.path())).expect("nothing is left to replay");
        same(&again, right, "the second opening");
    }
}

/// A changed bit is detected. Either the log ends before that bit, or the opening is refused, since
/// later flushes were acknowledged. Without the log, the volume still has the content of its newest
/// commit.
#[test]
fn a_log_with_a_changed_bit_is_refused_or_ends_before_it() {
    let crash = crash(2);
    let ends = crash.ends();
    let last_cut = crash.states[crash.states.len() - 1].0;
    // The head of the file comes before the first record.
    let heads = (0..88).step_by(3).map(|at| ([0, 88], vec![at]));
    let records = ends.windows(2).zip(0_usize..).map(|(pair, step)| {
        let middle = pair[0] + (pair[1] - pair[0]) / 2;
        ([pair[0], pair[1]], vec![pair[0] + step % 60, middle, pair[1] - 1])
    });
    for ((pair, places), step) in heads.chain(records).zip(0_usize..) {
        for at in places {
            let mut log = crash.log.clone();
            log[at] ^= 1 << (step % 8);
            let (store, dir) = (crash.store(), crash.folder(&log));
            match open(&store, logging(dir.path())) {
                Ok(device) => same(&device, crash.state(pair[0]), &format!("a bit at {at}")),
                Err(error) => {
                    assert!(matches!(error, Error::Stale { .. }), "{error}");
                    assert!(error.to_string().contains("damaged"), "{error}");
                    assert!(pair[1] < last_cut, "a torn end at {at} is no damage");
                    let goes_on = Options { discard_local: true, ..logging(dir.path()) };
                    let device = open(&store, goes_on).expect("the log is given up");
                    same(&device, &crash.committed, "without the log");
                }
            }
        }
    }
}

/// A log with a newer version in its head or in a record is refused with an error that names the
/// version. The log is kept.
#[test]
fn a_log_of_a_newer_version_is_refused_and_kept() {
    let crash = crash(2);
    let last = crash.ends()[crash.ends().len() - 2];
    for (at, end) in [(0, 64), (88, 88 + 64), (last, last + 64)] {
        let mut log = crash.log.clone();
        // The checksum also covers the extents of a record.
        let len = u64::from_le_bytes(log[at + 16..at + 24].try_into().expect("eight bytes"));
        let frames = u32::from_le_bytes(log[at + 60..at + 64].try_into().expect("four bytes"));
        let end = if at == 0 { end } else { at + len as usize - frames as usize * 4100 };
        log[at + 10] = 9;
        log[at + 12..at + 16].fill(0);
        let crc = crc_fast::crc32_iscsi(&log[at..end]);
        log[at + 12..at + 16].copy_from_slice(&crc.to_le_bytes());
        let (store, dir) = (crash.store(), crash.folder(&log));
        let error = open(&store, logging(dir.path())).expect_err("newer");
        assert!(matches!(error, Error::Version { found: 9, .. }), "{at}: {error}");
        assert_eq!(std::fs::read(log_file(dir.path())).expect("it is kept"), log);
    }
}

/// The store fails after any number of writes while a log is replayed. A reader sees a whole commit
/// at each moment, and the next opening replays the log again.
#[test]
fn a_replay_that_fails_anywhere_is_done_again() {
    let crash = crash(3);
    let right = &crash.states[crash.states.len() - 1].1;
    for writes in 0.. {
        let (store, dir) = (crash.store(), crash.folder(&crash.log));
        store.end_after(writes);
        let first = open(&store, logging(dir.path()));
        let is_done = first.is_ok();
        if let Ok(device) = &first {
            device.abandon();
        }
        drop(first);
        store.end_after(u64::MAX);
        let reader = open(&store, reading()).expect("a commit");
        let mut found = vec![0; LEN as usize];
        reader.read_at(0, &mut found).expect("whole");
        let is_of = |state: &MemoryDevice| {
            let mut content = vec![0; LEN as usize];
            state.read_at(0, &mut content).expect("whole");
            content == found
        };
        assert!(is_of(&crash.committed) || is_of(right), "after {writes} writes");
        store.advance_ms(60_000);
        let device = open(&store, logging(dir.path())).expect("the log still fits");
        same(&device, right, &format!("after {writes} writes"));
        if is_done {
            return;
        }
    }
}

/// Without the folder of the log, readers have the newest commit. A writer is refused, unless the
/// options say to go on without the log.
#[test]
fn a_volume_with_its_log_elsewhere_is_written_only_on_demand() {
    let crash = crash(4);
    let store = crash.store();
    same(&open(&store, reading()).expect("a commit"), &crash.committed, "for reading");
    let error = open(&store, options()).expect_err("its log is elsewhere");
    assert!(matches!(error, Error::Elsewhere { .. }), "{error}");
    let empty = tempfile::tempdir().expect("tempdir");
    let error = open(&store, logging(empty.path())).expect_err("another folder");
    assert!(matches!(error, Error::Elsewhere { .. }), "{error}");
    let goes_on = Options { discard_local: true, ..options() };
    let device = open(&store, goes_on).expect("without the log");
    same(&device, &crash.committed, "without the log");
    device.close().expect("a good store");
    // Another writer has added a manifest since, so the log does not fit any more.
    let dir = crash.folder(&crash.log);
    let error = open(&store, logging(dir.path())).expect_err("behind another writer");
    assert!(matches!(&error, Error::Stale { unsent, .. } if unsent.cuts == 4), "{error}");
    assert_eq!(std::fs::read(log_file(dir.path())).expect("it is kept"), crash.log);
    // The content at the log's last acknowledged flush can be salvaged to another device.
    let target = Arc::new(MemoryDevice::new(LEN));
    let made = target.clone();
    let unsent = site(&store, logging(dir.path())).salvage(|_| Ok(made), &|_| ()).expect("whole");
    assert_eq!(unsent.cuts, 4);
    same(&*target, &crash.states[crash.states.len() - 1].1, "what was salvaged");
}

/// A writer that lost the volume keeps its log. The log is refused afterwards, and given up only on
/// request, with a report of the lost writes.
#[test]
fn the_log_of_a_writer_that_was_fenced_is_stale_and_kept() {
    let (dir, store) = (tempfile::tempdir().expect("tempdir"), store(5));
    let first = site(&store, logging(dir.path())).create(LEN).expect("an honest store");
    first.write_at(0, &[1; 4096]).expect("within");
    first.push().expect("a good store");
    first.write_at(4096, &[2; 8192]).expect("within");
    first.flush().expect("a good disk");
    let second = open(&store, Options { takeover: true, ..options() }).expect("taken over");
    let mut content = [9; 4096];
    second.read_at(4096, &mut content).expect("within");
    assert!(content == [0; 4096], "what the first had only in its log is not here");
    second.write_at(16384, &[3; 4096]).expect("within");
    second.push().expect("it has the volume");
    first.write_at(12288, &[4; 4096]).expect("it does not know yet");
    let error = first.push().expect_err("fenced");
    assert!(matches!(error, Error::Fenced { .. }), "{error}");
    first.flush().expect_err("nothing more is acknowledged");
    first.close().expect_err("fenced");
    drop(first);
    second.close().expect("it has the volume");
    let before = std::fs::read(log_file(dir.path())).expect("a log");
    for takeover in [false, true] {
        let error = open(&store, Options { takeover, ..logging(dir.path()) }).expect_err("stale");
        assert!(matches!(&error, Error::Stale { unsent, .. } if unsent.cuts == 1), "{error}");
        assert!(error.to_string().contains("--discard-local"), "{error}");
        assert_eq!(std::fs::read(log_file(dir.path())).expect("it is kept"), before);
    }
    let target = Arc::new(MemoryDevice::new(LEN));
    let made = target.clone();
    site(&store, logging(dir.path())).salvage(|_| Ok(made), &|_| ()).expect("its base is kept");
    target.read_at(4096, &mut content).expect("within");
    assert!(content == [2; 4096]);
    target.read_at(16384, &mut content).expect("within");
    assert!(content == [0; 4096], "the second writer is not in it");
    let goes_on = Options { discard_local: true, ..logging(dir.path()) };
    let third = open(&store, goes_on).expect("the log is given up");
    let lost = third.discarded().expect("something was lost");
    assert_eq!((lost.cuts, lost.bytes >= 8192), (1, true));
    third.read_at(16384, &mut content).expect("within");
    assert!(content == [3; 4096]);
    third.close().expect("a good store");
    drop(third);
    drop(open(&store, logging(dir.path())).expect("the log was closed"));
}

/// If a commit has all writes of a log, the log never prevents an opening.
#[test]
fn a_log_that_was_uploaded_is_never_stale() {
    let (dir, store) = (tempfile::tempdir().expect("tempdir"), store(6));
    let first = site(&store, logging(dir.path())).create(LEN).expect("an honest store");
    first.write_at(0, &[1; 4096]).expect("within");
    first.flush().expect("a good disk");
    first.push().expect("a good store");
    first.abandon();
    drop(first);
    let second = open(&store, Options { takeover: true, ..options() }).expect("taken over");
    second.write_at(0, &[2; 4096]).expect("within");
    second.close().expect("a good store");
    let third = open(&store, logging(dir.path())).expect("nothing would be lost");
    let mut content = [0; 4096];
    third.read_at(0, &mut content).expect("within");
    assert!(content == [2; 4096], "the older write was not replayed");
}

/// With a log, a flush sends no request to the store. Without a log, a flush waits for a commit.
#[test]
fn a_flush_waits_for_what_was_asked_for() {
    let (dir, store) = (tempfile::tempdir().expect("tempdir"), store(7));
    let device = site(&store, logging(dir.path())).create(LEN).expect("an honest store");
    let before = device.status();
    device.write_at(0, &[1; 4096]).expect("within");
    device.flush().expect("a good disk");
    let after = device.status();
    assert_eq!((after.puts, after.commit), (before.puts, before.commit));
    assert!(after.lag_bytes >= 4096 && after.log_bytes > 4096, "{after:?}");
    device.push().expect("a good store");
    let pushed = device.status();
    assert_eq!((pushed.lag_bytes, pushed.lag_us), (0, 0));
    assert!(pushed.commit > after.commit);
    device.close().expect("a good store");
    drop(device);
    let far = Options { durability: Some(Durability::Remote), ..logging(dir.path()) };
    let device = open(&store, far).expect("the log was closed");
    let before = device.status().commit;
    device.write_at(0, &[2; 4096]).expect("within");
    device.flush().expect("a good store");
    assert!(device.status().commit > before);
}

/// A commit includes flushed writes that only the log has, without a request of the user.
#[test]
fn flushed_writes_are_uploaded() {
    let (dir, store) = (tempfile::tempdir().expect("tempdir"), store(8));
    let soon = Options { max_lag: Duration::ZERO, ..logging(dir.path()) };
    let device = site(&store, soon).create(LEN).expect("an honest store");
    device.write_at(0, &[1; 4096]).expect("within");
    device.flush().expect("a good disk");
    while device.status().lag_bytes > 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut content = [0; 4096];
    open(&store, reading()).expect("a commit").read_at(0, &mut content).expect("within");
    assert!(content == [1; 4096]);
}

/// The log is much shorter than the written data. Segments leave the memory and writers wait for
/// commits. All content is right at any time and after a crash.
#[test]
fn a_volume_with_a_short_log_conforms() {
    for seed in 0..2 {
        let (dir, store) = (tempfile::tempdir().expect("tempdir"), store(seed));
        let short = Options { cache_size: 16 << 20, in_flight: 2, ..logging(dir.path()) };
        let device = site(&store, short.clone()).create(conformance::LEN).expect("honest");
        if seed == 1 {
            let bad = Weather { refused: 30, lost: 50, wrong: 20, short: 20, ..Weather::default() };
            store.set_weather(bad);
        }
        conforms(&device, seed, 1200);
        device.flush().expect("a good disk");
        let mut right = vec![0; 3 << 20];
        device.read_at(0, &mut right).expect("whole");
        device.abandon();
        drop(device);
        store.set_weather(Weather::default());
        store.advance_ms(60_000);
        let device = open(&store, short).expect("the log fits");
        let mut found = vec![0; 3 << 20];
        device.read_at(0, &mut found).expect("whole");
        assert!(found == right, "seed {seed}");
    }
}

/// A folder is used only for its own volume, or if it is empty. One process at a time uses the
/// folder.
#[test]
fn a_folder_that_is_no_cache_of_the_volume_is_refused() {
    let (dir, store) = (tempfile::tempdir().expect("tempdir"), store(9));
    let device = site(&store, logging(dir.path())).create(LEN).expect("an honest store");
    let taking = Options { takeover: true, ..logging(dir.path()) };
    let error = open(&store, taking).expect_err("it is in use");
    assert!(error.to_string().contains("another process"), "{error}");
    device.close().expect("a good store");
    drop(device);
    let other = Site::in_store(store.clone(), "w", logging(dir.path()));
    let error = other.create(LEN).expect_err("of another volume");
    assert!(error.to_string().contains("another volume"), "{error}");
    let full = tempfile::tempdir().expect("tempdir");
    std::fs::write(full.path().join("letter"), b"x").expect("a file");
    let error = open(&store, logging(full.path())).expect_err("not empty");
    assert!(error.to_string().contains("not empty"), "{error}");
    assert!(full.path().join("letter").exists());
    let none = Options { durability: Some(Durability::Local), ..options() };
    let place = format!("file://{}", full.path().display());
    let error = Site::of(place.as_ref(), none).expect_err("no folder");
    assert!(error.to_string().contains("cache-dir"), "{error}");
}
