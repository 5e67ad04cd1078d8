//! Block groups that are read after the opening. Reads come before the groups are known, requests
//! wait for the groups, and the device has faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_block::{Device, Error, Operation};
use buttress_format::Profile;
use buttress_fs::{ErrorKind, Filesystem, MakeOptions, MountOptions};

use crate::checker::expect_sound;
use crate::devices::{Hook, Hooked};
use crate::volume::{content, file_with, memory_with, mount, mount_with, pattern};

const MIB: usize = 1 << 20;

/// A volume of many chunks, with files in several chunks. With nodes of 4 KiB the chunk tree has
/// more than one leaf.
fn many_chunks() -> Arc<dyn Device> {
    let options = MakeOptions {
        nodesize: 4096,
        metadata: Some(Profile::Single),
        seed: Some(1),
        ..MakeOptions::default()
    };
    let device = memory_with(64 << 10, &options);
    let fs = mount(&device);
    for index in 0..50 {
        let file = file_with(&fs.root(), &format!("far {index}"), b"");
        let keep = buttress_fs::FallocateMode::Allocate { keep_size: true };
        file.fallocate(0, 1000 << 20, keep).expect("space");
        file.write_at(0, &pattern(index, MIB / 4)).expect("a write");
    }
    fs.close().expect("durable");
    device
}

fn quiet(options: &str) -> MountOptions {
    let mut options = MountOptions::parse(options).expect("options");
    options.background = false;
    options
}

fn known_chunks(fs: &Filesystem) -> u64 {
    fs.space_stats().engine.chunks
}

/// A read of a file loads only the chunks that the file needs. A request for figures loads all
/// chunks.
#[test]
fn chunks_are_asked_for_one_by_one() {
    let device = many_chunks();
    let all = known_chunks(&mount_with(&device, "ro,bg_read=first"));
    assert!(all > 45, "{all} chunks, in more than a leaf");
    // The mount looks up single chunks even without an option, because the chunk tree has two
    // levels.
    let fs = Filesystem::open(vec![Arc::clone(&device)], quiet("ro")).expect("a mount");
    let opened = known_chunks(&fs);
    assert!(opened < 8, "{opened} of {all} chunks are known");
    let read = |index: u64| {
        let file = fs.root().lookup(format!("far {index}").as_bytes()).expect("a file");
        assert!(content(&file) == pattern(index, MIB / 4), "file {index}");
    };
    read(7);
    assert!(known_chunks(&fs) <= opened + 3, "one file needs few chunks");
    (0..50).for_each(read);
    fs.statfs().expect("figures");
    assert_eq!(known_chunks(&fs), all);
    fs.close().expect("nothing to write");
}

/// Many threads read while one thread needs all groups. Every reader gets the content of its files.
#[test]
fn readers_and_writers_come_at_once() {
    let device = many_chunks();
    for round in 0..6 {
        let fs = mount_with(&device, "rw,bg_read=behind");
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let fs = &fs;
                scope.spawn(move || {
                    for index in (0..50).skip(thread as usize * 3) {
                        let name = format!("far {index}");
                        let file = fs.root().lookup(name.as_bytes()).expect("a file");
                        assert!(content(&file) == pattern(index, MIB / 4), "file {index}");
                    }
                    if thread < 2 {
                        let name = format!("new {round} {thread}");
                        file_with(&fs.root(), &name, &pattern(thread, MIB))
                            .sync()
                            .expect("durable");
                    }
                });
            }
        });
        fs.close().expect("durable");
        expect_sound(&device);
    }
    let fs = mount(&device);
    for round in 0..6 {
        for thread in 0..2_u64 {
            let name = format!("new {round} {thread}");
            let file = fs.root().lookup(name.as_bytes()).expect("a file");
            assert!(content(&file) == pattern(thread, MIB));
        }
    }
    fs.close().expect("durable");
    expect_sound(&device);
}

/// Opening and closing a volume writes nothing, whether the groups are known by then or not.
#[test]
fn an_opening_alone_writes_nothing() {
    let device = many_chunks();
    let generation = |device: &Arc<dyn Device>| {
        let fs = mount_with(device, "ro");
        let generation = fs.info().expect("figures").generation;
        fs.close().expect("nothing to write");
        generation
    };
    let before = generation(&device);
    for background in [false, true] {
        let mut options = quiet("rw,bg_read=behind");
        options.background = background;
        let fs = Filesystem::open(vec![Arc::clone(&device)], options).expect("a mount");
        fs.sync().expect("nothing to write");
        fs.root().sync().expect("nothing to write");
        fs.close().expect("nothing to write");
    }
    assert_eq!(generation(&device), before);
}

/// A device that fails reads while its flag is set.
#[derive(Debug, Default)]
struct Failing(AtomicBool);

impl Hook for Failing {
    fn read(&self, below: &dyn Device, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        match self.0.load(Ordering::SeqCst) {
            true => Err(Error::Io {
                device: below.name(),
                operation: Operation::Read,
                offset,
                len: buf.len() as u64,
                source: std::io::Error::other("it is away"),
            }),
            false => below.read_at(offset, buf),
        }
    }
}

/// Groups that cannot be read make the volume read-only, with the reason. Files can still be read,
/// and nothing is written.
#[test]
fn groups_that_cannot_be_read() {
    let device = many_chunks();
    let hooked = Hooked::new(&device, Failing::default());
    let fs = Filesystem::open(vec![hooked.clone()], quiet("rw")).expect("a mount");
    let read = |index: u64| {
        let file = fs.root().lookup(format!("far {index}").as_bytes()).expect("a file");
        assert!(content(&file) == pattern(index, MIB / 4), "file {index}");
    };
    read(1);
    hooked.hook.0.store(true, Ordering::SeqCst);
    let refused = fs.root().mkdir(b"new", 0o755, 0, 0).expect_err("nothing is known of space");
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
    let why = fs.read_only_reason().expect("a reason");
    assert!(!why.is_empty());
    hooked.hook.0.store(false, Ordering::SeqCst);
    // The mount still looks up the chunks of these files.
    (0..50).for_each(read);
    let again = fs.root().mkdir(b"new", 0o755, 0, 0).expect_err("it stays so");
    assert_eq!(again.kind(), ErrorKind::ReadOnly);
    assert_eq!(fs.read_only_reason(), Some(why));
    fs.close().expect("there is nothing to write");
    expect_sound(&device);
}
