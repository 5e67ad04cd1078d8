//! Times of access, compared with those of Linux's btrfs under the same options.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, OFlags, Timespec, Timestamps, utimensat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::time::{ClockId, clock_gettime};

use crate::linux::Linux;
use crate::mounted::mounted_with;

const PAST: i64 = 1_000_000;

/// Mount options for times of access, alone and combined.
const OPTIONS: [&str; 7] = [
    "relatime",
    "strictatime",
    "noatime",
    "nodiratime",
    "strictatime,nodiratime",
    "lazytime",
    "strictatime,lazytime",
];

/// The name of an operation, the kind of its object, and the operation itself.
type Operation = (&'static str, &'static str, fn(&Path));

const OPERATIONS: [Operation; 10] = [
    ("stat", "file", |path| assert!(fs::metadata(path).expect("attributes").is_file())),
    ("read", "file", |path| drop(fs::read(path).expect("content"))),
    ("read", "empty", |path| drop(File::open(path).expect("it opens"))),
    ("read without O_NOATIME", "file", |path| read_with(path, OFlags::empty())),
    ("read with O_NOATIME", "file", |path| read_with(path, OFlags::NOATIME)),
    ("read with O_DIRECT", "file", |path| read_with(path, OFlags::DIRECT)),
    ("map", "file", map),
    ("write", "file", |path| fs::write(path, [b'y'; 8192]).expect("written")),
    ("readlink", "link", |path| drop(fs::read_link(path).expect("a target"))),
    ("list", "directory", |path| assert_eq!(fs::read_dir(path).expect("names").count(), 3)),
];

fn read_with(path: &Path, flags: OFlags) {
    #[repr(align(4096))]
    struct Aligned([u8; 4096]);
    let mut buffer = Box::new(Aligned([0; 4096]));
    let flags = flags.bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).expect("it opens");
    assert_eq!(file.read(&mut buffer.0).expect("content"), 4096);
}

fn map(path: &Path) {
    let file = File::open(path).expect("it opens");
    // SAFETY: the mapping is new, and its first byte is read before it is unmapped.
    unsafe {
        let place = mmap(std::ptr::null_mut(), 8192, ProtFlags::READ, MapFlags::SHARED, &file, 0);
        let place = place.expect("it maps");
        std::ptr::read_volatile(place.cast::<u8>());
        munmap(place, 8192).expect("it was mapped");
    }
}

fn make(kind: &str, path: &Path) {
    match kind {
        "file" => fs::write(path, [b'x'; 8192]).expect("a file"),
        "empty" => fs::write(path, "").expect("a file"),
        "link" => symlink("nowhere", path).expect("a link"),
        _ => {
            fs::create_dir(path).expect("a directory");
            (0..3).for_each(|name| fs::write(path.join(name.to_string()), "").expect("a file"));
        }
    }
}

/// Sets the time of access; the time of change becomes now.
fn set_access(path: &Path, sec: i64) {
    let time = |sec| Timespec { tv_sec: sec, tv_nsec: 0 };
    let times = Timestamps { last_access: time(sec), last_modification: time(PAST) };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("times");
}

fn access(path: &Path) -> i64 {
    fs::symlink_metadata(path).expect("attributes").atime()
}

/// For each operation: whether it moves an old time of access, and whether it moves a future time
/// of access. Each operation runs three times, because the kernel may have a cached answer from the
/// second time on.
fn moves(top: &Path) -> Vec<(String, [bool; 3])> {
    let mut lines = Vec::new();
    for (name, kind, operate) in OPERATIONS {
        let future = clock_gettime(ClockId::Realtime).tv_sec + 3600;
        for (state, sec) in [("old", PAST), ("new", future)] {
            let path = top.join(format!("{}", lines.len()));
            make(kind, &path);
            let moved = [(); 3].map(|()| {
                set_access(&path, sec);
                operate(&path);
                access(&path) != sec
            });
            lines.push((format!("{name}, {kind}, {state}"), moved));
        }
    }
    lines
}

/// Every option has the same effect on every kind of read as in Linux, even if the kernel has
/// cached the content already.
#[test]
fn reads_move_access_as_linux_does() {
    for options in OPTIONS {
        let Some(linux) = Linux::mounted(options) else { return };
        let theirs = moves(linux.path());
        let Some(mount) = mounted_with(options) else { return };
        for ((about, ours), (_, theirs)) in moves(&mount.path("")).iter().zip(&theirs) {
            let is_strict = options.contains("strictatime");
            // An open counts as a read if the kernel may have cached the content, because the
            // server would not see the read.
            let is_opened = about.starts_with("read, empty") && !is_strict;
            // The kernel caches link targets and listings, so only the first read reaches the
            // server.
            let is_kept = ["link", "directory"].iter().any(|kind| about.contains(kind));
            let compared = if is_opened {
                0
            } else if is_kept && !is_strict {
                1
            } else {
                3
            };
            assert_eq!(ours[..compared], theirs[..compared], "{options}, {about}");
        }
    }
}

/// An object that was read, but not changed, keeps its time of access when the volume is closed.
#[test]
fn access_survives_the_unmount() {
    for options in OPTIONS {
        let Some(mount) = mounted_with(options) else { return };
        let kinds = ["file", "link", "directory"];
        for kind in kinds {
            let path = mount.path(kind);
            make(kind, &path);
            set_access(&path, PAST);
        }
        let mount = mount.again_with(options);
        drop(fs::read(mount.path("file")).expect("content"));
        drop(fs::read_link(mount.path("link")).expect("a target"));
        assert_eq!(fs::read_dir(mount.path("directory")).expect("names").count(), 3);
        let shown = kinds.map(|kind| access(&mount.path(kind)));
        assert_eq!(shown[0] == PAST, options == "noatime", "{options}");
        let mount = mount.again_with("noatime");
        assert_eq!(kinds.map(|kind| access(&mount.path(kind))), shown, "{options}");
    }
}
