//! P4: operations that free space have their own reservations, in addition to the reservations of
//! other such operations. Each finds its reserved space even if all other operations use their
//! reservations.

use std::time::{Duration, Instant};

use buttress_txn::{Engine, MetaReservation, SpaceKind};

use super::*;
use crate::{NewInode, XattrFlags};

/// More reservations than any full volume grants to operations that free space.
const FREEING_MAX: usize = 2000;
const ITEMS: u32 = 8;
const COST: Cost = Cost::of(ITEMS, 2000);

/// A volume without room for metadata or a chunk, and its small files.
fn crowded(device: &Arc<dyn Device>) -> (Filesystem, Vec<Inode>) {
    let fs = mount(device, "rw,commit=300");
    let files = crowd(&fs);
    (fs, files)
}

/// Fills the volume until no metadata and no chunk is left. Returns the small files that take the
/// space.
pub(super) fn crowd(fs: &Filesystem) -> Vec<Inode> {
    drop(fill(fs));
    let mut files = Vec::new();
    while let Ok(made) =
        fs.root().create(format!("f{}", files.len()).as_bytes(), NewInode::file(0o644))
    {
        let _ = made.set_xattr(b"user.large", &[1; 3000], XattrFlags::default());
        files.push(made);
        if files.len() % 100 == 0 {
            fs.sync().expect("durable");
        }
    }
    fs.sync().expect("durable");
    files
}

/// Writes inode items of files that lie far apart, without changing them.
pub(super) fn rewrite(fs: &Filesystem, reservation: MetaReservation, files: &[&Inode]) {
    let engine = &fs.mount().engine;
    let items: Vec<_> = files
        .iter()
        .map(|file| {
            let key = Key::new(file.id().ino.0, Kind::INODE_ITEM, 0);
            let item = fs.view().get(file.id().tree, &key).expect("it reads").expect("an item");
            (file.id().tree, key, item)
        })
        .collect();
    let handle = engine.begin(reservation);
    items.iter().for_each(|(tree, key, item)| handle.put(*tree, *key, &**item));
}

/// Makes reservations of [`COST`] until no space is left for another.
pub(super) fn all_at_once(engine: &Arc<Engine>, class: ReserveClass) -> Vec<MetaReservation> {
    let ask = || engine.reserve_at_once(COST, class).expect("nothing failed");
    std::iter::from_fn(ask).take(FREEING_MAX).collect()
}

/// Uses all reserved space, to the last item.
pub(super) fn use_all(fs: &Filesystem, reservations: Vec<MetaReservation>, files: &[Inode]) {
    let parts = reservations.len() * ITEMS as usize;
    let mut far_apart = (0..parts).map(|part| &files[part * 7919 % files.len()]);
    for reservation in reservations {
        let files: Vec<_> = far_apart.by_ref().take(ITEMS as usize).collect();
        rewrite(fs, reservation, &files);
    }
}

/// Operations that free space find their reserved space, alone and after operations that fill the
/// volume. The operations that fill the volume find their reserved space, too.
#[test]
fn operations_that_free_find_what_they_reserved() {
    for fills in [false, true] {
        let device = volume(128);
        let (fs, mut files) = crowded(&device);
        let engine = Arc::clone(&fs.mount().engine);
        let mut fillers = Vec::new();
        if fills {
            for number in files.len() * 7 / 8..files.len() {
                fs.root().unlink(format!("f{number}").as_bytes()).expect("removed");
            }
            files.truncate(files.len() * 7 / 8);
            fs.sync().expect("durable");
            fillers = all_at_once(&engine, ReserveClass::Normal);
            assert!(fillers.len() > 1, "{}", fs.space_stats().accounts);
        }
        let reservations = all_at_once(&engine, ReserveClass::Free);
        let (reserved, before) = (reservations.len(), fs.space_stats().accounts);
        println!("{reserved} behind {}, {} files, {before}", fillers.len(), files.len());
        assert!(reserved > 1, "not even two: {before}");
        let metadata = before.metadata;
        let free = metadata.free() - metadata.global_reserve / 8;
        assert!(metadata.may_use <= free, "P4: behind {} fillers: {before}", fillers.len());
        use_all(&fs, reservations.into_iter().chain(fillers).collect(), &files);
        engine.commit().expect("a commit never runs out of space");
        assert!(reserved < FREEING_MAX, "all reserved the same: {before}");
        drop(files);
        fs.close().expect("closed");
        check_volume(&device);
    }
}

/// An operation that frees space waits for others that free space. It gets space when the others
/// are done, whether they used their reservations or not. An operation that holds its reservation
/// for long does not make the waiter fail.
#[test]
fn an_operation_that_frees_waits_for_others() {
    let device = volume(128);
    let (fs, files) = crowded(&device);
    let engine = Arc::clone(&fs.mount().engine);
    for uses in [false, true] {
        let reservations = all_at_once(&engine, ReserveClass::Free);
        assert!(reservations.len() > 1);
        std::thread::scope(|scope| {
            let waiter =
                scope.spawn(|| engine.reserve(COST, ReserveClass::Free).expect("room in the end"));
            let begun = Instant::now();
            while !engine.queues().has_waiters(SpaceKind::Metadata) && !waiter.is_finished() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(50));
            // The waiter waits for a second.
            let is_early = begun.elapsed() < Duration::from_millis(500);
            assert!(!is_early || !waiter.is_finished(), "it waited for no other");
            if uses {
                use_all(&fs, reservations, &files);
            } else {
                drop(reservations);
            }
            drop(waiter.join().expect("no panic"));
        });
        engine.commit().expect("a commit");
    }
    let reservations = all_at_once(&engine, ReserveClass::Free);
    drop(engine.reserve(COST, ReserveClass::Free).expect("a delete always succeeds"));
    drop((reservations, files));
    fs.close().expect("closed");
    check_volume(&device);
}

/// After each step of a removal, the inode item records the remaining bytes, as a crash would find
/// them.
#[test]
fn a_removal_in_steps_says_what_is_left() {
    let device = volume(128);
    let fs = mount(&device, "rw,commit=300");
    let large = file(&fs, "large");
    for extent in 0..1000 {
        large.write_at(extent * 2 * SECTOR, &bytes(1, 1)).expect("a write");
    }
    fs.sync().expect("durable");
    // While the file is open, no other thread removes its items.
    fs.root().unlink(b"large").expect("removed");
    let files = &fs.mount().files;
    let last = |_: &buttress_txn::Handle<'_>| panic!("steps are shorter");
    for _ in 0..3 {
        let removal = files.remove_step(&large.cell.file, last).expect("a step");
        assert!(removal.is_continue());
        fs.mount().engine.commit().expect("a commit");
        check_volume(&device);
    }
    drop(large);
    fs.close().expect("closed");
    check_volume(&device);
}
