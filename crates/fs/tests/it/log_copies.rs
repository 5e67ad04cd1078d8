//! The second copies of a log's nodes, which are written when no fsync changes the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use buttress_base::{AlignedBuf, Rng};
use buttress_block::{Device, Error};
use buttress_format::{Kind, Profile, RootItem};
use buttress_fs::{Filesystem, MakeOptions};
use buttress_tree::{Expect, Geometry, Node, NodePtr, Store};
use buttress_volume::{OpenOptions, Volume};

use crate::checker::check;
use crate::devices::{Hook, Hooked};
use crate::volume::{content, copy, file_with, memory, memory_with, mount, mount_with};

/// The first copy of a log's node, and the bytes in the place of the second copy.
struct Logged {
    first: Node,
    second: AlignedBuf,
    ptr: NodePtr,
}

struct Disk {
    volume: Arc<Volume>,
    geometry: Geometry,
}

impl Disk {
    /// The nodes of the log on a device that no thread writes at the moment.
    fn log(device: &Arc<dyn Device>) -> (Self, Vec<Logged>) {
        let (volume, superblock) =
            Volume::open(vec![Arc::clone(device)], OpenOptions::default()).expect("a volume");
        let geometry = Geometry::of(&superblock);
        let volume = Arc::new(volume);
        let store = Store::new(Arc::clone(&volume), geometry, 0);
        buttress_tree::boot::load_chunks(&store, &superblock).expect("chunks");
        let disk = Self { volume, geometry };
        let root = NodePtr {
            logical: superblock.log_root,
            generation: superblock.generation.next(),
            level: superblock.log_root_level,
        };
        let mut found = Vec::new();
        if superblock.log_root.0 != 0 {
            disk.walk(Expect::root(root), &mut found);
        }
        (disk, found)
    }

    fn bytes(&self, ptr: NodePtr, mirror: u32) -> AlignedBuf {
        let mut buf = AlignedBuf::zeroed(self.geometry.nodesize as usize);
        self.volume.read_mirror(ptr.logical, &mut buf, mirror).expect("memory");
        buf
    }

    fn walk(&self, expect: Expect, found: &mut Vec<Logged>) {
        let ptr = expect.ptr;
        let first = Node::verify(self.bytes(ptr, 0), &self.geometry, &expect, true)
            .unwrap_or_else(|why| panic!("{}: the first copy is there: {why}", ptr.logical));
        for slot in 0..first.len() {
            if first.level() > 0 {
                self.walk(first.expect_child(slot), found);
            } else if first.key(slot).kind == Kind::ROOT_ITEM {
                let item = RootItem::parse(first.item(slot)).expect("a root");
                let root = NodePtr {
                    logical: item.bytenr,
                    generation: item.generation,
                    level: item.level,
                };
                self.walk(Expect::root(root), found);
            }
        }
        found.push(Logged { first, second: self.bytes(ptr, 1), ptr });
    }

    /// K2: the place of the second copy holds the node, or bytes that no pointer to the node
    /// accepts.
    fn second_is_same(&self, logged: &Logged) -> bool {
        let is_same = *logged.second == *logged.first.bytes();
        let other = AlignedBuf::copy_of(&logged.second);
        let passes = Node::verify(other, &self.geometry, &Expect::root(logged.ptr), true).is_ok();
        assert!(is_same || !passes, "{}: an old node of this log", logged.ptr.logical);
        is_same
    }
}

/// Waits for a condition that threads of a mount bring about.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        sleep(Duration::from_millis(10));
    }
}

fn owed(device: &Arc<dyn Device>) -> usize {
    let (disk, log) = Disk::log(&(Arc::new(copy(&**device)) as _));
    log.iter().filter(|logged| !disk.second_is_same(logged)).count()
}

/// Notes a flush after all nodes of a log have both copies.
#[derive(Debug, Default)]
struct Rests(AtomicBool);

impl Hook for Rests {
    fn flush(&self, below: &dyn Device) -> Result<(), Error> {
        let (disk, log) = Disk::log(&(Arc::new(copy(below)) as _));
        let has_both = !log.is_empty() && log.iter().all(|logged| disk.second_is_same(logged));
        below.flush()?;
        self.0.fetch_or(has_both, Ordering::SeqCst);
        Ok(())
    }
}

/// K1: an fsync waits for the first copy only. Once no fsync changes a log any more, the log soon
/// has two flushed copies. Either copy is enough after a crash.
#[test]
fn a_log_that_rests_has_both() {
    let device = memory(128);
    let hooked = Hooked::new(&device, Rests::default());
    let fs = mount_with(&(Arc::clone(&hooked) as Arc<dyn Device>), "commit=300");
    let data = vec![7; 9000];
    let file = file_with(&fs.root(), "file", &data);
    fs.sync().expect("durable");
    file.write_at(100, &[8; 5000]).expect("into memory");
    file.sync().expect("durable");
    wait_until("a second copy", || fs.sync_stats().deferred_copies > 0 && owed(&device) == 0);
    wait_until("a flush", || hooked.hook.0.load(Ordering::SeqCst));

    let (_, log) = Disk::log(&(Arc::new(copy(&*device)) as _));
    assert!(log.len() >= 2, "a log of {} nodes", log.len());
    for damaged in 0..2 {
        let copied = copy(&*device);
        for logged in &log {
            let node = logged.first.bytes();
            let mut buf = vec![0; node.len()];
            let mut places = (0..copied.len() - node.len() as u64).step_by(4096).filter(|at| {
                copied.read_at(*at, &mut buf).expect("memory");
                buf == node
            });
            let at = places.nth(damaged).expect("two copies");
            copied.write_at(at + 200, &[0xFF; 64]).expect("memory");
        }
        let copied: Arc<dyn Device> = Arc::new(copied);
        let after = mount(&copied);
        let found = content(&after.root().lookup(b"file").expect("a file"));
        assert!(found[100..5100].iter().all(|byte| *byte == 8), "copy {damaged} damaged");
        after.close().expect("a clean end");
        check(&copied);
    }
    drop(file);
    fs.close().expect("a clean end");
    check(&device);
}

/// K2 holds while places are used again and again, and nodes get their second copies.
#[test]
fn a_second_copy_is_never_an_older_node() {
    let device = memory(256);
    let fs = mount_with(&device, "commit=300");
    let files: Vec<_> =
        (0..4).map(|n| file_with(&fs.root(), &format!("file{n}"), &[n; 4096])).collect();
    fs.sync().expect("durable");
    let mut rng = Rng::new(3);
    let mut single = 0;
    for round in 0..40 {
        for _ in 0..30 {
            let file = &files[rng.below(4) as usize];
            file.write_at(rng.below(4000) * 8192, &[round; 4096]).expect("into memory");
            file.sync().expect("durable");
        }
        single += owed(&device);
        if round % 4 == 0 {
            // Nodes that no thread changes during this time get their second copies.
            sleep(Duration::from_millis(250));
        }
    }
    assert!(single > 0, "no node was seen with one copy");
    assert!(fs.sync_stats().deferred_copies > 0, "no node got its second");
    assert!(fs.sync_stats().commits.is_empty(), "{:?}", fs.sync_stats());
    drop(files);
    fs.close().expect("a clean end");
    check(&device);
}

/// If a mount asks for all copies, they exist when fsync returns. Before the first commit of any
/// mount, fsync also waits for all copies, because nodes left by a crash may have the same
/// generation. On a volume with one copy of metadata, no second copy is written.
#[test]
fn both_copies_are_written_where_required() {
    let single = MakeOptions { metadata: Some(Profile::Single), ..MakeOptions::default() };
    let double = MakeOptions::default();
    let cases = [(&double, "log_copies=all", true), (&double, "rw", false), (&single, "rw", true)];
    for (options, mount, commits) in cases {
        let device = memory_with(128, options);
        let fs: Filesystem = mount_with(&device, &format!("commit=300,{mount}"));
        let file = file_with(&fs.root(), "file", &[7; 9000]);
        if commits {
            fs.sync().expect("durable");
            file.write_at(100, &[8; 5000]).expect("into memory");
        }
        file.sync().expect("durable");
        let stats = fs.sync_stats();
        assert_eq!((stats.logs, stats.deferred_copies), (1, 0), "{mount}, {commits}");
        if options.metadata.is_none() {
            assert_eq!(owed(&device), 0, "{mount}, {commits}");
        }
        sleep(Duration::from_millis(500));
        assert_eq!(fs.sync_stats().deferred_copies, 0);
        drop(file);
        fs.close().expect("a clean end");
        check(&device);
    }
}
