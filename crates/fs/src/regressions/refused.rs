//! N3: no metadata is left when data that was written in place becomes visible. The writer gets an
//! error. Its reservation and its right to the group are given back. Nothing else changes.

use buttress_format::InodeItem;
use buttress_txn::View;

use super::guards::{drain_all, drain_waits_for_a_writer, first_byte};
use super::*;
use crate::gated_device::GatedDevice;
use freeing::{crowd, use_all};

/// The smallest metadata request that finishing an ordered extent makes.
const LEAST: Cost = Cost::of(1, 160);

/// Writes that consist of this byte stop before the device until the test lets them pass.
const MARK: u8 = 0xD1;

/// Sectors of the files.
const SECTORS: u64 = 32;

/// Files that are written in place. In `cut` each sector is an extent, and the inode item has
/// length zero, as after a crash. `mixed` has extents, holes and preallocated space. `known` is
/// written in one piece. The test overwrites `known` once, so that the file remembers that it may
/// be written in place.
fn targets(device: &Arc<dyn Device>) {
    let fs = mount(device, "rw,commit=300");
    let cut = nocow(&fs, "cut");
    let mut order: Vec<_> = (0..SECTORS).collect();
    Rng::new(1).shuffle(&mut order);
    for sector in order {
        cut.write_direct(sector * SECTOR, &bytes(1, 1)).expect("there is room");
    }
    let mixed = nocow(&fs, "mixed");
    mixed.write_direct(0, &bytes(2, 8)).expect("there is room");
    let allocate = FallocateMode::Allocate { keep_size: false };
    mixed.fallocate(16 * SECTOR, 8 * SECTOR, allocate).expect("there is room");
    mixed
        .set_attr(&SetAttr { size: Some(SECTORS * SECTOR), ..SetAttr::default() })
        .expect("longer");
    let known = nocow(&fs, "known");
    known.write_direct(0, &bytes(3, SECTORS)).expect("there is room");
    fs.sync().expect("durable");
    let id = cut.id();
    drop((cut, mixed, known));
    let key = Key::new(id.ino.0, Kind::INODE_ITEM, 0);
    let item = fs.view().get(id.tree, &key).expect("it reads").expect("an item");
    let mut item = InodeItem::parse(&item).expect("an item");
    item.size = 0;
    let engine = &fs.mount().engine;
    let handle = engine.begin(engine.reserve(LEAST, ReserveClass::Normal).expect("space"));
    handle.put(id.tree, key, item.to_bytes());
    drop(handle);
    fs.close().expect("closed");
}

/// Uses up all metadata, so that none is left for finishing ordered extents. The function rewrites
/// nodes until a reservation fails, and a reader keeps the old nodes.
fn use_up(fs: &Filesystem, files: &[Inode]) -> Arc<View> {
    let engine = &fs.mount().engine;
    let old = fs.view();
    loop {
        let reservations = freeing::all_at_once(engine, ReserveClass::Free);
        if reservations.is_empty() {
            break;
        }
        use_all(fs, reservations, files);
        engine.commit().expect("a commit never runs out of space");
    }
    let mut files = files.iter().cycle();
    while let Some(reservation) =
        engine.reserve_at_once(LEAST, ReserveClass::Free).expect("it works")
    {
        freeing::rewrite(fs, reservation, &[files.next().expect("some")]);
        engine.commit().expect("a commit never runs out of space");
    }
    old
}

/// Checks that no data is dirty, in writeback or reserved. Then checks that drains end at once, and
/// that a drain beside a write in place waits for that write.
fn is_at_rest(fs: &Filesystem, file: &Inode, when: &str) {
    let data = &fs.mount().files;
    assert_eq!((data.counters().dirty_bytes(), data.counters().ordered_bytes()), (0, 0), "{when}");
    assert_eq!((pending(fs), unreserved(fs)), ((0, 0), 0), "{when}");
    drain_all(fs, when);
    drain_waits_for_a_writer(fs, first_byte(fs, file), when);
}

/// Checks that each sector has old or new content. A sector that was not written in place must have
/// old content. Returns the number of new sectors.
fn mixture(found: &[u8], old: &[u8], new: &[u8], in_place: impl Fn(u64) -> bool) -> u64 {
    let part = |bytes: &[u8], sector: u64| {
        let at = (sector * SECTOR) as usize;
        bytes.get(at..at + SECTOR as usize).map_or_else(|| vec![0; SECTOR as usize], <[u8]>::to_vec)
    };
    let mut count = 0;
    for sector in 0..found.len() as u64 / SECTOR {
        let now = part(found, sector);
        let is_new = now == part(new, sector);
        assert!(is_new && in_place(sector) || now == part(old, sector), "sector {sector}");
        count += u64::from(is_new);
    }
    count
}

/// Tests N3.
/// The test makes a buffered write. The data of this write is on its way when other operations take
/// the last metadata, and the reservation of the write is too small. The test also makes direct
/// writes, which reserve nothing. One direct write covers extents and holes, and one goes to a file
/// that remembers that it may be written in place.
#[test]
fn metadata_is_refused_when_it_finishes() {
    let below = volume(128);
    targets(&below);
    let gates = GatedDevice::new(Arc::clone(&below), &[MARK]);
    let device: Arc<dyn Device> = Arc::clone(&gates) as _;
    let fs = mount(&device, "rw,commit=300");
    let [cut, mixed, known] =
        ["cut", "mixed", "known"].map(|name| fs.resolve(name).expect("the file"));
    known.write_direct(0, &bytes(4, SECTORS)).expect("in place");
    let mut files = crowd(&fs);
    for number in files.len() / 2..files.len() {
        fs.root().unlink(format!("f{number}").as_bytes()).expect("removed");
    }
    files.truncate(files.len() / 2);
    let filler = fs.resolve("filler").expect("the file");
    let size = Some(filler.attr().size - MIB);
    filler.set_attr(&SetAttr { size, ..SetAttr::default() }).expect("shrinking always works");
    drop(filler);
    fs.sync().expect("durable");
    let used = || fs.space_stats().accounts.data.used;
    let (before, places) = (used(), [&cut, &mixed, &known].map(|file| first_byte(&fs, file)));

    let new = vec![MARK; (SECTORS * SECTOR) as usize];
    cut.write_at(0, &new).expect("there is room");
    let old = std::thread::scope(|scope| {
        let finishes = scope.spawn(|| cut.flush_data());
        gates.gate(MARK).wait_until_reached();
        let old = use_up(&fs, &files);
        gates.gate(MARK).open();
        let kind = finishes.join().expect("no panic").expect_err("it is refused").kind();
        assert_eq!(kind, ErrorKind::NoSpace, "buffered");
        old
    });
    assert!(fs.space_stats().shortfalls > 0, "it was reserved enough");
    is_at_rest(&fs, &cut, "buffered");
    for file in [&mixed, &known] {
        let kind = file.write_direct(0, &bytes(9, SECTORS)).expect_err("it is refused").kind();
        assert_eq!(kind, ErrorKind::NoSpace, "direct");
        is_at_rest(&fs, file, "direct");
    }
    assert_eq!(used(), before, "what was allocated beside was given back");
    let seen = [&cut, &mixed, &known].map(content);
    mixture(&seen[0], &bytes(1, 1).repeat(SECTORS as usize), &new, |_| true);
    mixture(&seen[1], &bytes(2, 8), &bytes(9, SECTORS), |sector| sector < 8);
    mixture(&seen[2], &bytes(4, SECTORS), &bytes(9, SECTORS), |_| true);

    // After the reader drops its view there is space. No sync has reported the loss yet.
    drop(old);
    assert_eq!(cut.sync().expect_err("told once").kind(), ErrorKind::NoSpace);
    assert_eq!(fs.sync().expect_err("told once").kind(), ErrorKind::NoSpace);
    fs.sync().expect("durable");
    assert_eq!(fs.read_only_reason(), None);
    assert!([&cut, &mixed, &known].map(content) == seen, "it has changed since");
    for (file, place) in [&cut, &mixed, &known].into_iter().zip(places) {
        file.write_direct(0, &bytes(20, SECTORS)).expect("there is room");
        assert_eq!(first_byte(&fs, file), place, "elsewhere");
        is_at_rest(&fs, file, "again");
    }
    drop((cut, mixed, known, files));
    fs.close().expect("closed");
    check_volume(&below);
    let fs = mount(&below, "ro");
    for name in ["cut", "mixed", "known"] {
        let file = fs.resolve(name).expect("the file");
        assert!(content(&file) == bytes(20, SECTORS), "{name}");
    }
}
