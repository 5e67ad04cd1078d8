//! Times of files: the operations that set them, the possible times, and files that refuse new
//! times.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, IFlags, Timespec, Timestamps, XattrFlags, futimens,
    ioctl_setflags, utimensat,
};
use rustix::time::{ClockId, clock_gettime};

use crate::linux::Linux;
use crate::mounted::{mounted, mounted_with};

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW as _ };
const OMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ };
const PAST: Timespec = Timespec { tv_sec: 1000, tv_nsec: 5 };

/// Pairs of requested times: of the last access, and of the last modification.
const ASKED: [(Timespec, Timespec); 8] = [
    (PAST, PAST),
    (NOW, NOW),
    (PAST, OMIT),
    (OMIT, PAST),
    (NOW, OMIT),
    (OMIT, NOW),
    (PAST, NOW),
    (OMIT, OMIT),
];

fn set_flags(path: &Path, flags: IFlags) {
    ioctl_setflags(File::open(path).expect("it opens"), flags).expect("root may");
}

/// Waits until the coarse clock has passed every stamp that a file may have so far. A stamp may be
/// a reading of the fine clock. After a late tick, the coarse clock moves on to a time before it,
/// and the next stamp is the same.
fn wait_for_tick() {
    let clock = |id| {
        let now = clock_gettime(id);
        (now.tv_sec, now.tv_nsec)
    };
    let fine = clock(ClockId::Realtime);
    while clock(ClockId::RealtimeCoarse) <= fine {
        std::thread::yield_now();
    }
}

/// The results of requests for new times of files and directories with flags, by path and by
/// descriptor.
fn answers(top: &Path) -> Vec<String> {
    let mut answers = Vec::new();
    for (kind, is_dir) in [("file", false), ("directory", true)] {
        for flags in [IFlags::empty(), IFlags::IMMUTABLE, IFlags::APPEND] {
            for (number, (last_access, last_modification)) in ASKED.into_iter().enumerate() {
                let path = top.join(format!("{kind}-{flags:?}-{number}"));
                if is_dir { fs::create_dir(&path) } else { fs::write(&path, "text") }.expect("new");
                let opened = File::open(&path).expect("it opens");
                set_flags(&path, flags);
                wait_for_tick();
                let times = Timestamps { last_access, last_modification };
                let by_path = utimensat(CWD, &path, &times, AtFlags::empty());
                let by_file = futimens(&opened, &times);
                answers.push(format!("{kind} {flags:?} {number}: {by_path:?}, {by_file:?}"));
                set_flags(&path, IFlags::empty());
            }
        }
    }
    answers
}

/// Immutable and append-only files refuse new times as Linux's btrfs does.
#[test]
fn flags_refuse_times_as_linux_does() {
    let Some(linux) = Linux::mounted("defaults") else { return };
    let theirs = answers(linux.path());
    for options in ["writeback_cache", "nowriteback_cache"] {
        let Some(mount) = mounted_with(options) else { return };
        for (ours, theirs) in answers(&mount.path("")).iter().zip(&theirs) {
            assert_eq!(ours, theirs, "{options}");
        }
    }
}

/// If a file is written and then becomes immutable or append-only, the time of the write reaches
/// the volume.
#[test]
fn kept_times_reach_files_with_flags() {
    let Some(mount) = mounted() else { return };
    let mut shown = Vec::new();
    for (name, flags) in [("a", IFlags::APPEND), ("i", IFlags::IMMUTABLE)] {
        let path = mount.path(name);
        fs::write(&path, "").expect("a file");
        let times = Timestamps { last_access: PAST, last_modification: PAST };
        utimensat(CWD, &path, &times, AtFlags::empty()).expect("times");
        let mut file = OpenOptions::new().append(true).open(&path).expect("it opens");
        file.write_all(b"text").expect("written");
        set_flags(&path, flags);
        file.sync_all().expect("durable");
        drop(file);
        let attr = fs::metadata(&path).expect("attributes");
        assert!(attr.mtime() > PAST.tv_sec);
        shown.push((name, attr.mtime(), attr.mtime_nsec()));
    }
    let mount = mount.again();
    for (name, sec, nsec) in shown {
        let attr = fs::metadata(mount.path(name)).expect("attributes");
        assert_eq!((attr.mtime(), attr.mtime_nsec()), (sec, nsec), "{name}");
        set_flags(&mount.path(name), IFlags::empty());
    }
}

/// An operation, and the names that get a new time of change.
type Operation = (&'static str, fn(&Path), &'static [&'static str]);

const OPERATIONS: [Operation; 13] = [
    ("mkdir", |top| fs::create_dir(top.join("d")).expect("new"), &["d", ""]),
    ("create", |top| fs::write(top.join("d/f"), "").expect("new"), &["d/f", "d"]),
    ("write", |top| append(&top.join("d/f"), false), &["d/f"]),
    ("write and sync", |top| append(&top.join("d/f"), true), &["d/f"]),
    ("truncate", |top| open(&top.join("d/f")).set_len(1).expect("shorter"), &["d/f"]),
    ("O_TRUNC", |top| drop(File::create(top.join("d/f")).expect("empty")), &["d/f"]),
    (
        "fallocate",
        |top| {
            let file = open(&top.join("d/f"));
            rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 9000).expect("room");
        },
        &["d/f"],
    ),
    (
        "chmod",
        |top| {
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(top.join("d/f"), mode).expect("a mode");
        },
        &["d/f"],
    ),
    (
        "touch",
        |top| {
            let times = Timestamps { last_access: NOW, last_modification: NOW };
            utimensat(CWD, top.join("d/f"), &times, AtFlags::empty()).expect("times");
        },
        &["d/f"],
    ),
    (
        "an attribute",
        |top| {
            let flags = XattrFlags::empty();
            rustix::fs::setxattr(top.join("d/f"), "user.x", b"1", flags).expect("set");
        },
        &["d/f"],
    ),
    ("link", |top| fs::hard_link(top.join("d/f"), top.join("d/g")).expect("new"), &["d/f", "d"]),
    ("rename", |top| fs::rename(top.join("d/g"), top.join("h")).expect("moved"), &["h", "d", ""]),
    ("unlink", |top| fs::remove_file(top.join("h")).expect("gone"), &["d/f", ""]),
];

fn open(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).expect("it opens")
}

fn append(path: &Path, is_durable: bool) {
    let mut file = OpenOptions::new().append(true).open(path).expect("it opens");
    file.write_all(b"text").expect("written");
    if is_durable {
        file.sync_all().expect("durable");
    }
}

/// A time that the server sets lies between two looks at the coarse clock. With its write-back
/// cache the kernel sets the time, and the upper bound is the fine clock. The reason is that a fine
/// stamp on any file system raises the kernel's later stamps above the coarse clock.
#[test]
fn times_lie_between_looks_at_the_clock() {
    let clock = |id| {
        let now = clock_gettime(id);
        (now.tv_sec, now.tv_nsec)
    };
    let bounds =
        [("writeback_cache", ClockId::Realtime), ("nowriteback_cache", ClockId::RealtimeCoarse)];
    for (options, behind) in bounds {
        let Some(mount) = mounted_with(options) else { return };
        let top = mount.path("");
        for (name, operate, changed) in OPERATIONS {
            let before = clock(ClockId::RealtimeCoarse);
            operate(&top);
            let after = clock(behind);
            for path in changed {
                let attr = fs::metadata(top.join(path)).expect("attributes");
                let time = (attr.ctime(), attr.ctime_nsec());
                let about = format!("{options}, {name}, {path}");
                assert!(before <= time && time <= after, "{about}: {before:?} {time:?} {after:?}");
            }
        }
    }
}

/// Which times a truncation changes, by path, by descriptor and by opening, to the same length and
/// to another one.
fn truncations(top: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    for (from, to) in [(0_u64, 0), (1, 1), (5000, 5000), (4096, 4096), (5000, 0), (0, 5000)] {
        for how in ["truncate", "ftruncate", "O_TRUNC"] {
            let path = top.join(format!("cut-{from}-{to}-{how}"));
            fs::write(&path, vec![b'x'; from as usize]).expect("a file");
            let times = Timestamps { last_access: PAST, last_modification: PAST };
            utimensat(CWD, &path, &times, AtFlags::empty()).expect("times");
            let look = || {
                let found = fs::metadata(&path).expect("attributes");
                [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()]
            };
            let before = look();
            wait_for_tick();
            match how {
                "truncate" => truncate(&path, to),
                "ftruncate" => open(&path).set_len(to).expect("a length"),
                _ => drop(File::create(&path).expect("empty")),
            }
            let [mtime, ctime] = [0, 2].map(|at| look()[at..at + 2] != before[at..at + 2]);
            lines.push(format!("{from} {to} {how}: {mtime} {ctime}"));
        }
    }
    lines
}

/// Calls truncate(2), which std does not have.
fn truncate(path: &Path, len: u64) {
    let mut command = std::process::Command::new("perl");
    command.args(["-e", "truncate($ARGV[0], $ARGV[1]) or exit 1"]).arg(path).arg(len.to_string());
    assert!(command.status().expect("perl runs").success());
}

/// A truncation changes the times that Linux changes. The kernel and the volume agree on them.
#[test]
fn truncations_change_times_as_linux_does() {
    let Some(linux) = Linux::mounted("defaults") else { return };
    let theirs = truncations(linux.path());
    for options in ["writeback_cache", "nowriteback_cache"] {
        let Some(mount) = mounted_with(options) else { return };
        assert_eq!(truncations(&mount.path("")), theirs, "{options}");
        let shown = |top: &Path| {
            let entries = fs::read_dir(top).expect("a directory").map(|entry| entry.expect("it"));
            let mut found: Vec<_> = entries
                .map(|entry| (entry.file_name(), entry.metadata().expect("attributes")))
                .map(|(name, attr)| {
                    (name, [attr.mtime(), attr.mtime_nsec(), attr.ctime(), attr.ctime_nsec()])
                })
                .collect();
            found.sort();
            found
        };
        let before = shown(&mount.path(""));
        let mount = mount.again();
        assert_eq!(shown(&mount.path("")), before, "{options}");
    }
}

/// The number of blocks that `stat` shows after a preallocation, and after a write into it.
fn blocks(top: &Path) -> Vec<String> {
    let kinds = [
        FallocateFlags::empty(),
        FallocateFlags::KEEP_SIZE,
        FallocateFlags::ZERO_RANGE,
        FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    ];
    let ranges = [(5000, 8000), (100, 50), (4095, 20), (3000, 70_000), (8192, 4096), (12_287, 12)];
    let mut lines = Vec::new();
    for before in [0, 5000, 100_000] {
        for kind in kinds {
            for (offset, len) in ranges {
                for at in [offset, offset + len - 10] {
                    let path = top.join(format!("blocks-{}", lines.len()));
                    let mut file = File::create(&path).expect("a file");
                    file.write_all(&vec![b'x'; before]).expect("written");
                    rustix::fs::fallocate(&file, kind, offset, len).expect("room");
                    let look = || {
                        // After this the kernel asks the server for the attributes again.
                        let mode = fs::Permissions::from_mode(0o600);
                        fs::set_permissions(&path, mode).expect("a mode");
                        fs::metadata(&path).expect("attributes").blocks()
                    };
                    let set_aside = look();
                    std::os::unix::fs::FileExt::write_all_at(&file, b"0123456789", at)
                        .expect("written");
                    let written = look();
                    file.sync_all().expect("durable");
                    let about = format!("{before} {kind:?} {offset} {len} {at}");
                    lines.push(format!("{about}: {set_aside} {written} {}", look()));
                }
            }
        }
    }
    lines
}

/// A preallocation covers each block that its range touches, so a later write into the range takes
/// no more blocks.
#[test]
fn writes_into_what_is_set_aside_take_no_blocks() {
    let Some(linux) = Linux::mounted("defaults") else { return };
    let theirs = blocks(linux.path());
    for options in ["writeback_cache", "nowriteback_cache"] {
        let Some(mount) = mounted_with(options) else { return };
        assert_eq!(blocks(&mount.path("")), theirs, "{options}");
    }
}

/// `chattr` moves the time of change of its file. The kernel shows the new time at once or, with
/// the write-back cache, soon after the file is closed. An earlier write that is still cached does
/// not set the time back.
#[test]
fn flags_move_the_time_of_change() {
    let Some(linux) = Linux::mounted("defaults") else { return };
    let mut tops = vec![linux.path().to_owned()];
    let mounts = ["nowriteback_cache", "writeback_cache"].map(mounted_with);
    for mount in mounts.iter().flatten() {
        tops.push(mount.path(""));
    }
    for top in tops {
        fs::create_dir(top.join("d")).expect("new");
        fs::write(top.join("a b\\"), "").expect("new");
        fs::hard_link(top.join("a b\\"), top.join("d/second")).expect("a link");
        for (name, other) in [("d", "d"), ("a b\\", "d/second")] {
            let shown = |name: &str| {
                let attr = fs::metadata(top.join(name)).expect("attributes");
                (attr.ctime(), attr.ctime_nsec())
            };
            let before = shown(name);
            let written = (name != "d").then(|| {
                let mut file = open(&top.join(name));
                file.write_all(b"text").expect("written");
                file
            });
            let before = before.max(shown(name));
            wait_for_tick();
            set_flags(&top.join(name), IFlags::NOATIME);
            drop(written);
            let begun = std::time::Instant::now();
            while shown(name) <= before {
                assert!(begun.elapsed().as_secs() < 20, "{}: {name}", top.display());
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            assert_eq!(shown(name), shown(other), "{}", top.display());
        }
    }
}
