//! Crafted items that no file system writes, stored with right checksums. Reads refuse them and
//! never panic.

use buttress_format::{Body, Compression, FileExtent, Generation, Region};

use super::*;

/// Sectors of the crafted extents.
const SECTORS: u64 = 16;

/// Replaces the extent item of a file's first bytes.
fn put(fs: &Filesystem, file: &Inode, extent: &FileExtent) {
    let engine = &fs.mount().engine;
    let key = Key::new(file.id().ino.0, Kind::EXTENT_DATA, 0);
    let handle =
        engine.begin(engine.reserve(Cost::of(2, 200), ReserveClass::Normal).expect("space"));
    handle.put(file.id().tree, key, extent.to_bytes());
}

/// An extent with an end past every device. Every call that reads, writes or shares this extent
/// fails, for every part of the extent, although the addresses do not overflow.
#[test]
fn an_extent_that_ends_behind_every_device_is_refused() {
    let bytes_max = SECTORS * SECTOR;
    // The last extent before addresses overflow, one that begins at `1 << 63`, past every device,
    // and one that ends at `1 << 63`.
    let starts = [u64::MAX - SECTOR + 1 - bytes_max, 1 << 63, (1 << 63) - bytes_max];
    let kinds = [
        (Compression::None, Body::Regular as fn(Region) -> Body),
        (Compression::Zlib, Body::Regular),
        (Compression::None, Body::Prealloc),
    ];
    for (start, (compression, body)) in starts.into_iter().flat_map(|s| kinds.map(|k| (s, k))) {
        let device = volume(128);
        let fs = mount(&device, "rw");
        let target = file(&fs, "target");
        target.write_at(0, &bytes(1, SECTORS)).expect("a write");
        fs.sync().expect("durable");
        let region =
            Region { disk: Logical(start), disk_len: bytes_max, offset: 0, len: bytes_max };
        let extent = FileExtent {
            generation: Generation(1),
            ram_bytes: bytes_max,
            compression,
            body: body(region),
        };
        put(&fs, &target, &extent);
        fs.sync().expect("durable");
        drop(target);
        drop(fs);

        let fs = mount(&device, "rw");
        let (target, other) = (fs.resolve("target").expect("the file"), file(&fs, "other"));
        let when = format!("{extent:?}");
        let is_corrupt = |outcome: Result<(), crate::Error>| {
            assert_eq!(outcome.expect_err(&when).kind(), ErrorKind::Corrupt, "{when}");
        };
        for sector in 0..SECTORS {
            is_corrupt(target.read_at(sector * SECTOR, &mut [0; 100]).map(drop));
            is_corrupt(target.write_direct(sector * SECTOR, &bytes(2, 1)).map(drop));
        }
        is_corrupt(target.clone_range(0, &other, 0, 0));
        is_corrupt(target.write_at(100, &[1; 10]).map(drop));
        assert_eq!(fs.read_only_reason(), None, "{when}");
    }
}
