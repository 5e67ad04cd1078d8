//! What the inode cache of old kernels left in subvolumes: no kernel since 5.11 removes it.

use buttress_format::{Body, Extent, FileExtent, Ino};
use buttress_txn::DataRef;

use super::*;

/// Items that refer to the cache's extent. One handle does not delete all of them.
const ITEMS: u64 = 200;

/// Gives the data of a file to a cache as an old kernel has it, and removes the file.
fn leave_cache(fs: &Filesystem, file: &Inode, tree: TreeId) -> Extent {
    let engine = &fs.mount().engine;
    let view = fs.view();
    let ino = file.attr().id.ino.0;
    let item = view.get(TreeId::FS, &Key::new(ino, Kind::EXTENT_DATA, 0)).expect("it reads");
    let mut item = FileExtent::parse(&item.expect("an extent")).expect("an item");
    let inode = view.get(TreeId::FS, &Key::new(ino, Kind::INODE_ITEM, 0)).expect("it reads");
    let inode = inode.expect("an item");
    drop(view);
    let Body::Regular(region) = item.body.clone() else { panic!("{item:?}") };
    let extent = Extent::new(region.disk, region.disk_len);
    let cost = Cost { items: ITEMS + 2, commit_items: 3 * ITEMS, bytes: 1 << 16 };
    let handle = engine.begin(engine.reserve(cost, ReserveClass::Free).expect("room"));
    handle.put(tree, Key::new(ids::FREE_INO, Kind::INODE_ITEM, 0), &inode[..]);
    handle.put(tree, Key::new(ids::FREE_SPACE_V1, Kind(0), 0), vec![0; 41]);
    for number in 0..ITEMS {
        let at = number * SECTOR;
        if let Body::Regular(region) = &mut item.body {
            (region.offset, region.len) = (at, SECTOR);
        }
        handle.put(tree, Key::new(ids::FREE_INO, Kind::EXTENT_DATA, at), item.to_bytes());
        let user = DataRef { root: tree, ino: Ino(ids::FREE_INO), offset: 0 };
        handle.add_data_ref(extent, user);
    }
    drop(handle);
    extent
}

/// The items of the cache in a subvolume.
fn left(fs: &Filesystem, tree: TreeId) -> usize {
    let key = |of, kind| Key::new(of, Kind(kind), if kind == 0 { 0 } else { u64::MAX });
    fs.view().range(tree, key(ids::FREE_INO, 0), key(ids::FREE_SPACE_V1, u8::MAX)).count()
}

/// The items go in every subvolume, also in one that can only be read, and their data becomes free.
#[test]
fn inode_caches_are_removed() {
    let device = volume(128);
    let fs = mount(&device, "rw");
    let target = file(&fs, "target");
    target.write_at(0, &bytes(1, ITEMS)).expect("a write");
    fs.sync().expect("durable");
    let used = |fs: &Filesystem| fs.space_stats().accounts.data.used;
    let before = used(&fs);
    let extent = leave_cache(&fs, &target, TreeId::FS);
    fs.sync().expect("durable");
    drop(fs.root().snapshot(b"snapshot", TreeId::FS, true).expect("a snapshot"));
    drop(target);
    fs.root().unlink(b"target").expect("removed");
    fs.sync().expect("durable");
    let snapshot = TreeId(256);
    assert_eq!([left(&fs, TreeId::FS), left(&fs, snapshot)], [ITEMS as usize + 2; 2]);

    let mut cleared = Vec::new();
    let items = fs.clear_inode_caches(|tree| cleared.push(tree)).expect("cleared");
    assert_eq!(items, 2 * (ITEMS + 2));
    assert_eq!(cleared, [TreeId::FS, snapshot]);
    assert_eq!([left(&fs, TreeId::FS), left(&fs, snapshot)], [0; 2]);
    assert_eq!(used(&fs), before, "the file of the snapshot still has {extent}");
    assert_eq!(fs.clear_inode_caches(|_| ()).expect("nothing is left"), 0);
    fs.root().delete_subvolume(b"snapshot").expect("deleted");
    wait_for(&fs, "without the snapshot", || {
        fs.sync().expect("durable");
        used(&fs) + extent.len <= before
    });
    fs.close().expect("a close");
    check_volume(&device);
}
