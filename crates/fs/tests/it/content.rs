//! Content: reads return the written bytes, from memory, from the device, and after a remount.

use buttress_fs::{
    ErrorKind, FallocateMode, InodeFlags, MountOptions, NameError, NewInode, SetAttr,
};

use crate::checker::check;
use crate::volume::{content, file_with, memory, mount, mount_with, pattern};

/// Files of every awkward length have the written content in memory, after writeback, and after a
/// remount.
#[test]
fn lengths() {
    let device = memory(512);
    let lengths =
        [0, 1, 100, 2047, 2048, 2049, 4095, 4096, 4097, 8192, 100_000, 1 << 20, (3 << 20) + 17];
    let fs = mount(&device);
    for len in lengths {
        let file = file_with(&fs.root(), &format!("f{len}"), &pattern(len as u64, len));
        assert_eq!(content(&file), pattern(len as u64, len));
    }
    fs.sync().expect("sync");
    for len in lengths {
        let file = fs.resolve(format!("f{len}")).expect("file");
        assert_eq!(content(&file), pattern(len as u64, len), "after writeback, {len}");
    }
    fs.close().expect("closed");
    check(&device);
    let fs = mount(&device);
    for len in lengths {
        let file = fs.resolve(format!("f{len}")).expect("file");
        assert_eq!(content(&file), pattern(len as u64, len), "after a remount, {len}");
        let mut part = [0; 50];
        let from = (len / 2) as u64;
        let got = file.read_at(from, &mut part).expect("read");
        assert_eq!(part[..got], pattern(len as u64, len)[len / 2..len / 2 + got]);
    }
}

/// An inline file grows too large for the tree, and reads as zeros where nothing was written.
#[test]
fn inline_files_grow() {
    let device = memory(256);
    let fs = mount(&device);
    let file = file_with(&fs.root(), "grows", b"tiny");
    file.sync().expect("sync");
    file.write_at(10_000, b"far").expect("write");
    file.sync().expect("sync");
    let mut expected = vec![0; 10_003];
    expected[..4].copy_from_slice(b"tiny");
    expected[10_000..].copy_from_slice(b"far");
    assert_eq!(content(&file), expected);
    let up = file_with(&fs.root(), "up", b"tiny");
    up.sync().expect("sync");
    up.set_attr(&SetAttr { size: Some(9000), ..SetAttr::default() }).expect("grow");
    let down = file_with(&fs.root(), "down", b"tiny");
    down.sync().expect("sync");
    down.set_attr(&SetAttr { size: Some(2), ..SetAttr::default() }).expect("cut");
    assert_eq!(content(&down), b"ti");
    drop((file, up, down));
    fs.close().expect("closed");
    check(&device);
    let fs = mount(&device);
    assert_eq!(content(&fs.resolve("grows").expect("file")), expected);
    assert_eq!(content(&fs.resolve("down").expect("file")), b"ti");
    assert_eq!(content(&fs.resolve("up").expect("file"))[4..], [0; 8996]);
}

/// The bytes that a cut removed never appear again, however the file grows back.
#[test]
fn cutting_and_growing() {
    let device = memory(256);
    let fs = mount(&device);
    let file = file_with(&fs.root(), "file", &[0xaa; 50_000]);
    file.sync().expect("sync");
    for (cut, grown) in [(40_001, 45_000), (39_000, 39_100), (20_480, 30_000), (10, 20)] {
        file.set_attr(&SetAttr { size: Some(cut), ..SetAttr::default() }).expect("cut");
        file.set_attr(&SetAttr { size: Some(grown), ..SetAttr::default() }).expect("grow");
        let bytes = content(&file);
        assert!(bytes[cut as usize..].iter().all(|byte| *byte == 0), "{cut} {grown}");
        assert!(bytes[..cut as usize].iter().all(|byte| *byte == 0xaa || *byte == 0));
        fs.sync().expect("sync");
        check(&device);
        file.write_at(0, &[0xaa; 50_000]).expect("write");
        file.sync().expect("sync");
    }
    file.set_attr(&SetAttr { size: Some(0), ..SetAttr::default() }).expect("cut");
    assert_eq!(file.attr().blocks, 0);
    drop(file);
    fs.close().expect("closed");
    check(&device);
}

/// Preallocated space reads as zeros and is written in place. Punched holes give space back.
#[test]
fn allocating_and_punching() {
    let device = memory(256);
    let fs = mount(&device);
    let file = fs.root().create(b"file", NewInode::file(0o644)).expect("create");
    file.fallocate(0, 1 << 20, FallocateMode::Allocate { keep_size: false }).expect("allocate");
    assert_eq!(file.attr().size, 1 << 20);
    assert_eq!(file.attr().blocks, 2048);
    assert!(content(&file).iter().all(|byte| *byte == 0));
    let nothing = file.seek_data(0).expect_err("no data").kind();
    assert_eq!(nothing, ErrorKind::Name(NameError::NoSuchRange));
    file.write_at(8192, &[5; 4096]).expect("write");
    file.write_at(12288, &[6; 4096]).expect("write");
    file.write_at(100_000, &[7; 10]).expect("write");
    fs.sync().expect("sync");
    check(&device);
    assert_eq!(file.attr().blocks, 2048, "written in place");
    assert_eq!(file.seek_data(0).expect("data"), 8192);
    assert_eq!(file.seek_hole(8192).expect("hole"), 16384);
    file.fallocate(4096, 65536, FallocateMode::PunchHole).expect("punch");
    assert_eq!(file.attr().blocks, 2048 - 128);
    file.fallocate(99_000, 2000, FallocateMode::PunchHole).expect("punch");
    fs.sync().expect("sync");
    check(&device);
    assert!(content(&file).iter().all(|byte| *byte == 0));
    file.fallocate(2 << 20, 1 << 20, FallocateMode::Allocate { keep_size: true })
        .expect("allocate");
    assert_eq!(file.attr().size, 1 << 20);
    file.write_at(1 << 20, &[9; 3 << 20]).expect("write over both");
    let expected_end = content(&file)[1 << 20..].iter().all(|byte| *byte == 9);
    assert!(expected_end);
    drop(file);
    fs.close().expect("closed");
    check(&device);
    let fs = mount(&device);
    let bytes = content(&fs.resolve("file").expect("file"));
    assert_eq!(bytes.len(), 4 << 20);
    assert!(bytes[..1 << 20].iter().all(|byte| *byte == 0));
    assert!(bytes[1 << 20..].iter().all(|byte| *byte == 9));
}

/// A cut to the present length of a file gives back the space preallocated after its end, as in
/// Linux. Space preallocated before the end of the file stays.
#[test]
fn a_cut_to_the_same_length() {
    let device = memory(256);
    let fs = mount(&device);
    let file = file_with(&fs.root(), "file", &pattern(1, 70_000));
    file.sync().expect("sync");
    let blocks = file.attr().blocks;
    file.fallocate(0, 1 << 20, FallocateMode::Allocate { keep_size: true }).expect("allocate");
    assert_eq!(file.attr().blocks, 2048);
    let same = SetAttr { size: Some(70_000), ..SetAttr::default() };
    file.set_attr(&same).expect("cut");
    assert_eq!((file.attr().size, file.attr().blocks), (70_000, blocks));
    file.sync().expect("sync");
    assert_eq!(content(&file), pattern(1, 70_000));
    drop(file);
    fs.close().expect("closed");
    check(&device);
    let file = mount(&device).resolve("file").expect("file");
    assert_eq!((file.attr().blocks, content(&file)), (blocks, pattern(1, 70_000)));
}

/// The same file may get direct writes, which bypass the dirty map, and buffered writes.
#[test]
fn direct_writes() {
    let device = memory(256);
    let fs = mount(&device);
    let file = file_with(&fs.root(), "file", &pattern(1, 300_000));
    let block = pattern(2, 131_072);
    file.write_direct(4096, &block).expect("direct");
    file.write_direct(524_288, &block).expect("direct, behind a hole");
    let mut expected = pattern(1, 300_000);
    expected[4096..4096 + 131_072].copy_from_slice(&block);
    expected.resize(524_288, 0);
    expected.extend_from_slice(&block);
    assert_eq!(content(&file), expected);
    file.sync().expect("sync");
    assert_eq!(content(&file), expected);
    drop(file);
    fs.close().expect("closed");
    check(&device);
    let fs = mount(&device);
    assert_eq!(content(&fs.resolve("file").expect("file")), expected);
}

/// A write to a full volume fails with `ENOSPC`, and the volume works again once something is
/// removed.
#[test]
fn a_full_volume_recovers() {
    let device = memory(256);
    let fs = mount(&device);
    let root = fs.root();
    let file = root.create(b"big", NewInode::file(0o644)).expect("create");
    let block = pattern(3, 1 << 20);
    let mut written = 0u64;
    let refused = loop {
        match file.write_at(written, &block) {
            Ok(len) => written += len as u64,
            Err(error) => break error,
        }
        assert!(written < 512 << 20, "more than the device holds");
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(written > 32 << 20, "only {written} bytes fit");
    fs.sync().expect("what was taken can be written");
    check(&device);
    root.unlink(b"big").expect("unlink");
    drop(file);
    let again = file_with(&root, "again", &pattern(4, 16 << 20));
    assert_eq!(content(&again), pattern(4, 16 << 20));
    drop((again, root));
    fs.close().expect("closed");
    check(&device);
}

/// Without the feature `no-holes`, each hole has an item.
#[test]
fn holes_have_items_where_they_must() {
    let mut options = buttress_fs::MakeOptions::default();
    options.features.no_holes = false;
    options.features.block_group_tree = false;
    let device = crate::volume::memory_with(256, &options);
    let fs = mount(&device);
    let file = file_with(&fs.root(), "file", b"tiny");
    file.write_at(1_000_000, b"far").expect("write");
    fs.sync().expect("sync");
    check(&device);
    file.set_attr(&SetAttr { size: Some(3_000_000), ..SetAttr::default() }).expect("grow");
    fs.sync().expect("sync");
    check(&device);
    file.fallocate(0, 500_000, FallocateMode::Allocate { keep_size: false }).expect("allocate");
    file.fallocate(100_000, 300_000, FallocateMode::PunchHole).expect("punch");
    file.write_direct(2_097_152, &[1; 65536]).expect("direct");
    drop(file);
    fs.close().expect("closed");
    check(&device);
}

/// At the limit of dirty data, writers write data back, and memory does not grow.
#[test]
fn dirty_data_is_bounded() {
    let device = memory(1024);
    let options = MountOptions::parse("dirty=8m").expect("options");
    assert_eq!(options.dirty_bytes_max, 8 << 20);
    let fs = mount_with(&device, "dirty=8m");
    let file = fs.root().create(b"file", NewInode::file(0o644)).expect("create");
    let block = pattern(5, 1 << 20);
    for n in 0..128 {
        file.write_at(n << 20, &block).expect("write");
    }
    let mut part = vec![0; 1 << 20];
    for n in 0..128 {
        file.read_at(n << 20, &mut part).expect("read");
        assert!(part == block, "MiB {n}");
    }
    drop(file);
    fs.close().expect("closed");
    check(&device);
}

/// Tests N11.
/// On a full volume, preallocated ranges and files without copy-on-write can still be written. The
/// test writes whole sectors and parts of sectors, some of them a second time while the first write
/// is on its way.
#[test]
fn writes_in_place_need_no_space() {
    let device = memory(128);
    let fs = mount(&device);
    let reserved = fs.root().create(b"reserved", NewInode::file(0o644)).expect("a file");
    reserved.fallocate(0, 4 << 20, FallocateMode::Allocate { keep_size: false }).expect("space");
    let plain = fs.root().create(b"plain", NewInode::file(0o644)).expect("a file");
    let flags = Some(InodeFlags::NODATACOW);
    plain.set_attr(&SetAttr { flags, ..SetAttr::default() }).expect("flags");
    plain.write_at(0, &pattern(1, 4 << 20)).expect("write");
    fs.sync().expect("sync");
    let filler = fs.root().create(b"filler", NewInode::file(0o644)).expect("a file");
    let mut len = 0;
    for size in [1 << 20, 64 << 10, 4096] {
        while filler.write_at(len, &pattern(len, size)).is_ok() {
            len += size as u64;
        }
    }
    fs.sync().expect("what was accepted arrives");
    let mut expected = [vec![0; 4 << 20], pattern(1, 4 << 20)];
    for round in 0..3 {
        for (file, expected) in [&reserved, &plain].into_iter().zip(&mut expected) {
            for step in 0..12_u64 {
                let (from, size) = ((step * 331_777) as usize, 40_000 + 9_000 * round);
                let bytes = pattern(step + 100 * round as u64, size);
                // A part of the preallocated range that was written once is copied on write from
                // then on.
                if round > 0 && std::ptr::eq(file, &reserved) {
                    let kind = file.write_at(from as u64, &bytes).map_err(|error| error.kind());
                    assert!(matches!(kind, Ok(_) | Err(ErrorKind::NoSpace)), "{kind:?}");
                    if kind.is_err() {
                        continue;
                    }
                } else {
                    assert_eq!(file.write_at(from as u64, &bytes).expect("in place"), size);
                }
                expected[from..from + size].copy_from_slice(&bytes);
            }
        }
        assert!(content(&plain) == expected[1], "in memory, round {round}");
        fs.sync().expect("what was accepted arrives");
    }
    for (file, expected) in [&reserved, &plain].into_iter().zip(&expected) {
        assert!(content(file) == *expected, "after writeback");
    }
    drop((reserved, plain, filler));
    fs.close().expect("closed");
    check(&device);
    let fs = mount(&device);
    for (name, expected) in ["reserved", "plain"].into_iter().zip(&expected) {
        assert!(content(&fs.resolve(name).expect("file")) == *expected, "after a remount: {name}");
    }
}

/// Accepted writes succeed, for any number of extents, because they reserve their metadata.
#[test]
fn accepted_writes_arrive() {
    let device = memory(128);
    let fs = mount(&device);
    let mut files = Vec::new();
    let mut refused = 0;
    for number in 0..400_u64 {
        let Ok(file) = fs.root().create(format!("f{number}").as_bytes(), NewInode::file(0o644))
        else {
            refused += 1;
            continue;
        };
        // Every other sector is written, so that each is an extent.
        let mut written = 0;
        for sector in 0..200_u64 {
            if file.write_at(sector * 8192, &pattern(number * 1000 + sector, 4096)).is_err() {
                refused += 1;
                break;
            }
            written = sector + 1;
        }
        files.push((number, written));
        if number % 50 == 49 {
            fs.sync().expect("what was accepted arrives");
        }
    }
    assert!(refused > 0, "the volume is not meant to hold all");
    fs.sync().expect("what was accepted arrives");
    fs.close().expect("closed");
    check(&device);
    let fs = mount(&device);
    for (number, written) in files {
        let file = fs.resolve(format!("f{number}")).expect("file");
        for sector in 0..written {
            let mut bytes = [0; 4096];
            file.read_at(sector * 8192, &mut bytes).expect("read");
            assert!(bytes == *pattern(number * 1000 + sector, 4096), "{number} {sector}");
        }
    }
}

/// A file has more extents than one step removes. A cut to length zero removes all of them in
/// several steps.
#[test]
fn a_file_of_many_extents_is_cut() {
    let device = memory(512);
    let fs = mount_with(&device, "rw,commit=300");
    let file = fs.root().create(b"many", NewInode::file(0o644)).expect("a file");
    let bytes = pattern(3, 4096);
    for extent in 0..3000_u64 {
        // Holes lie between the extents, so that no two extents are joined.
        file.write_at(extent * 8192, &bytes).expect("room");
    }
    file.sync().expect("a sync");
    for size in [5000, 0] {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        file.set_attr(&set).expect("it is shorter");
        assert_eq!(
            content(&file),
            bytes
                .iter()
                .copied()
                .chain(std::iter::repeat(0))
                .take(size as usize)
                .collect::<Vec<_>>()
        );
    }
    drop(file);
    fs.close().expect("a close");
    check(&device);
}
