//! The local cache of an encrypted volume: nothing in it can be read, a log that an earlier program
//! left in clear text is replayed once, and a forged log is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use buttress_block::Device;

use super::record::tag;
use super::*;
use crate::device::RemoteDevice;
use crate::error::Error;
use crate::open::Site;
use crate::options::Options;
use crate::secret::Secret;
use crate::segment::Segment;
use crate::units::{SECTOR, Sector};
use buttress_store::simulated::{SimStore, Weather};

const LEN: u64 = 8 << 20;
const WORD: &[u8] = b"words to hide; ";

/// A place with a cache folder. With `is_earlier` the cache gets no keys, as in an earlier program,
/// which wrote the cache of an encrypted volume in clear text.
fn site(store: &Arc<SimStore>, dir: &Path, is_earlier: bool) -> Site {
    let options = Options {
        write: true,
        object_len: 64 << 10,
        memory: 16 << 20,
        cache_size: 64 << 20,
        max_lag: Duration::from_secs(3600),
        cache_dir: Some(dir.to_owned()),
        ..Options::default()
    };
    let secret = Secret::new(b"secret".to_vec()).expect("some bytes");
    let site = Site::in_store(store.clone(), "v", options).encrypted(secret);
    if is_earlier { Site { seal: None, ..site } } else { site }
}

fn made() -> (tempfile::TempDir, Arc<SimStore>) {
    let (dir, store) =
        (tempfile::tempdir().expect("tempdir"), SimStore::new(1, Weather::default()));
    let store = Arc::new(store);
    let mut site = site(&store, dir.path(), false);
    site.options.cache_dir = None;
    site.create(LEN).expect("an honest store").close().expect("a store");
    (dir, store)
}

/// Fifty sectors of text that begin with the byte `number`.
fn text(number: u8) -> Vec<u8> {
    let mut text = WORD.repeat(50 * SECTOR as usize / WORD.len() + 1);
    text.truncate(50 * SECTOR as usize);
    text[0] = number;
    text
}

fn write(device: &RemoteDevice, at: u64, number: u8) {
    device.write_at(at * SECTOR, &text(number)).expect("within");
}

fn is_there(device: &dyn Device, at: u64, number: u8) -> bool {
    let mut found = vec![0; 50 * SECTOR as usize];
    device.read_at(at * SECTOR, &mut found).expect("within");
    found == text(number)
}

/// Ends as a crash does, and lets the sign of life get old.
fn crashed(store: &SimStore, device: RemoteDevice) {
    device.abandon();
    drop(device);
    store.advance_ms(60_000);
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { all.extend(files(&path)) } else { all.push(path) }
    }
    all
}

/// How many bytes the files have, and whether one of them has the text.
fn shows(folder: &Path) -> (usize, bool) {
    let mut len = 0;
    let mut has = false;
    for path in files(folder) {
        let bytes = std::fs::read(path).expect("a file");
        len += bytes.len();
        has |= bytes.windows(WORD.len()).any(|part| part == WORD);
    }
    (len, has)
}

/// L5: no file of the folder shows the text that was written and read, and all of the text comes
/// back after a crash. The run with an earlier program shows that the test would find the text.
#[test]
fn a_stolen_cache_says_nothing() {
    for is_earlier in [true, false] {
        let (dir, store) = made();
        let device = site(&store, dir.path(), is_earlier).open().expect("the key");
        write(&device, 100, 1);
        device.flush().expect("a disk");
        let (len, has) = shows(dir.path());
        assert!(len > 50 * 4100 && has == is_earlier, "the log: {len} bytes, {has}");
        crashed(&store, device);
        let device = site(&store, dir.path(), is_earlier).open().expect("the log fits");
        assert!(is_there(&device, 100, 1));
        device.close().expect("a store");
        drop(device);
        for round in 0..2 {
            let reader = site(&store, dir.path(), is_earlier);
            let options = Options { write: false, ..reader.options.clone() };
            let device = Site { options, ..reader }.open().expect("the key");
            let before = device.status().gets;
            assert!(is_there(&device, 100, 1));
            assert!(round == 0 || device.status().gets == before, "it is on the disk");
        }
        let (len, has) = shows(&dir.path().join("read"));
        assert!(len > 50 * 4096 && has == is_earlier, "what was read: {len} bytes, {has}");
    }
}

/// Segments that left the memory are read from a sealed log, in parts, and sent from the log.
#[test]
fn a_slow_store_leaves_segments_to_the_sealed_log() {
    let (dir, store) = made();
    let mut place = site(&store, dir.path(), false);
    place.options.in_flight = 1;
    place.options.timeout = Duration::from_secs(30);
    let device = place.open().expect("the key");
    store.set_weather(Weather { refused: 900, ..Weather::default() });
    for number in 0..20 {
        write(&device, u64::from(number) * 60, number);
        if number % 3 == 0 {
            device.flush().expect("a disk");
        }
    }
    for number in 0..20 {
        assert!(is_there(&device, u64::from(number) * 60, number), "{number}");
    }
    store.set_weather(Weather::default());
    device.close().expect("a store");
    let device = site(&store, dir.path(), false).open().expect("the key");
    assert!((0..20).all(|number| is_there(&device, u64::from(number) * 60, number)));
}

/// The log of an earlier program is replayed once, and its lines are dropped. A crash in between
/// changes nothing. From then on the folder has nothing in clear text.
#[test]
fn a_cache_in_clear_text_is_taken_over() {
    for end_after in [0, 6, 7, 8, u64::MAX] {
        let (dir, store) = made();
        let device = site(&store, dir.path(), true).open().expect("the key");
        write(&device, 100, 1);
        device.push().expect("a store");
        write(&device, 200, 2);
        device.flush().expect("a disk");
        assert!(is_there(&device, 100, 1));
        crashed(&store, device);
        assert!(shows(dir.path()).1);
        store.end_after(end_after);
        let mut first = site(&store, dir.path(), false);
        first.options.timeout = Duration::ZERO;
        match first.open() {
            Ok(device) => crashed(&store, device),
            Err(error) => assert!(end_after < 20, "{error}"),
        }
        store.end_after(u64::MAX);
        store.advance_ms(60_000);
        let device = site(&store, dir.path(), false).open();
        let device = device.unwrap_or_else(|error| panic!("after {end_after} writes: {error}"));
        assert!(is_there(&device, 100, 1) && is_there(&device, 200, 2), "{end_after}");
        write(&device, 300, 3);
        device.flush().expect("a disk");
        assert!(!shows(dir.path()).1, "{end_after}");
        crashed(&store, device);
        let error = site(&store, dir.path(), true).open().expect_err("an earlier program");
        assert!(matches!(error, Error::Stale { .. } | Error::Version { .. }), "{error}");
        let device = site(&store, dir.path(), false).open().expect("the log fits");
        assert!(is_there(&device, 200, 2) && is_there(&device, 300, 3));
        device.close().expect("a store");
    }
}

/// A log in clear text with right checksums is refused in the place of a sealed one. So is a sealed
/// log with another key, or with a forged position.
#[test]
fn a_forged_log_is_refused() {
    let (dir, store) = made();
    let device = site(&store, dir.path(), false).open().expect("the key");
    write(&device, 100, 1);
    device.flush().expect("a disk");
    let (volume, epoch, id) =
        (device.core.volume, device.core.epoch, device.core.writer.id.clone());
    crashed(&store, device);
    let folder = dir.path().join("log");
    let right = std::fs::read(folder.join("0000000000000001")).expect("a log");
    for seal in [None, CacheSeal::new(&crate::keys::Master([7; 32]), volume)] {
        remove_files(&folder).expect("a disk");
        let log = Log::begin(&folder, seal, volume, epoch, &id, 0, 1 << 20).expect("a disk");
        let mut segment = Segment::empty(ObjectNumber(9));
        segment.push(Sector(100), &[66; SECTOR as usize]);
        let fixed = segment.fix();
        let body = Body::Copied(segment.frames(0, 1).to_vec());
        let tail = Tail { object: ObjectNumber(9), fixed, body, position: 1 };
        let mut inside = log.inside.lock();
        log.append(&mut inside, &tail).expect("a disk");
        log.cut(&mut inside, 1).expect("a disk");
        drop(inside);
        let error = site(&store, dir.path(), false).open().expect_err("forged");
        assert!(matches!(error, Error::Stale { .. }), "{error}");
    }
    assert_eq!(right[FILE_HEAD - 24..FILE_HEAD - 16], tag(&id).to_le_bytes());
    for at in [FILE_HEAD - 16, FILE_HEAD - 8] {
        let mut moved = right.clone();
        moved[at] ^= 1;
        // An attacker makes the checksums right again.
        let body = moved[envelope::LEN..FILE_HEAD].to_vec();
        let head = envelope::wrap_local(true, Kind::Log, volume, (1, epoch), &body);
        moved[..FILE_HEAD].copy_from_slice(&head);
        std::fs::write(folder.join("0000000000000001"), &moved).expect("a disk");
        let error = site(&store, dir.path(), false).open().expect_err("forged");
        assert!(matches!(error, Error::Stale { .. }), "{error}");
    }
    std::fs::write(folder.join("0000000000000001"), &right).expect("a disk");
    let device = site(&store, dir.path(), false).open().expect("the log fits");
    assert!(is_there(&device, 100, 1));
}

/// A truncated sealed log is replayed to its last whole cut. A changed bit is never replayed.
#[test]
fn a_sealed_log_is_whole_or_ends_before() {
    let (dir, store) = made();
    let device = site(&store, dir.path(), false).open().expect("the key");
    let path = dir.path().join("log/0000000000000001");
    let mut lens = Vec::new();
    for number in 0..3 {
        write(&device, u64::from(number) * 60, number);
        device.flush().expect("a disk");
        lens.push(std::fs::metadata(&path).expect("a log").len() as usize);
    }
    let changes = {
        device.abandon();
        store.changes()
    };
    drop(device);
    let (whole, identity) = (std::fs::read(&path), std::fs::read(dir.path().join("identity")));
    let (whole, identity) = (whole.expect("a log"), identity.expect("a file"));
    let check = |log: &[u8], until: usize, may_refuse: bool| {
        let copy = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir(copy.path().join("log")).expect("a folder");
        std::fs::write(copy.path().join("identity"), &identity).expect("a file");
        std::fs::write(copy.path().join("log/0000000000000001"), log).expect("a file");
        let store = Arc::new(SimStore::replay(&changes, 1));
        store.advance_ms(60_000);
        match site(&store, copy.path(), false).open() {
            Ok(device) => {
                for (number, len) in (0..).zip(&lens) {
                    let is_in = is_there(&device, u64::from(number) * 60, number);
                    assert_eq!(is_in, *len <= until, "{number} of {until}");
                }
            }
            Err(error) => {
                assert!(may_refuse && matches!(error, Error::Stale { .. }), "{until}: {error}");
            }
        }
    };
    for until in [50, 119, lens[0] - 1, lens[0], lens[1] - 5, lens[2]] {
        check(&whole[..until], until, false);
    }
    for at in [70, 100, 130, 190, lens[0] / 2, lens[0] + 90, lens[2] - 30] {
        let mut log = whole.clone();
        log[at] ^= 4;
        check(&log, at, true);
    }
}

/// Numbers of files and records may have any value on a disk. The largest have no successor.
#[test]
fn a_log_with_the_largest_numbers_is_read() {
    let (dir, volume) = (tempfile::tempdir().expect("tempdir"), VolumeId([1; 16]));
    let tag = tag("0123456789abcdef");
    for number in [u64::MAX - 1, u64::MAX] {
        let body: Vec<u8> = [tag, 0, u64::MAX].iter().flat_map(|n| n.to_le_bytes()).collect();
        let mut file = envelope::wrap_local(false, Kind::Log, volume, (number, 1), &body);
        let says = Says::Cut { time_ms: 1 };
        let record = Record { tag, sequence: 0, position: 1, says };
        file.extend(record.encode(&[], None).0);
        std::fs::write(dir.path().join(format!("{number:016x}")), file).expect("a file");
    }
    let folder = dir.path();
    let wanted = scan::Wanted { folder, volume, tag, seal: None, may_be_plain: false };
    assert_eq!(scan::look(wanted, 0).expect("a log").cuts, 0, "no record follows");
}
