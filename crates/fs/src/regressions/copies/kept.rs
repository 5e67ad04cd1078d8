//! Tests of the size of the snapshot headroom, and of the operations that may not use it.

use super::*;
use crate::NewInode;
use crate::make::MakeOptions;

/// Y1: a snapshot without space for headroom is refused, and changes nothing. Once there is space,
/// the snapshot succeeds, and all files that it shares can be deleted. With the option off, the
/// snapshot succeeds without headroom.
#[test]
fn a_snapshot_without_room_is_refused() {
    let device = volume(256);
    let fs = mount(&device, "rw,commit=300");
    populate(&fs, &fs.root());
    let more = fill_up(&fs, &fs.root(), "more");
    let remove = |fs: &Filesystem, numbers: std::ops::Range<usize>| {
        for number in numbers {
            fs.root().unlink(format!("more{number}").as_bytes()).expect("removed");
        }
        fs.sync().expect("durable");
    };
    let snapshot = |fs: &Filesystem| fs.root().snapshot(b"snapshot", TreeId::FS, true).map(drop);
    remove(&fs, 0..more / 2);
    let refused = snapshot(&fs).expect_err("there is no room");
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(refused.to_string().contains("delete_room=off"), "{refused}");
    assert!(fs.root().lookup(b"snapshot").is_err());
    assert_eq!(fs.space_stats().accounts.outstanding.all_items(), 0);
    fs.close().expect("closed");
    check_volume(&device);

    let fs = mount(&device, "rw,commit=300,delete_room=off");
    snapshot(&fs).expect("as in Linux");
    fs.root().delete_subvolume(b"snapshot").expect("deleted");
    fs.close().expect("closed");
    let fs = mount(&device, "rw,commit=300");
    remove(&fs, more / 2..more);
    fs.root().unlink(b"more-data").expect("removed");
    fs.sync().expect("durable");
    snapshot(&fs).expect("there is room");
    fill_up(&fs, &fs.root(), "again");
    remove_all(&fs, &dir_of(&fs.root()), 3);
    fs.close().expect("closed");
    check_volume(&device);
}

/// Y3: a writer that fills the volume does not get the headroom, even if chunks are made in the
/// same transaction. The space of such chunks belongs to the callers that wait for it, except for
/// the headroom.
#[test]
fn one_long_transaction_takes_nothing_that_is_kept() {
    for mib in [256, 384] {
        let device = volume(mib);
        let fs = mount(&device, "rw,commit=300");
        populate(&fs, &fs.root());
        drop(fs.root().snapshot(b"before", TreeId::FS, true).expect("a snapshot"));
        fill_by(&fs, &fs.root(), "more", usize::MAX);
        remove_all(&fs, &dir_of(&fs.root()), 8);
        fs.close().expect("closed");
        check_volume(&device);
    }
}

/// Y3: if chunks can still be made, a part of the unallocated device space is kept as headroom.
/// Data does not get this space, and `statfs` does not count it as available.
#[test]
fn room_in_chunks_to_come_is_not_for_data() {
    let device = volume(256);
    let fs = mount(&device, "rw,commit=300");
    populate(&fs, &fs.root());
    let before = fs.statfs().expect("figures");
    drop(fs.root().snapshot(b"before", TreeId::FS, true).expect("a snapshot"));
    let accounts = fs.space_stats().accounts;
    let after = fs.statfs().expect("figures");
    assert!(accounts.for_copies > 8 * MIB && accounts.metadata.for_copies == 0, "{accounts}");
    let less = (before.blocks_available - after.blocks_available) * u64::from(after.block_size);
    assert!(less.abs_diff(2 * accounts.for_copies) <= 2 * SECTOR, "two copies: {less}, {accounts}");
    let kept = accounts.for_copies;
    drop(fill(&fs));
    let accounts = fs.space_stats().accounts;
    assert!(accounts.all_for_copies() >= kept, "no longer {kept}: {accounts}");
    assert!(accounts.unallocated >= 2 * accounts.for_copies, "{accounts}");
    remove_all(&fs, &dir_of(&fs.root()), 4);
    fs.close().expect("closed");
    check_volume(&device);
}

/// With plenty of space a snapshot is one commit, however many changes precede it. The root item
/// records the right size.
#[test]
fn a_snapshot_with_room_is_one_commit() {
    let device = volume(512);
    let fs = mount(&device, "rw,commit=300");
    let dir = fs.root().mkdir(b"dir", 0o755, 0, 0).expect("a folder");
    for number in 0..2000 {
        let file = dir.create(&name(number), NewInode::file(0o644)).expect("a file");
        file.write_at(0, &bytes(number as u8, 1)[..INLINE]).expect("written");
    }
    let commits = || fs.space_stats().engine.commits;
    let before = commits();
    drop(fs.root().snapshot(b"snapshot", TreeId::FS, true).expect("a snapshot"));
    assert_eq!(commits(), before + 1);
    assert_items_are_right(&fs);
    assert!(fs.space_stats().accounts.all_for_copies() > 3 * MIB);
}

/// Y1: a read-only snapshot does not become writable if there is no space for the headroom of its
/// shared nodes, and nothing changes. If there is space, the snapshot becomes writable, and all its
/// files can be deleted.
#[test]
fn subvolume_becomes_writable_only_with_room() {
    let device = volume(256);
    let fs = mount(&device, "rw,commit=300");
    let made = fs.root().create_subvolume(b"made", 0o755, 0, 0).expect("a subvolume");
    populate(&fs, &made);
    let tree = made.id().tree;
    let first = fs.root().snapshot(b"first", tree, true).expect("a snapshot");
    drop(fs.root().snapshot(b"second", tree, true).expect("a snapshot"));
    drop(made);
    fs.root().delete_subvolume(b"made").expect("deleted");
    wait_for_drops(&fs);
    // Shared nodes of read-only subvolumes cannot change, so the headroom is small. Most of the
    // headroom is for nodes that the filler alone uses.
    let kept = fs.space_stats().accounts.all_for_copies();
    assert!(kept < 2 * MIB, "{}", fs.space_stats().accounts);
    let more = fill_up(&fs, &fs.root(), "more");
    let opened = fs.set_subvolume_read_only(first.id().tree, false);
    let refused = opened.expect_err("there is no room");
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(refused.to_string().contains("delete_room=off"), "{refused}");
    first.create(b"new", NewInode::file(0o644)).map(drop).expect_err("it is as it was");
    for number in 0..more {
        fs.root().unlink(format!("more{number}").as_bytes()).expect("removed");
    }
    fs.root().unlink(b"more-data").expect("removed");
    fs.sync().expect("durable");
    fs.set_subvolume_read_only(first.id().tree, false).expect("there is room");
    // The headroom is kept at once, not only after the next commit.
    let kept = fs.space_stats().accounts.all_for_copies();
    assert!(kept > 8 * MIB, "{}", fs.space_stats().accounts);
    fill_up(&fs, &fs.root(), "again");
    remove_all(&fs, &dir_of(&first), 5);
    drop(first);
    fs.close().expect("closed");
    check_volume(&device);
}

/// `volume::device_space::D1`, `reserve::fits::F2`: data never gets space of future chunks that
/// metadata has reserved. A data reservation does not get this space directly. Commits do not
/// release this space either, when they recompute the headroom while space gets scarce.
#[test]
fn data_takes_nothing_that_was_reserved() {
    /// Length of an item: each leaf holds one item and stays nearly half empty.
    const BYTES: usize = 9000;
    const ITEMS: u32 = 500;
    for (class, rule) in [
        (ReserveClass::Normal, "off"),
        (ReserveClass::Normal, "keep"),
        (ReserveClass::Free, "keep"),
    ] {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(512 * MIB));
        let metadata = Some(buttress_format::Profile::Single);
        let options = MakeOptions { metadata, ..MakeOptions::default() };
        Filesystem::make(&*device, &options).expect("an empty volume");
        let fs = mount(&device, &format!("rw,commit=300,delete_room={rule}"));
        drop(file(&fs, "shared"));
        fs.sync().expect("durable");
        drop(fs.root().snapshot(b"before", TreeId::FS, true).expect("a snapshot"));
        // Make a file, so that there is something to commit.
        drop(file(&fs, "new"));
        let engine: &Arc<buttress_txn::Engine> = &fs.mount().engine;
        let cost = Cost::of(ITEMS, ITEMS * (BYTES as u32 + 25));
        let reservation = || engine.reserve_at_once(cost, class).expect("no failure");
        let reservations: Vec<_> = std::iter::from_fn(reservation).collect();
        assert!(reservations.len() > 10, "{}", fs.space_stats().accounts);
        let data: Vec<_> = std::iter::from_fn(|| engine.reserve_data(4 * MIB).ok()).collect();
        println!(
            "{class:?}, {rule}: {} and {}, {}",
            reservations.len(),
            data.len(),
            fs.space_stats().accounts
        );
        let payload = vec![7; BYTES];
        let mut number = 0;
        for reservation in reservations {
            let handle = engine.begin(reservation);
            for _ in 0..ITEMS {
                number += 1;
                let key = Key::new((1 << 40) + number, Kind::XATTR_ITEM, 0);
                handle.put(TreeId::FS, key, &payload);
            }
        }
        engine.commit().expect("a commit never runs out of space");
        drop(data);
    }
}
