//! Compression and sharing: all guarantees except the content, which the test `model` checks.

use buttress_format::BlockGroupFlags;
use buttress_fs::{
    Codec, Defragment, ErrorKind, Inode, InodeFlags, NameError, NewInode, SetAttr, XattrFlags,
};

use crate::checker::check;
use crate::volume::{content, file_with, memory, mount, mount_with, pattern};

const PROPERTY: &[u8] = b"btrfs.compression";

fn text(len: usize) -> Vec<u8> {
    b"all work and no play makes jack a dull boy\n".iter().copied().cycle().take(len).collect()
}

fn property(inode: &Inode, value: &[u8]) -> Result<(), ErrorKind> {
    inode.set_xattr(PROPERTY, value, XattrFlags::default()).map_err(|error| error.kind())
}

/// Bytes of data in use.
fn used(fs: &buttress_fs::Filesystem) -> u64 {
    fs.sync().expect("sync");
    fs.sync().expect("sync");
    let kinds = fs.info().expect("info").usage.kinds;
    kinds.iter().filter(|kind| kind.flags.has(BlockGroupFlags::DATA)).map(|kind| kind.used).sum()
}

/// With every compression and kind of size, reads return the content, even after a remount without
/// options. The data takes less space.
#[test]
fn every_compression() {
    let device = memory(512);
    let sizes = [1, 100, 2047, 3000, 4095, 4096, 4097, 131_072, 131_073, 300_000, 1_000_003];
    let ways = ["zlib", "zlib:9", "lzo", "zstd", "zstd:15", "zstd:-5"];
    for way in ways {
        let fs = mount_with(&device, &format!("compress={way}"));
        let before = used(&fs);
        for size in sizes {
            file_with(&fs.root(), &format!("{way}-{size}"), &text(size));
        }
        let large = used(&fs) - before;
        assert!(large < 600_000, "{way} packs nothing: {large}");
        fs.close().expect("closed");
        check(&device);
    }
    let fs = mount(&device);
    for way in ways {
        for size in sizes {
            let file = fs.root().lookup(format!("{way}-{size}").as_bytes()).expect("there");
            assert!(content(&file) == text(size), "{way}, {size} bytes");
            let (middle, mut part) = (size / 2, vec![0; 5000]);
            let got = file.read_at(middle as u64, &mut part).expect("a read");
            assert!(part[..got] == text(size)[middle..(middle + 5000).min(size)]);
        }
    }
    let features = fs.info().expect("info").superblock.incompat.names();
    assert!(features.contains(&"compress-lzo".to_owned()));
    assert!(features.contains(&"compress-zstd".to_owned()));
}

/// Overwriting, cutting and punching compressed data changes only the requested bytes.
#[test]
fn changing_what_is_compressed() {
    let device = memory(256);
    let fs = mount_with(&device, "compress=zstd");
    let mut expected = text(500_000);
    let file = file_with(&fs.root(), "file", &expected);
    file.sync().expect("sync");
    file.write_at(130_000, &[7; 3000]).expect("a write");
    expected[130_000..133_000].fill(7);
    file.sync().expect("sync");
    let hole = buttress_fs::FallocateMode::PunchHole;
    file.fallocate(200_000, 50_000, hole).expect("a hole");
    expected[200_000..250_000].fill(0);
    file.set_attr(&SetAttr { size: Some(400_001), ..SetAttr::default() }).expect("cut");
    file.set_attr(&SetAttr { size: Some(450_000), ..SetAttr::default() }).expect("grow");
    expected.truncate(400_001);
    expected.resize(450_000, 0);
    assert!(content(&file) == expected);
    drop(file);
    fs.close().expect("closed");
    check(&device);
    let fs = mount(&device);
    assert!(content(&fs.resolve("file").expect("there")) == expected);
}

/// Random data stays uncompressed. A file that did not get smaller gets the flag `NOCOMPRESS`,
/// unless the mount forces compression.
#[test]
fn noise_is_left_alone() {
    let device = memory(256);
    let fs = mount_with(&device, "compress=zstd");
    let file = file_with(&fs.root(), "noise", &pattern(3, 300_000));
    file.sync().expect("sync");
    assert_eq!(file.attr().flags & InodeFlags::COMPRESS, 0);
    // Random data that looks like text in the places of the samples.
    let mut sly = pattern(4, 300_000);
    for chunk in sly.chunks_mut(256) {
        let len = chunk.len().min(16);
        chunk[..len].iter_mut().for_each(|byte| *byte = b'0' + *byte % 60);
    }
    let sly = file_with(&fs.root(), "sly", &sly);
    sly.sync().expect("sync");
    assert_ne!(sly.attr().flags & InodeFlags::NOCOMPRESS, 0);
    drop((file, sly));
    fs.close().expect("closed");
    check(&device);
}

/// New inodes inherit the property of their directory, with its flag. A change of flags sets and
/// removes the property.
#[test]
fn properties_and_flags() {
    let device = memory(256);
    let fs = mount(&device);
    let dir = fs.root().mkdir(b"dir", 0o755, 0, 0).expect("a directory");
    property(&dir, b"zstd:5").expect("set");
    let file = file_with(&dir, "file", &text(200_000));
    assert_eq!(file.xattr(PROPERTY).expect("inherited"), b"zstd:5");
    assert_ne!(file.attr().flags & InodeFlags::COMPRESS, 0);
    file.sync().expect("sync");
    assert!(file.attr().blocks * 512 >= 200_000, "blocks count what is shown");
    assert_eq!(property(&file, b"gzip"), Err(ErrorKind::Invalid));
    assert_eq!(property(&file, b""), Ok(()));
    assert_eq!(file.attr().flags & InodeFlags::COMPRESS, 0);
    file.set_flags(InodeFlags::COMPRESS).expect("flags");
    assert_eq!(file.xattr(PROPERTY).expect("by the flag"), b"zlib");
    file.set_flags(InodeFlags::NOCOMPRESS).expect("flags");
    assert!(file.xattr(PROPERTY).is_err());
    let both = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;
    assert_eq!(file.set_flags(both).map_err(|e| e.kind()), Err(ErrorKind::Invalid));
    let nocow = dir.create(b"nocow", NewInode::file(0o644)).expect("a file");
    property(&nocow, b"").expect("taken away");
    nocow.set_flags(InodeFlags::NODATACOW).expect("flags");
    assert_eq!(property(&nocow, b"zstd"), Err(ErrorKind::Invalid));
    drop((file, nocow, dir));
    fs.close().expect("closed");
    check(&device);
    let fs = mount(&device);
    let file = file_with(&fs.resolve("dir").expect("there"), "later", &text(200_000));
    assert_eq!(file.xattr(PROPERTY).expect("inherited"), b"zstd:5");
}

/// An immutable file cannot be changed in any way. An append-only file can grow.
#[test]
fn immutable_and_growing() {
    let fs = mount(&memory(256));
    let root = fs.root();
    let file = file_with(&root, "file", b"content");
    let refused = |done: buttress_fs::Result<()>| {
        assert_eq!(done.expect_err("refused").kind(), ErrorKind::Name(NameError::NotPermitted));
    };
    let cut = SetAttr { size: Some(1), ..SetAttr::default() };
    file.set_flags(InodeFlags::APPEND).expect("flags");
    refused(file.write_at(0, b"x").map(drop));
    refused(file.set_attr(&cut).map(drop));
    refused(root.unlink(b"file"));
    assert_eq!(file.write_at(7, b" and more").expect("it grows"), 9);
    file.set_flags(InodeFlags::IMMUTABLE).expect("flags");
    refused(file.write_at(16, b"x").map(drop));
    refused(root.link(&file, b"other"));
    refused(root.rename(b"file", &root, b"new", buttress_fs::RenameFlags::default()));
    refused(file.set_xattr(b"user.a", b"b", XattrFlags::default()));
    refused(file.set_attr(&SetAttr { mode: Some(0), ..SetAttr::default() }).map(drop));
    file.set_flags(0).expect("flags");
    root.set_flags(InodeFlags::IMMUTABLE).expect("flags");
    refused(root.create(b"new", NewInode::file(0o644)).map(drop));
    refused(root.unlink(b"file"));
    root.set_flags(InodeFlags::APPEND).expect("flags");
    root.create(b"new", NewInode::file(0o644)).expect("a directory that grows");
    refused(root.unlink(b"file"));
    root.set_flags(0).expect("flags");
    root.unlink(b"file").expect("gone");
    drop((file, root));
    fs.close().expect("closed");
}

/// A clone takes no space, and a write to one of the two files, in place or not, does not change
/// the other.
#[test]
fn clones_are_independent() {
    for options in ["rw", "nodatacow", "compress=zstd"] {
        let device = memory(512);
        let fs = mount_with(&device, options);
        let root = fs.root();
        let old = if options == "rw" { pattern(1, 20 << 20) } else { text((20 << 20) + 17) };
        let first = file_with(&root, "first", &old);
        let before = used(&fs);
        let second = root.create(b"second", NewInode::file(0o644)).expect("a file");
        first.clone_range(0, &second, 0, 0).expect("cloned");
        assert!(used(&fs) <= before, "{options}: a clone takes space");
        assert!(content(&second) == old);
        first.write_at(5000, &[1; 9000]).expect("a write");
        second.write_at(1 << 20, &[2; 200_000]).expect("a write");
        first.sync().expect("sync");
        let mut expected = old.clone();
        expected[1 << 20..(1 << 20) + 200_000].fill(2);
        assert!(content(&second) == expected, "{options}");
        root.unlink(b"first").expect("gone");
        drop(first);
        fs.sync().expect("sync");
        assert!(content(&second) == expected, "{options}");
        drop((second, root));
        fs.close().expect("closed");
        check(&device);
        let fs = mount(&device);
        assert!(content(&fs.resolve("second").expect("there")) == expected, "{options}");
    }
}

/// Preallocated space is shared before anything was written to it. Each of the two files then has
/// its own data.
#[test]
fn shared_preallocation() {
    let device = memory(256);
    let fs = mount(&device);
    let root = fs.root();
    let first = root.create(b"first", NewInode::file(0o644)).expect("a file");
    let all = buttress_fs::FallocateMode::Allocate { keep_size: false };
    first.fallocate(0, 1 << 20, all).expect("allocated");
    let second = root.create(b"second", NewInode::file(0o644)).expect("a file");
    first.clone_range(0, &second, 0, 0).expect("cloned");
    first.write_at(0, &[1; 100_000]).expect("a write");
    second.write_at(50_000, &[2; 100_000]).expect("a write");
    fs.sync().expect("sync");
    let mut expected = vec![0; 1 << 20];
    expected[..100_000].fill(1);
    assert!(content(&first) == expected);
    expected.fill(0);
    expected[50_000..150_000].fill(2);
    assert!(content(&second) == expected);
    drop((first, second, root));
    fs.close().expect("closed");
    check(&device);
}

/// A file in a thousand pieces becomes a file in few pieces. Files that shared its extents keep
/// their content.
#[test]
fn defragmenting() {
    let device = memory(512);
    let fs = mount(&device);
    let root = fs.root();
    let old = text(4 << 20);
    let file = root.create(b"file", NewInode::file(0o644)).expect("a file");
    for at in (0..1024).map(|n| (n * 389 % 1024) * 4096) {
        file.write_at(at as u64, &old[at..at + 4096]).expect("a write");
        file.flush_data().expect("written");
    }
    let shared = root.create(b"shared", NewInode::file(0o644)).expect("a file");
    file.clone_range(0, &shared, 0, 0).expect("cloned");
    let how = Defragment::default();
    assert!(file.defragment(0..u64::MAX, &how).expect("written anew") > 3 << 20);
    assert_eq!(file.defragment(0..u64::MAX, &how).expect("nothing to do"), 0);
    assert!(content(&file) == old && content(&shared) == old);
    let zstd = Defragment { codec: Codec::parse("zstd"), ..how };
    let before = used(&fs);
    assert_eq!(file.defragment(0..u64::MAX, &zstd).expect("packed"), 4 << 20);
    assert!(used(&fs) + (3 << 20) < before, "what is packed takes less");
    assert_eq!(file.defragment(0..u64::MAX, &zstd).expect("nothing to do"), 0);
    assert!(content(&file) == old && content(&shared) == old);
    drop((file, shared, root));
    fs.close().expect("closed");
    check(&device);
    let fs = mount(&device);
    assert!(content(&fs.resolve("file").expect("there")) == old);
}

/// A clone never changes, even if its source is written in place during the cloning and afterwards.
#[test]
fn clones_are_cuts() {
    const PAGES: u64 = 256;
    let device = memory(512);
    let fs = mount_with(&device, "nodatacow");
    let root = fs.root();
    let file = file_with(&root, "file", &[0; PAGES as usize * 4096]);
    file.sync().expect("sync");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let cuts = std::thread::scope(|scope| {
        for writer in 0..3u64 {
            let (file, stop) = (&file, &stop);
            scope.spawn(move || {
                let mut rng = buttress_base::Rng::new(writer);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let at = rng.below(PAGES) * 4096 + rng.below(2) * rng.below(4000);
                    let data = pattern(rng.next_u64(), 96);
                    match rng.below(3) {
                        0 => file.write_at(at, &data).expect("a write"),
                        1 => file.write_direct(at / 4096 * 4096, &[7; 4096]).expect("a write"),
                        _ => file.flush_data().map(|()| 0).expect("written back"),
                    };
                }
            });
        }
        let mut cuts = Vec::new();
        for number in 0..24 {
            let cut = root.create(format!("cut{number}").as_bytes(), NewInode::file(0o644));
            let cut = cut.expect("a file");
            file.clone_range(0, &cut, 0, 0).expect("cloned");
            let seen = content(&cut);
            // Also write to every third clone.
            if number % 3 == 0 {
                cut.write_at(4096 * number, &[9; 5000]).expect("a write");
            }
            let seen = if number % 3 == 0 { content(&cut) } else { seen };
            if number % 4 == 0 {
                fs.sync().expect("sync");
            }
            cuts.push(seen);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        cuts
    });
    let last = content(&file);
    drop((file, root));
    let verify = |fs: &buttress_fs::Filesystem| {
        for (number, seen) in cuts.iter().enumerate() {
            let cut = fs.resolve(format!("cut{number}")).expect("there");
            assert!(content(&cut) == *seen, "clone {number} changed");
        }
        assert!(content(&fs.resolve("file").expect("there")) == last);
    };
    verify(&fs);
    fs.close().expect("closed");
    check(&device);
    verify(&mount(&device));
}

/// A writer that fills a volume, with compressible or random data, gets the error while writing,
/// and nothing is lost.
#[test]
fn a_full_volume_loses_nothing() {
    for options in ["compress=zstd:1", "compress-force=lzo"] {
        let device = memory(128);
        let fs = mount_with(&device, options);
        let root = fs.root();
        let mut kept: Vec<(String, Vec<u8>)> = Vec::new();
        for number in 0..2000u64 {
            let len = 40_000 + (number * 7919 % 300_000) as usize;
            let mut data = if number % 5 == 0 { text(len) } else { pattern(number, len) };
            if number % 3 == 0 {
                data[..len / 2].fill(number as u8);
            }
            let name = format!("f{number}");
            let made = root.create(name.as_bytes(), NewInode::file(0o644));
            let written = made.and_then(|file| {
                file.write_at(0, &data)?;
                // Half of the data again, as a clone.
                let half = len as u64 / 8192 * 4096;
                file.clone_range(0, &file, (len as u64).next_multiple_of(4096), half)?;
                Ok(file.attr().size)
            });
            match written {
                Ok(size) => {
                    let mut whole = data.clone();
                    whole.resize(len.next_multiple_of(4096), 0);
                    whole.extend_from_slice(&data[..len / 8192 * 4096]);
                    assert_eq!(size, whole.len() as u64);
                    kept.push((name, whole));
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace);
                    break;
                }
            }
        }
        assert!(kept.len() > 200, "{options}: full after {} files", kept.len());
        fs.sync().expect("nothing was lost");
        drop(root);
        fs.close().expect("closed");
        check(&device);
        let fs = mount(&device);
        for (name, whole) in &kept {
            let file = fs.resolve(name).expect("there");
            assert!(content(&file) == *whole, "{options}: {name}");
        }
    }
}
