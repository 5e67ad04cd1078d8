//! The queue for a log: some fsyncs wait for a log, and some get a commit instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use buttress_block::{Device, Error, MemoryDevice};
use buttress_fs::{
    FallocateMode, Filesystem, InodeFlags, MakeOptions, NewInode, RenameFlags, XattrFlags,
};

use super::scripts::fork;
use super::{open, open_with};
use crate::checker::expect_sound;
use crate::devices::{Hook, Hooked};
use crate::volume::{content, pattern};

/// Holds back flushes while it is shut.
#[derive(Debug, Default)]
struct Barrier {
    shut: AtomicBool,
    is_waited_for: AtomicBool,
}

impl Hook for Barrier {
    fn flush(&self, below: &dyn Device) -> Result<(), Error> {
        while self.shut.load(Ordering::SeqCst) {
            self.is_waited_for.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        below.flush()
    }
}

fn until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// All fsyncs that come while a log is written share the next log.
#[test]
fn fsyncs_during_a_log_share_the_next() {
    const MANY: u64 = 12;
    let below: Arc<dyn Device> = Arc::new(MemoryDevice::new(128 << 20));
    Filesystem::make(&*below, &MakeOptions::default()).expect("a volume");
    let device = Hooked::new(&below, Barrier::default());
    let fs = open(Arc::clone(&device) as Arc<dyn Device>);
    let files: Vec<_> = (0..=MANY)
        .map(|n| fs.root().create(n.to_string().as_bytes(), NewInode::file(0o644)).expect("a file"))
        .collect();
    fs.sync().expect("sync");
    for file in &files {
        file.write_at(0, &pattern(1, 5000)).expect("a write");
    }
    let before = fs.sync_stats();
    std::thread::scope(|scope| {
        device.hook.shut.store(true, Ordering::SeqCst);
        scope.spawn(|| files[0].sync().expect("durable"));
        until(|| device.hook.is_waited_for.load(Ordering::SeqCst));
        for file in &files[1..] {
            scope.spawn(|| file.sync().expect("durable"));
        }
        until(|| fs.sync_stats().waiting == MANY);
        device.hook.shut.store(false, Ordering::SeqCst);
    });
    let after = fs.sync_stats();
    assert_eq!((after.syncs - before.syncs, after.logs - before.logs), (MANY + 1, 2), "{after:?}");
    let again = open(Arc::new(fork(&below)));
    for n in 0..=MANY {
        let file = again.resolve(n.to_string()).expect("the file");
        assert!(content(&file) == pattern(1, 5000), "{n}");
    }
    again.close().expect("a clean end");
    drop(files);
    fs.close().expect("a clean end");
}

/// Operations before an fsync, and the reason for a commit that they cause.
struct Case {
    why: &'static str,
    /// The size of the volume in MiB.
    mib: u64,
    options: &'static str,
    /// The first call, with `false`, prepares, and a commit follows. The second call, with `true`,
    /// makes the changes to sync.
    work: fn(&Filesystem, bool),
    /// The path of the synced inode.
    path: &'static str,
}

const CASES: [Case; 7] = [
    Case { why: "moved_directory", mib: 128, options: "", work: moved, path: "/to" },
    Case { why: "new_subvolume", mib: 128, options: "", work: subvolume, path: "/sub/file" },
    Case { why: "subvolume_name", mib: 128, options: "", work: subvolume_gone, path: "/" },
    Case { why: "many_inodes", mib: 128, options: "", work: many, path: "/dir" },
    Case { why: "new_feature", mib: 128, options: ",compress=zstd", work: feature, path: "/file" },
    Case { why: "new_chunk", mib: 1024, options: "", work: new_chunk, path: "/file" },
    Case { why: "long_log", mib: 512, options: "", work: long, path: "/last" },
];

fn create(fs: &Filesystem, name: &str) -> buttress_fs::Inode {
    fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file")
}

fn moved(fs: &Filesystem, committed: bool) {
    if committed {
        let flags = RenameFlags::default();
        fs.root().rename(b"from", &fs.root(), b"to", flags).expect("a rename");
    } else {
        fs.root().mkdir(b"from", 0o755, 0, 0).expect("a directory");
    }
}

fn subvolume(fs: &Filesystem, committed: bool) {
    if committed {
        let top = fs.root().create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
        let file = top.create(b"file", NewInode::file(0o644)).expect("a file");
        file.write_at(0, &pattern(5, 9000)).expect("a write");
    }
}

fn subvolume_gone(fs: &Filesystem, committed: bool) {
    if committed {
        fs.root().delete_subvolume(b"sub").expect("deleted");
    } else {
        fs.root().create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
    }
}

fn many(fs: &Filesystem, committed: bool) {
    if committed {
        let dir = fs.resolve("/dir").expect("a directory");
        for n in 0..1100 {
            dir.create(n.to_string().as_bytes(), NewInode::file(0o644)).expect("a file");
        }
    } else {
        fs.root().mkdir(b"dir", 0o755, 0, 0).expect("a directory");
    }
}

fn feature(fs: &Filesystem, committed: bool) {
    if committed {
        let file = fs.resolve("/file").expect("the file");
        file.write_at(0, &vec![7; 200_000]).expect("a write");
    } else {
        create(fs, "file");
    }
}

fn new_chunk(fs: &Filesystem, committed: bool) {
    if committed {
        let filler = create(fs, "filler");
        let how = FallocateMode::Allocate { keep_size: false };
        filler.fallocate(0, 200 << 20, how).expect("room");
        let data = pattern(5, 1 << 20);
        let file = fs.resolve("/file").expect("the file");
        for at in 0..100 {
            file.write_at(at << 20, &data).expect("a write");
        }
    } else {
        create(fs, "file");
    }
}

fn long(fs: &Filesystem, committed: bool) {
    if committed {
        // A leaf holds three of these files.
        for n in 0..4700 {
            let file = create(fs, &n.to_string());
            file.set_flags(InodeFlags::NOATIME).expect("flags");
            file.set_xattr(b"user.long", &vec![n as u8; 5000], XattrFlags::default()).expect("set");
            file.sync().expect("durable");
        }
        create(fs, "last");
    }
}

/// If a log cannot express a change, fsync makes a commit instead, and counts the reason. The next
/// fsync writes a log again. Snapshots, balances and changes of devices commit by themselves.
#[test]
fn fsync_commits_where_a_log_cannot_say_it() {
    for Case { why, mib, options, work, path } in CASES {
        let below: Arc<dyn Device> = Arc::new(MemoryDevice::new(mib << 20));
        Filesystem::make(&*below, &MakeOptions::default()).expect("a volume");
        let fs = open_with(Arc::clone(&below), &format!("rw,noatime,commit=3000{options}"));
        work(&fs, false);
        fs.sync().expect("sync");
        work(&fs, true);
        let before = fs.sync_stats();
        fs.resolve(path).expect("it is there").sync().expect("durable");
        let after = fs.sync_stats();
        assert!(
            after.commits.keys().any(|reason| reason.name() == why),
            "{why}: {after:?}, before {before:?}"
        );
        let crashed: Arc<dyn Device> = Arc::new(fork(&below));
        let again = open(Arc::clone(&crashed));
        let (found, now) = (again.resolve(path).expect(why), fs.resolve(path).expect(why));
        assert_eq!(found.attr().size, now.attr().size, "{why}");
        if !matches!(path, "/" | "/to" | "/dir") {
            assert!(content(&found) == content(&now), "{why}");
        }
        drop((found, now));
        again.close().expect("a clean end");
        expect_sound(&crashed);
        let file = create(&fs, "next");
        file.write_at(0, &pattern(1, 5000)).expect("a write");
        file.sync().expect("durable");
        assert!(fs.sync_stats().logs > after.logs, "{why}: {:?}", fs.sync_stats());
        drop(file);
        fs.close().expect("a clean end");
    }
}
