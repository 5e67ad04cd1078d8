//! fs-verity: trees of files of all lengths, refused changes, changed bytes on the device, and
//! power cuts while a tree is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use buttress_base::Rng;
use buttress_block::{Device, Error, MemoryDevice};
use buttress_fs::{
    ErrorKind, FallocateMode, Filesystem, Generation, HashKind, Inode, InodeFlags, Key, Kind,
    MakeOptions, NameError, NewInode, Searched, SetAttr, TreeId, VerityOptions, XattrFlags,
};
use buttress_sim::{Log, campaign};

use crate::checker::{check, expect_cut_sound};
use crate::devices::{Hook, Hooked};
use crate::volume::{content, copy, file_with, list, memory, mount, mount_with, pattern};

fn options(hash: HashKind, block_size: u32, salt: &[u8]) -> VerityOptions {
    VerityOptions { hash, block_size, salt: salt.to_vec(), signature: Vec::new() }
}

/// A digest computed from the definition, level by level.
fn digest(options: &VerityOptions, data: &[u8]) -> Vec<u8> {
    let (kind, block) = (options.hash, options.block_size as usize);
    let hash = |bytes: &[u8]| {
        let mut whole = options.salt.clone();
        whole.resize(whole.len().next_multiple_of(2 * kind.size()), 0);
        whole.extend_from_slice(bytes);
        whole.resize(whole.len() + block - bytes.len(), 0);
        kind.digest(&whole)
    };
    let mut level = data.to_vec();
    while level.len() > block {
        level = level.chunks(block).flat_map(hash).collect();
    }
    let mut root = if data.is_empty() { Vec::new() } else { hash(&level) };
    root.resize(64, 0);
    let mut descriptor = vec![1, kind as u8, block.trailing_zeros() as u8];
    descriptor.push(options.salt.len() as u8);
    descriptor.extend_from_slice(&[0; 4]);
    descriptor.extend_from_slice(&(data.len() as u64).to_le_bytes());
    descriptor.extend_from_slice(&root);
    descriptor.extend_from_slice(&options.salt);
    descriptor.resize(256, 0);
    kind.digest(&descriptor)
}

fn refused(done: buttress_fs::Result<impl Sized>) -> bool {
    let kind = done.map(drop).map_err(|error| error.kind());
    kind == Err(ErrorKind::Name(NameError::NotPermitted))
}

/// How many items of trees and descriptors a subvolume has after the last commit.
fn items(fs: &Filesystem, tree: TreeId) -> usize {
    let mut count = 0;
    let keys = (Key::MIN, Key::MAX);
    let searched = Searched { tree, keys, generations: (Generation(0), Generation(u64::MAX)) };
    fs.search(searched, &mut |item| {
        let kinds = [Kind::VERITY_DESC_ITEM, Kind::VERITY_MERKLE_ITEM];
        count += usize::from(kinds.contains(&item.key.kind));
        true
    })
    .expect("a search");
    count
}

/// Files of all interesting lengths have the digests of the definition, now and after a mount, and
/// read as before: whole, in odd pieces, and past the end.
#[test]
fn files_of_all_lengths_have_the_right_digest() {
    let device = memory(256);
    let sizes = [0, 1, 100, 2048, 4095, 4096, 4097, 8192, 128 * 4096, 128 * 4096 + 1, 3_000_000];
    let ways = [
        options(HashKind::Sha256, 4096, b""),
        options(HashKind::Sha256, 1024, b"pepper"),
        options(HashKind::Sha512, 2048, &[7; 32]),
    ];
    let mut made = Vec::new();
    let fs = mount_with(&device, "compress=zstd");
    for (number, size) in sizes.into_iter().enumerate() {
        for (index, way) in ways.iter().enumerate() {
            // Some of the content can be compressed, and some files have a hole.
            let mut data = pattern(number as u64, size);
            data[size / 3..size / 2].fill(b'x');
            let name = format!("{size}-{index}");
            let file = file_with(&fs.root(), &name, &data);
            if index == 1 {
                file.sync().expect("a sync");
            }
            let descriptor = file.enable_verity(way).expect("it is enabled");
            assert_eq!(descriptor.digest(), digest(way, &data), "{name}");
            assert!(content(&file) == data, "{name}");
            made.push((name, way.clone(), data));
        }
    }
    fs.close().expect("a close");
    check(&device);
    for options in ["ro", "rw,page_cache=0"] {
        let fs = mount_with(&device, options);
        assert!(fs.superblock().compat_ro.names().contains(&"verity".to_owned()));
        for (name, way, data) in &made {
            let file = fs.root().lookup(name.as_bytes()).expect("a file");
            let known = file.verity().expect("readable").expect("enabled");
            assert_eq!(known.digest(), digest(way, data), "{name}");
            assert!(file.attr().flags & InodeFlags::RO_VERITY != 0);
            assert!(content(&file) == *data, "{name}");
            let mut rng = Rng::new(5);
            for _ in 0..40 {
                let at = rng.below(data.len() as u64 + 10);
                let mut buf = vec![0; rng.below(9000) as usize];
                let len = if rng.below(2) == 0 {
                    file.read_at(at, &mut buf).expect("a read")
                } else {
                    file.read_direct(at, &mut buf).expect("a read")
                };
                let from = (at as usize).min(data.len());
                assert_eq!(len, buf.len().min(data.len() - from), "{name} at {at}");
                assert!(buf[..len] == data[from..from + len], "{name} at {at}");
            }
        }
        fs.close().expect("a close");
    }
}

/// The content never changes, and everything else can. A second tree and wrong options are refused.
#[test]
fn content_is_fixed_and_nothing_else() {
    let device = memory(256);
    let fs = mount(&device);
    let root = fs.root();
    let data = pattern(1, 50_000);
    let (file, other) = (file_with(&root, "file", &data), file_with(&root, "other", &data));
    let way = VerityOptions::default();
    let wrong = [
        VerityOptions { block_size: 512, ..way.clone() },
        VerityOptions { block_size: 8192, ..way.clone() },
        VerityOptions { block_size: 3000, ..way.clone() },
        VerityOptions { salt: vec![1; 33], ..way.clone() },
        VerityOptions { signature: vec![1; 16_129], ..way.clone() },
    ];
    for wrong in wrong {
        let kind = file.enable_verity(&wrong).map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::Invalid), "{wrong:?}");
    }
    assert!(root.enable_verity(&way).is_err(), "a directory");
    let signed = VerityOptions { signature: pattern(2, 16_128), ..way.clone() };
    let made = file.enable_verity(&signed).expect("it is enabled");
    assert_eq!(made.digest(), digest(&way, &data), "a signature is no part of the digest");
    let again = file.enable_verity(&way).map_err(|error| error.kind());
    assert_eq!(again, Err(ErrorKind::Name(NameError::Exists)));

    assert!(refused(file.write_at(0, b"x")) && refused(file.write_at(60_000, b"x")));
    assert!(refused(file.write_direct(0, &[0; 4096])));
    assert!(refused(file.preserve_times().write_at(0, b"x")));
    for size in [0, 50_000, 60_000] {
        assert!(refused(file.set_attr(&SetAttr { size: Some(size), ..SetAttr::default() })));
    }
    for mode in [
        FallocateMode::PunchHole,
        FallocateMode::Allocate { keep_size: true },
        FallocateMode::ZeroRange { keep_size: true },
    ] {
        assert!(refused(file.fallocate(0, 4096, mode)), "{mode:?}");
    }
    assert!(refused(other.clone_range(0, &file, 0, 4096)));
    assert!(refused(other.copy_range(0, &file, 0, 100)));
    file.clone_range(0, &other, 0, 4096).expect("it may be a source");

    file.set_attr(&SetAttr { mode: Some(0o600), uid: Some(7), ..SetAttr::default() }).expect("it");
    file.set_xattr(b"user.x", b"y", XattrFlags::default()).expect("it may have attributes");
    root.link(&file, b"second").expect("a name");
    root.unlink(b"file").expect("a removal");
    fs.root().snapshot(b"snapshot", TreeId::FS, true).expect("a snapshot");
    file.sync().expect("a sync");
    fs.sync().expect("a sync");
    drop((file, other));
    fs.close().expect("a close");
    check(&device);
    let fs = mount(&device);
    for place in ["second", "snapshot/second"] {
        let file = fs.resolve(place).expect("a file");
        let known = file.verity().expect("readable").expect("enabled");
        assert_eq!((known.digest(), known.signature), (digest(&way, &data), pattern(2, 16_128)));
        assert!(content(&file) == data, "{place}");
    }
    fs.root().unlink(b"second").expect("a removal");
    fs.root().delete_subvolume(b"snapshot").expect("a removal");
    fs.close().expect("a close");
    check(&device);
}

/// The log has no trees, so an fsync after `enable` commits. A crash then leaves the whole tree.
#[test]
fn fsync_keeps_the_tree() {
    let base = MemoryDevice::new(256 << 20);
    Filesystem::make(&base, &MakeOptions::default()).expect("a volume");
    let shared: Arc<dyn Device> = Arc::new(base.fork());
    let fs = mount(&shared);
    let data = pattern(3, 100_000);
    let file = file_with(&fs.root(), "file", &data);
    file.sync().expect("a sync");
    file.enable_verity(&VerityOptions::default()).expect("it is enabled");
    file.sync().expect("a sync");
    let crashed: Arc<dyn Device> = Arc::new(copy(&*shared));
    expect_cut_sound(&crashed, "after the sync");
    let fs = mount(&crashed);
    let there = fs.root().lookup(b"file").expect("a file");
    assert!(there.verity().expect("readable").is_some());
    assert!(content(&there) == data);
    drop(there);
    fs.close().expect("a close");
    check(&crashed);
}

/// The places on a device where some bytes are.
fn find(device: &dyn Device, wanted: &[u8]) -> Vec<u64> {
    let (mut found, mut block) = (Vec::new(), vec![0; 1 << 20]);
    for start in (0..device.len()).step_by(block.len()) {
        device.read_at(start, &mut block).expect("memory");
        for (index, sector) in block.chunks(4096).enumerate() {
            if sector.starts_with(wanted) {
                found.push(start + index as u64 * 4096);
            }
        }
    }
    found
}

/// A changed byte of content is found at each place of a file, by each way to read, also where no
/// checksum finds it. Other blocks are still read.
#[test]
fn every_changed_byte_of_content_is_found() {
    let device = memory(256);
    let fs = mount(&device);
    let data = pattern(9, 4096 * 2 + 1500);
    let file = fs.root().create(b"file", NewInode::file(0o644)).expect("a file");
    file.leave_out_checksums().expect("it is empty");
    file.write_at(0, &data).expect("a write");
    file.enable_verity(&options(HashKind::Sha256, 1024, b"s")).expect("it is enabled");
    drop(file);
    fs.close().expect("a close");
    let fs = mount_with(&device, "rw,page_cache=0");
    let file = fs.root().lookup(b"file").expect("a file");
    let places: Vec<u64> = data.chunks(4096).map(|part| find(&*device, &part[..64])[0]).collect();
    let mut buf = vec![0; data.len()];
    for at in 0..data.len() {
        let place = places[at / 4096] + at as u64 % 4096;
        let flip = |by: u8| {
            let mut byte = [0];
            device.read_at(place, &mut byte).expect("memory");
            device.write_at(place, &[byte[0] ^ by]).expect("memory");
        };
        flip(1 << (at % 8));
        let error = file.read_direct(0, &mut buf).expect_err("a changed byte");
        assert_eq!(error.kind(), ErrorKind::Io);
        let block = at - at % 1024;
        assert!(error.to_string().contains(&format!("the block at {block} ")), "{error}");
        assert!(file.read_at(at as u64, &mut buf[..1]).is_err(), "byte {at}");
        let next = (block + 1024) % data.len();
        assert_eq!(file.read_at(next as u64, &mut buf[..1]).expect("another block"), 1);
        flip(1 << (at % 8));
    }
    assert_eq!(file.read_at(0, &mut buf).expect("all is well again"), data.len());
    assert!(buf == data);
    // A byte past the end of the file is no content.
    let behind = places[2] + 1600;
    device.write_at(behind, b"x").expect("memory");
    assert_eq!(file.read_at(0, &mut buf).expect("it reads"), data.len());
}

/// Power is cut at every point of `enable`, while commits and a snapshot come in between. A file
/// then has the whole tree, or it is as it was and the next mount removes the parts.
#[test]
fn power_is_cut_while_a_tree_is_made() {
    let data = pattern(77, 4 << 20);
    let way = options(HashKind::Sha512, 1024, b"salt");
    let log = recorded_tree(&data, &way);
    let (shown, parts, whole) = check_cuts(&log, &data, &digest(&way, &data));
    assert!(shown > 40 && whole > 3, "{shown} states, {whole} whole");
    assert!(parts > 3, "{parts} states of {shown} have parts of the tree");
}

/// Holds each long read until two commits have ended: one of them has all that was put before.
#[derive(Debug)]
struct Between {
    commits: Arc<AtomicU64>,
    is_on: Arc<AtomicBool>,
}

impl Hook for Between {
    fn read(&self, below: &dyn Device, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let (seen, begun) = (self.commits.load(Ordering::Acquire), Instant::now());
        while buf.len() >= 64 << 10
            && self.is_on.load(Ordering::Acquire)
            && self.commits.load(Ordering::Acquire) < seen + 2
        {
            assert!(begun.elapsed() < Duration::from_secs(100), "no commits come");
            std::thread::yield_now();
        }
        below.read_at(offset, buf)
    }
}

/// Ends the commits, also when the work beside them panics.
struct Ends<'f>(&'f AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Records how the tree of a file is made, with commits in between, and as much work after that.
fn recorded_tree(data: &[u8], way: &VerityOptions) -> Arc<Log> {
    let base = MemoryDevice::new(256 << 20);
    let make = MakeOptions { nodesize: 4096, ..MakeOptions::default() };
    Filesystem::make(&base, &make).expect("a volume");
    let log = Log::new();
    let recorder = log.device(&base, 512);
    let (commits, is_on) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let hook = Between { commits: Arc::clone(&commits), is_on: Arc::clone(&is_on) };
    let below: Arc<dyn Device> = recorder.clone();
    let device: Arc<dyn Device> = Hooked::new(&below, hook);
    let fs = mount(&device);
    drop(file_with(&fs.root(), "file", data));
    fs.sync().expect("a sync");
    log.start(&[&recorder]);
    is_on.store(true, Ordering::Release);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ends = Ends(&is_on);
            while is_on.load(Ordering::Acquire) {
                fs.commit().expect("a commit");
                if commits.fetch_add(1, Ordering::AcqRel) == 3 {
                    fs.root().snapshot(b"middle", TreeId::FS, false).expect("a snapshot");
                }
            }
        });
        let _ends = Ends(&is_on);
        let file = fs.root().lookup(b"file").expect("a file");
        file.enable_verity(way).expect("it is enabled");
    });
    fs.sync().expect("a sync");
    log.mark(1);
    // Power is cut as often in this part, however many commits came before.
    let enabled = log.len();
    let mut number = 0;
    while log.len() < enabled + enabled / 3 {
        drop(file_with(&fs.root(), &format!("later {number}"), b"content"));
        fs.commit().expect("a commit");
        number += 1;
    }
    fs.close().expect("a close");
    log
}

/// Returns the number of states, of those with parts of the tree, and of those with all of it.
fn check_cuts(log: &Log, data: &[u8], digest: &[u8]) -> (usize, usize, usize) {
    let stride = (log.len() / 60).max(1);
    let (mut parts, mut whole) = (0, 0);
    let is_right = |file: &Inode, when: &str| -> bool {
        let known = file.verity().expect("readable");
        if let Some(known) = &known {
            assert_eq!(known.digest(), digest, "{when}");
        }
        assert!(content(file) == data, "{when}");
        known.is_some()
    };
    let shown = log.crashes(&mut Rng::new(3 + campaign::round()), 1, stride, |crash| {
        let when = format!("event {} draw {}", crash.event, crash.draw);
        let device: Arc<dyn Device> = Arc::new(crash.devices[0].fork());
        expect_cut_sound(&device, &when);
        let found = items(&mount_with(&device, "ro"), TreeId::FS);
        let fs = mount(&device);
        let has_tree = is_right(&fs.root().lookup(b"file").expect("a file"), &when);
        assert!(crash.mark.is_none() || has_tree, "{when}: the sync made it durable");
        parts += usize::from(!has_tree && found > 0);
        whole += usize::from(has_tree);
        if list(&fs.root()).contains(&"middle".to_owned()) {
            is_right(&fs.resolve("middle/file").expect("a file"), &when);
        }
        fs.close().expect("a close");
        expect_cut_sound(&device, &when);
        // Opening the subvolume has queued the inode, and the close has waited for its removal.
        let fs = mount(&device);
        let file = fs.root().lookup(b"file").expect("a file");
        if !has_tree {
            file.write_at(5, b"new").expect("it can be written");
            file.enable_verity(&VerityOptions::default()).expect("it is enabled");
        }
        drop(file);
        fs.close().expect("a close");
        expect_cut_sound(&device, &when);
    });
    campaign::count("states", shown);
    (shown, parts, whole)
}
