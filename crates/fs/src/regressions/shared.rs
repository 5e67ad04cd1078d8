//! The first change of a leaf that a snapshot shares adds references to the extent tree. The change
//! adds one reference for every extent of the leaf, and each reference may lie in another leaf of
//! the extent tree.

use buttress_txn::Engine;

use super::freeing::{all_at_once, rewrite};
use super::*;
use crate::{NewInode, XattrFlags};

/// The number of files, and of extents in each file. The extents lie at random addresses.
const FILES: usize = 160;
const EACH: usize = 500;

/// A volume with files that share extents in random order, and a snapshot of it. The volume has no
/// space left for metadata or a chunk.
fn crowded(device: &Arc<dyn Device>) -> (Filesystem, Vec<Inode>, usize) {
    let fs = mount(device, "rw,commit=300");
    let pool = file(&fs, "pool");
    let count = FILES * EACH;
    let place = |number: usize| number as u64 * 2 * SECTOR;
    for number in 0..count {
        pool.write_at(place(number), &[number as u8; SECTOR as usize]).expect("a write");
    }
    fs.sync().expect("durable");
    let mut order: Vec<_> = (0..count).collect();
    Rng::new(1).shuffle(&mut order);
    let files: Vec<_> = (0..FILES).map(|number| file(&fs, &format!("f{number}"))).collect();
    for (number, from) in order.into_iter().enumerate() {
        let target = place(number % EACH);
        pool.clone_range(place(from), &files[number / EACH], target, SECTOR).expect("a clone");
    }
    drop(fs.root().snapshot(b"before", TreeId::FS, true).expect("a snapshot"));
    fs.sync().expect("durable");
    drop(fill(&fs));
    let mut more = 0;
    while let Ok(made) = fs.root().create(format!("more{more}").as_bytes(), NewInode::file(0o644)) {
        let _ = made.set_xattr(b"user.large", &[1; 3000], XattrFlags::default());
        more += 1;
        if more % 100 == 0 {
            fs.sync().expect("durable");
        }
    }
    fs.sync().expect("durable");
    (fs, files, more)
}

/// Every operation that has reserved space for a change of a shared leaf finds that space. Then
/// every file and the snapshot can be deleted. A delete is the first change of some leaves, and
/// takes space at first.
#[test]
fn the_first_change_of_shared_leaves_finds_room() {
    let device = volume(1024);
    let (fs, files, more) = crowded(&device);
    for number in more * 7 / 8..more {
        fs.root().unlink(format!("more{number}").as_bytes()).expect("removed");
    }
    fs.sync().expect("durable");
    let engine: &Arc<Engine> = &fs.mount().engine;
    let mut reservations = all_at_once(engine, ReserveClass::Normal);
    assert!(!reservations.is_empty(), "{}", fs.space_stats().accounts);
    reservations.extend(all_at_once(engine, ReserveClass::Free));
    println!("{} reservations, {}", reservations.len(), fs.space_stats().accounts);
    let mut rest = files.iter().cycle();
    for reservation in reservations {
        let some: Vec<_> = rest.by_ref().take(8).collect();
        rewrite(&fs, reservation, &some);
    }
    engine.commit().expect("a commit never runs out of space");
    for (number, file) in files.into_iter().enumerate() {
        drop(file);
        let name = format!("f{number}");
        let removed = fs.root().unlink(name.as_bytes());
        removed.unwrap_or_else(|error| panic!("{number}: {error}, {}", fs.space_stats().accounts));
    }
    // The extents of the files are freed, too, while the snapshot still refers to all of them.
    wait_for(&fs, "removed", || !has_orphans(&fs));
    assert_eq!(fs.read_only_reason(), None);
    fs.root().delete_subvolume(b"before").expect("a delete always succeeds");
    wait_for(&fs, "dropped", || fs.dying_subvolumes().expect("a list").is_empty());
    fs.close().expect("closed");
    check_volume(&device);
}
