//! N5: device space and addresses pass to other chunks during a scrub or a trim. The test stops the
//! scrub or trim where it reports its progress, or in the middle of a request. Meanwhile block
//! groups are removed and new groups take their places.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use buttress_block::{Device, Error, MemoryDevice};
use buttress_format::{DevExtent, Key, Kind, Logical};
use buttress_fs::{
    FallocateMode, Filesystem, Inode, MakeOptions, MountOptions, NewInode, ScrubOptions, TreeId,
    TrimOptions,
};

use crate::checker::check;
use crate::devices::{Hook, Hooked};
use crate::volume::{content, file_with, mount, pattern};

const MIB: u64 = 1 << 20;
const PIECE: u64 = 2 * MIB;

/// The distance between steps that the tests try. The tests skip the steps in between, because most
/// neighbouring steps are alike.
const STRIDE: usize = 3;

/// How long a test waits to see that a forbidden event does not happen.
const PAUSE: Duration = Duration::from_millis(150);

/// A device that overwrites discarded bytes at once. The first request of the kind `armed` waits
/// until the test releases it, or until about [`PAUSE`] has passed.
#[derive(Debug, Default)]
struct Standing {
    /// The kind of the request: 1 for reads of data, 2 for discards.
    armed: AtomicU64,
    stands: AtomicBool,
    is_done: AtomicBool,
    discarded: Mutex<Vec<Range<u64>>>,
}

const READS: u64 = 1;
const DISCARDS: u64 = 2;

impl Standing {
    fn stand(&self, which: u64) {
        if self.armed.compare_exchange(which, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        self.stands.store(true, Ordering::SeqCst);
        for _ in 0..100 {
            if self.is_done.load(Ordering::SeqCst) {
                return;
            }
            std::thread::sleep(PAUSE / 100);
        }
    }
}

impl Hook for Standing {
    fn read(&self, below: &dyn Device, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        if buf.len() as u64 >= 128 << 10 {
            self.stand(READS);
        }
        below.read_at(offset, buf)
    }

    fn discard(&self, below: &dyn Device, offset: u64, len: u64) -> Result<(), Error> {
        self.stand(DISCARDS);
        self.discarded.lock().expect("no panic").push(offset..offset + len);
        for at in (offset..offset + len).step_by(64 << 10) {
            below.write_at(at, &[0xA5; 512])?;
        }
        below.write_at(offset + len - 512, &[0xA5; 512])
    }
}

/// A device, the same device with a hook, and a mount of the device with the hook. The volume has
/// one file.
fn volume(mib: u64) -> (Arc<dyn Device>, Arc<Hooked<Standing>>, Filesystem) {
    let below: Arc<dyn Device> = Arc::new(MemoryDevice::new(mib * MIB));
    Filesystem::make(&*below, &MakeOptions::default()).expect("an empty volume");
    let hooked = Hooked::new(&below, Standing::default());
    let device: Arc<dyn Device> = Arc::clone(&hooked) as _;
    let options = MountOptions::parse("rw,commit=300").expect("options");
    let fs = Filesystem::open(vec![device], options).expect("a mount");
    file_with(&fs.root(), "kept", &kept());
    fs.sync().expect("durable");
    (below, hooked, fs)
}

/// As [`volume`], with a second file that takes all free space.
fn full() -> (Arc<dyn Device>, Arc<Hooked<Standing>>, Filesystem) {
    let (below, hooked, fs) = volume(128);
    put(&fs, "old", 1);
    (below, hooked, fs)
}

fn kept() -> Vec<u8> {
    pattern(7, 2 * MIB as usize)
}

/// The bytes at the front of a piece of a file.
fn written(seed: u64, number: u64) -> Vec<u8> {
    pattern(seed * 1000 + number, 256 << 10)
}

/// Fills the volume with a file of pieces of [`PIECE`] bytes, and writes the front of each piece.
/// Returns the number of pieces.
fn put(fs: &Filesystem, name: &str, seed: u64) -> u64 {
    let file = fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
    let count = extend(&file, seed, 0);
    fs.sync().expect("durable");
    count
}

/// Adds pieces to a file that has `from` of them, as long as there is room.
fn extend(file: &Inode, seed: u64, from: u64) -> u64 {
    let allocate = FallocateMode::Allocate { keep_size: false };
    let mut count = from;
    while file.fallocate(count * PIECE, PIECE, allocate).is_ok() {
        file.write_direct(count * PIECE, &written(seed, count)).expect("it has its place");
        count += 1;
    }
    count
}

/// Removes a file and all groups that become empty, and makes the removal durable.
fn remove(fs: &Filesystem, name: &str) {
    fs.root().unlink(name.as_bytes()).expect("removed");
    for _ in 0..3 {
        fs.sync().expect("durable");
    }
}

/// The parts of the device that chunks own, each with the address of its chunk.
fn parts(fs: &Filesystem) -> Vec<(Range<u64>, Logical)> {
    let view = fs.view();
    let key = |offset| Key::new(1, Kind::DEV_EXTENT, offset);
    let items = view.range(TreeId::DEV, key(0), key(u64::MAX));
    let part = |(key, item): (Key, buttress_tree::Item)| {
        let part = DevExtent::parse(&item).expect("a part of the device");
        (key.offset..key.offset + part.length, part.chunk_offset)
    };
    items.map(|found| part(found.expect("it reads"))).collect()
}

/// The number of device bytes that have gone from one chunk to another.
fn changed_hands(before: &[(Range<u64>, Logical)], after: &[(Range<u64>, Logical)]) -> u64 {
    let overlap =
        |a: &Range<u64>, b: &Range<u64>| a.end.min(b.end).saturating_sub(a.start.max(b.start));
    let pairs = before.iter().flat_map(|old| after.iter().map(move |new| (old, new)));
    pairs.filter(|(old, new)| old.1 != new.1).map(|(old, new)| overlap(&old.0, &new.0)).sum()
}

/// Checks that both files have their content, in this mount and the next.
fn verify(below: &Arc<dyn Device>, fs: Filesystem, name: &str, seed: u64, count: u64) {
    let look = |fs: &Filesystem| {
        assert!(content(&fs.resolve("kept").expect("the file")) == kept());
        let file = fs.resolve(name).expect("the file");
        let mut found = vec![0; written(0, 0).len()];
        for number in 0..count {
            file.read_at(number * PIECE, &mut found).expect("a read");
            assert!(found == written(seed, number), "piece {number} of {name}");
        }
    };
    look(&fs);
    fs.close().expect("closed");
    let fs = mount(below);
    look(&fs);
    fs.close().expect("closed");
    check(below);
}

/// Tests N5.
/// At any step of a scrub, groups are removed and other groups take their places. The scrub may
/// hold groups. The scrub finds no fault, repairs nothing, and ends.
#[test]
fn groups_change_hands_between_steps_of_a_scrub() {
    for hold_groups in [false, true] {
        let mut moved = 0;
        for step in (0..).step_by(STRIDE) {
            let (below, _, fs) = full();
            let before = parts(&fs);
            let (mut looks, mut count) = (0, None);
            let how = ScrubOptions { hold_groups, ..ScrubOptions::default() };
            let found = fs.scrub(how, &mut |_| {
                if looks == step {
                    remove(&fs, "old");
                    count = Some(put(&fs, "new", 2));
                    moved += changed_hands(&before, &parts(&fs));
                }
                looks += 1;
                true
            });
            let (found, is_whole) = found.expect("a scrub");
            assert!(!found.has_errors() && is_whole, "step {step}: {found:?}");
            assert_eq!(found.corrected_errors, 0, "step {step}");
            let Some(count) = count else {
                assert!(looks >= 6, "only {looks} steps");
                break;
            };
            assert!(count > 20, "{count} pieces");
            verify(&below, fs, "new", 2, count);
        }
        assert!(moved > 50 * MIB, "{moved} bytes have gone to another chunk");
    }
}

/// Tests N5.
/// Groups are emptied in the middle of a step of a scrub. No chunk with data that the scrub is
/// reading is removed before the data is checked.
#[test]
fn scrubbed_space_is_not_reused() {
    let (below, hooked, fs) = full();
    let before = parts(&fs);
    hooked.hook.armed.store(READS, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            while !hooked.hook.stands.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            remove(&fs, "old");
            let now = parts(&fs);
            hooked.hook.is_done.store(true, Ordering::SeqCst);
            assert!(before.iter().all(|part| now.contains(part)), "{before:?}, then {now:?}");
        });
        let (found, is_whole) = fs.scrub(ScrubOptions::default(), &mut |_| true).expect("a scrub");
        assert!(!found.has_errors() && is_whole, "{found:?}");
        assert_eq!(found.corrected_errors, 0);
        other.join().expect("no panic");
    });
    // The scrub has ended, so the next commits remove the empty groups.
    file_with(&fs.root(), "last", b"x");
    remove(&fs, "last");
    let count = put(&fs, "new", 2);
    assert!(changed_hands(&before, &parts(&fs)) > 0, "nothing went to another chunk");
    verify(&below, fs, "new", 2, count);
}

/// Tests N5.
/// Groups are removed and other groups take their places at any step of a trim. Space that is in
/// use from then on is not discarded.
#[test]
fn groups_change_hands_between_steps_of_a_trim() {
    let (mut moved, mut discarded) = (0, 0);
    for step in (0..).step_by(STRIDE) {
        let (below, hooked, fs) = full();
        // Now there is free space to discard, both in groups and outside of them.
        remove(&fs, "old");
        file_with(&fs.root(), "old", &pattern(3, 20 * MIB as usize));
        fs.sync().expect("durable");
        let before = parts(&fs);
        let (mut looks, mut count) = (0, None);
        fs.trim(TrimOptions::default(), &mut |_| {
            if looks == step {
                remove(&fs, "old");
                count = Some(put(&fs, "new", 2));
                moved += changed_hands(&before, &parts(&fs));
                hooked.hook.discarded.lock().expect("no panic").clear();
            }
            looks += 1;
            true
        })
        .expect("a trim");
        let Some(count) = count else {
            assert!(looks >= 6, "only {looks} steps");
            break;
        };
        discarded += hooked.hook.discarded.lock().expect("no panic").len();
        verify(&below, fs, "new", 2, count);
    }
    assert!(moved > 0, "nothing went to another chunk");
    assert!(discarded > 0, "nothing was left to tell of");
}

/// Tests N5.
/// A trim discards space outside of all groups piece by piece. Between two pieces new groups take
/// some of that space, which is not discarded any more.
#[test]
fn groups_take_space_ahead_of_a_trim() {
    for piece in 0..3 {
        let (below, hooked, fs) = volume(400);
        let discarded = &hooked.hook.discarded;
        let last = || discarded.lock().expect("no panic").last().cloned().unwrap_or_default();
        let before = parts(&fs);
        let (mut pieces, mut count) = (0, None);
        fs.trim(TrimOptions::default(), &mut |_| {
            let told = last();
            let is_in = |part: &Range<u64>| told.start < part.end && part.start < told.end;
            if !before.iter().any(|(part, _)| is_in(part)) {
                if pieces == piece {
                    count = Some(put(&fs, "new", 2));
                    let now = parts(&fs);
                    assert!(now.len() > before.len() + 2, "{before:?}, then {now:?}");
                }
                pieces += 1;
            }
            true
        })
        .expect("a trim");
        let count = count.unwrap_or_else(|| panic!("only {pieces} pieces"));
        verify(&below, fs, "new", 2, count);
    }
}

/// Tests N5.
/// Writers need space in the middle of each request of a trim. Space under discard, in a group or
/// outside of all groups, is not allocated before the request ends.
#[test]
fn trimmed_space_is_not_given_out() {
    for step in (0..4).chain((4..).step_by(STRIDE)) {
        let (below, hooked, fs) = full();
        remove(&fs, "old");
        let hook = &hooked.hook;
        let mut looks = 0;
        let mut arm = || {
            if looks == step {
                hook.armed.store(DISCARDS, Ordering::SeqCst);
            }
            looks += 1;
        };
        arm();
        let is_over = AtomicBool::new(false);
        let count = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                while !hook.stands.load(Ordering::SeqCst) {
                    if is_over.load(Ordering::SeqCst) {
                        return None;
                    }
                    std::thread::yield_now();
                }
                let count = put(&fs, "new", 2);
                hook.is_done.store(true, Ordering::SeqCst);
                Some(count)
            });
            let told = fs.trim(TrimOptions::default(), &mut |_| {
                arm();
                true
            });
            is_over.store(true, Ordering::SeqCst);
            told.expect("a trim");
            other.join().expect("no panic")
        });
        let Some(count) = count else {
            assert!(looks >= 6, "only {looks} requests");
            break;
        };
        verify(&below, fs, "new", 2, count);
    }
}
