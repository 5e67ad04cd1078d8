//! P4: what is promised to who frees space is promised beside others who do, and is there when all of them come.

use buttress_txn::MetaReservation;

use super::*;
use crate::XattrFlags;

/// More than any full volume has for them.
const FREEING_MAX: usize = 2000;
const ITEMS: u32 = 8;

/// A volume without room for metadata or a chunk, and its small files.
fn crowded(device: &Arc<dyn Device>) -> (Filesystem, Vec<Inode>) {
    let fs = mount(device, "rw,commit=300");
    drop(fill(&fs));
    let mut files = Vec::new();
    while let Ok(made) = fs.root().create(format!("f{}", files.len()).as_bytes(), 0o644, 0, 0, 0) {
        let _ = made.set_xattr(b"user.large", &[1; 3000], XattrFlags::default());
        files.push(made);
        if files.len() % 100 == 0 {
            fs.sync().expect("durable");
        }
    }
    fs.sync().expect("durable");
    (fs, files)
}

/// Writes inode items anew as they are, of files that lie far apart.
fn rewrite(fs: &Filesystem, promise: MetaReservation, files: &[&Inode]) {
    let engine = &fs.shared().engine;
    let items: Vec<_> = files
        .iter()
        .map(|file| {
            let key = Key::new(file.id().ino.0, Kind::INODE_ITEM, 0);
            let item = fs.view().get(file.id().tree, &key).expect("it reads").expect("an item");
            (file.id().tree, key, item)
        })
        .collect();
    let handle = engine.begin(promise);
    items.iter().for_each(|(tree, key, item)| handle.put(*tree, *key, &**item));
}

/// As many as are promised space at once, all of whom then use what they were promised, to the last item.
#[test]
fn all_who_free_find_what_they_were_promised() {
    let device = volume(128);
    let (fs, files) = crowded(&device);
    let engine = Arc::clone(&fs.shared().engine);
    let cost = Cost::of(ITEMS, 2000);
    let promises: Vec<_> = std::iter::from_fn(|| {
        engine.reserve_at_once(cost, Urgency::Frees).expect("nothing failed")
    })
    .take(FREEING_MAX)
    .collect();
    let before = fs.space_stats().accounts;
    eprintln!("{} promised at once, {} files, {before}", promises.len(), files.len());
    assert!(promises.len() > 1, "not even two: {before}");
    let parts = promises.len() * ITEMS as usize;
    let mut far_apart = (0..parts).map(|part| &files[part * 7919 % files.len()]);
    let promised = promises.len();
    for promise in promises {
        let files: Vec<_> = far_apart.by_ref().take(ITEMS as usize).collect();
        rewrite(&fs, promise, &files);
    }
    engine.commit().expect("a commit never runs out of space");
    assert!(promised < FREEING_MAX, "everybody was promised the same: {before}");
    drop(files);
    fs.close().expect("closed");
    judge(&device);
}

/// Who frees waits for others who do, and is served when they are done; one who holds his for long does not have him refused.
#[test]
fn who_frees_waits_for_others() {
    let device = volume(128);
    let (fs, files) = crowded(&device);
    let engine = Arc::clone(&fs.shared().engine);
    let cost = Cost::of(ITEMS, 2000);
    let ask = || engine.reserve_at_once(cost, Urgency::Frees).expect("nothing failed");
    let mut promises: Vec<_> = std::iter::from_fn(ask).take(FREEING_MAX).collect();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| engine.reserve(cost, Urgency::Frees).expect("room in the end"));
        while !engine.waits(buttress_txn::SpaceKind::Metadata) {
            std::thread::yield_now();
        }
        promises.pop();
        drop(waiter.join().expect("no panic"));
        assert!(!promises.is_empty());
    });
    while let Some(more) = ask() {
        promises.push(more);
    }
    drop(engine.reserve(cost, Urgency::Frees).expect("a delete always succeeds"));
    drop(promises);
    drop(files);
    fs.close().expect("closed");
    judge(&device);
}
