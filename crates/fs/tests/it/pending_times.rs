//! Times that a caller sets: the moment at which they reach the trees, and what a crash leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::{InodeItem, Key, Kind, Timespec};
use buttress_fs::{ErrorKind, Filesystem, Inode, MakeOptions, NewInode, SetAttr};
use buttress_sim::{Log, campaign};

use crate::checker::{expect_cut_sound, expect_sound};
use crate::volume::{file_with, list, memory, mount_with};

/// With these options, only the operations of a test cause commits.
const OPTIONS: &str = "rw,noatime,commit=3000";

/// The times of access and of change that a caller sets.
fn times(number: u64) -> [Timespec; 2] {
    [1, 2].map(|more| Timespec { sec: 1_000_000 + 10 * number as i64 + more, nsec: number as u32 })
}

fn set(inode: &Inode, number: u64) -> buttress_fs::Result<()> {
    let [atime, mtime] = times(number).map(Some);
    inode.set_attr(&SetAttr { atime, mtime, ..SetAttr::default() }).map(drop)
}

/// The times of an inode in the trees.
fn in_trees(fs: &Filesystem, inode: &Inode) -> [Timespec; 2] {
    let id = inode.id();
    let item = fs.view().get(id.tree, &Key::new(id.ino.0, Kind::INODE_ITEM, 0));
    let item = item.expect("it reads").expect("an item");
    let item = InodeItem::parse(&item).expect("an inode");
    [item.atime, item.mtime]
}

fn shown(inode: &Inode) -> [Timespec; 2] {
    let attr = inode.attr();
    [attr.atime, attr.mtime]
}

/// Times that are set change no tree before a sync, a sync of the file, or another change of the
/// inode. The last user of an inode may leave it before that.
#[test]
fn set_times_put_no_item_before_a_sync() {
    for options in [OPTIONS, "rw,lazytime,commit=3000"] {
        let device = memory(64);
        let fs = mount_with(&device, options);
        let file = file_with(&fs.root(), "file", b"text");
        let other = file_with(&fs.root(), "other", b"text");
        let link = fs.root().symlink(b"link", b"file", 0, 0).expect("a link");
        let dir = fs.root().mkdir(b"dir", 0o755, 0, 0).expect("a directory");
        fs.sync().expect("durable");
        let before = [&file, &other, &link, &dir].map(|inode| in_trees(&fs, inode));
        for (inode, number) in [&file, &other, &link, &dir].into_iter().zip(1..) {
            set(inode, number).expect("times");
            assert_eq!(shown(inode), times(number), "{options}");
        }
        assert_eq!([&file, &other, &link, &dir].map(|inode| in_trees(&fs, inode)), before);
        file.sync().expect("durable");
        assert_eq!(in_trees(&fs, &file), times(1), "{options}");
        assert_eq!(in_trees(&fs, &dir), before[3], "a sync of one file is not for others");
        let mode = Some(0o700);
        other.set_attr(&SetAttr { mode, ..SetAttr::default() }).expect("a mode");
        assert_eq!(in_trees(&fs, &other), times(2), "{options}");
        let id = link.id();
        drop(link);
        let link = fs.inode(id).expect("it is there");
        assert_eq!(shown(&link), times(3), "{options}");
        fs.commit().expect("a commit");
        for (inode, number) in [&file, &other, &link, &dir].into_iter().zip(1..) {
            assert_eq!(in_trees(&fs, inode), times(number), "{options}");
        }
        set(&dir, 9).expect("times");
        drop((file, other, link, dir));
        fs.close().expect("closed");
        expect_sound(&device);
        let fs = mount_with(&device, "ro");
        assert_eq!(shown(&fs.resolve("dir").expect("there")), times(9), "{options}");
    }
}

/// A snapshot has the times that were set before it. A subvolume that becomes read-only keeps them.
#[test]
fn snapshots_have_the_times() {
    let device = memory(64);
    let fs = mount_with(&device, OPTIONS);
    let sub = fs.root().create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
    let file = file_with(&sub, "file", b"text");
    fs.sync().expect("durable");
    set(&file, 1).expect("times");
    let snapshot = fs.root().snapshot(b"snapshot", sub.id().tree, true).expect("a snapshot");
    assert_eq!(shown(&snapshot.lookup(b"file").expect("it")), times(1));
    set(&file, 2).expect("times");
    fs.set_subvolume_read_only(sub.id().tree, true).expect("read-only");
    assert_eq!(in_trees(&fs, &file), times(2));
    set(&file, 3).expect_err("it is read-only");
    drop((file, sub, snapshot));
    fs.close().expect("closed");
    expect_sound(&device);
}

/// Ends a thread when dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A thread sets the time of a file, and then makes a directory with the same number. A snapshot
/// with the directory has at least that time.
#[test]
fn snapshots_have_the_times_of_what_came_before() {
    let device = memory(256);
    let fs = mount_with(&device, OPTIONS);
    let sub = fs.root().create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
    let file = file_with(&sub, "file", b"text");
    let busy = file_with(&sub, "busy", b"text");
    set(&file, 0).expect("times");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The thread ends after a failure, too.
        let over = Over(&is_over);
        scope.spawn(|| {
            for number in (1..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                set(&file, number).expect("times");
                sub.mkdir(format!("{number:08}").as_bytes(), 0o755, 0, 0).expect("a directory");
                // What a snapshot writes back before it takes its turn.
                busy.write_at(number % 256 * 8192, &[1; 4096]).expect("room");
            }
        });
        for number in 0..20 {
            let name = format!("snapshot{number}");
            let made = fs.root().snapshot(name.as_bytes(), sub.id().tree, true);
            let snapshot = made.expect("a snapshot");
            let numbers = list(&snapshot).into_iter().filter_map(|name| name.parse::<u64>().ok());
            let last = numbers.max().unwrap_or(0);
            let has = shown(&snapshot.lookup(b"file").expect("it"));
            assert!(
                (last..=last + 1).any(|number| has == times(number)),
                "snapshot {number}: {has:?}, and directory {last}"
            );
        }
        drop(over);
    });
    drop((file, busy, sub));
    fs.close().expect("closed");
    expect_sound(&device);
}

/// The power is cut while times are set. Times that were set before a sync of the file, or of the
/// volume, are there after the crash. Other times are there or not, but never in part.
#[test]
fn power_is_cut_after_times_were_set() {
    const FILES: u64 = 12;
    let base = MemoryDevice::new(128 << 20);
    Filesystem::make(&base, &MakeOptions::default()).expect("a volume");
    let log = Log::new();
    let recorder = log.device(&base, 512);
    let fs = mount_with(&(Arc::clone(&recorder) as Arc<dyn Device>), OPTIONS);
    let name = |number: u64| format!("f{number}");
    let files: Vec<_> =
        (0..FILES).map(|number| file_with(&fs.root(), &name(number), b"text")).collect();
    for (file, number) in files.iter().zip(0..) {
        set(file, number).expect("times");
    }
    fs.sync().expect("durable");
    log.start(&[&recorder]);
    // At each mark: the number that is durable for each file, and the last number that was set.
    let mut durable: Vec<u64> = (0..FILES).collect();
    let mut marks = vec![durable.clone()];
    let mut rng = Rng::new(11 + campaign::round());
    for step in FILES..FILES + 60 {
        let at = rng.below(FILES) as usize;
        if rng.chance(1, 4) {
            // The data of the file brings the times.
            files[at].write_at(0, &step.to_le_bytes()).expect("written");
        }
        set(&files[at], step).expect("times");
        let latest = |file: &Inode| u64::from(file.attr().mtime.nsec);
        match rng.below(6) {
            0 => {
                fs.sync().expect("durable");
                durable = files.iter().map(latest).collect();
            }
            1..4 => {
                files[at].sync().expect("durable");
                durable[at] = step;
            }
            _ => {}
        }
        marks.push(durable.clone());
        log.mark(marks.len() as u64 - 1);
    }
    drop(files);
    fs.close().expect("closed");
    let shown_states = log.crashes(&mut rng, 1, (log.len() / 60).max(1), |crash| {
        let when = format!("event {} draw {}", crash.event, crash.draw);
        let device: Arc<dyn Device> = Arc::new(crash.devices[0].fork());
        expect_cut_sound(&device, &when);
        let fs = mount_with(&device, OPTIONS);
        for (least, number) in marks[crash.mark.unwrap_or(0) as usize].iter().zip(0..) {
            let found = shown(&fs.resolve(name(number)).expect("a file"));
            let step = u64::from(found[1].nsec);
            assert_eq!(found, times(step), "{when}: times of two calls in one inode");
            assert!(step >= *least, "{when}: {step} of {}, {least} were durable", name(number));
        }
        fs.close().expect("closed");
    });
    campaign::count("states", shown_states);
    assert!(shown_states > 40, "{shown_states}");
}

/// Threads set times and make them durable beside each other. No sync returns while another thread
/// is still about to put the times.
#[test]
fn a_sync_waits_for_times_that_another_thread_puts() {
    let device = memory(128);
    let fs = mount_with(&device, OPTIONS);
    let rounds = if cfg!(debug_assertions) { 150 } else { 600 };
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let fs = &fs;
            scope.spawn(move || {
                let file = file_with(&fs.root(), &format!("f{thread}"), b"");
                for round in 1..=rounds {
                    set(&file, round).expect("times");
                    match (round + thread) % 3 {
                        0 => fs.commit().expect("a commit"),
                        _ => file.sync().expect("durable"),
                    }
                    assert_eq!(in_trees(fs, &file), times(round), "thread {thread}");
                }
            });
        }
    });
    fs.close().expect("closed");
    expect_sound(&device);
}

/// On a full volume, times are refused or kept. They hold reservations, but refuse no space to
/// others: what they really need is little.
#[test]
fn times_of_a_full_volume_are_refused_or_kept() {
    let device = memory(64);
    let fs = mount_with(&device, OPTIONS);
    let mut count = 0;
    loop {
        match fs.root().create(format!("f{count}").as_bytes(), NewInode::file(0o644)) {
            Ok(file) => {
                // Small enough to be in the tree.
                if file.write_at(0, &[7; 1900]).is_err() {
                    break;
                }
                count += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                break;
            }
        }
    }
    let mut kept = Vec::new();
    for (name, number) in list(&fs.root()).into_iter().zip(1..) {
        match fs.root().lookup(name.as_bytes()).and_then(|file| set(&file, number)) {
            Ok(()) => kept.push((name, number)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{name}: {error}"),
        }
    }
    assert!(kept.len() > count / 2, "{} of {count}", kept.len());
    fs.close().expect("closed");
    expect_sound(&device);
    let fs = mount_with(&device, "ro");
    for (name, number) in kept {
        assert_eq!(shown(&fs.resolve(&name).expect("a file")), times(number), "{name}");
    }
}
