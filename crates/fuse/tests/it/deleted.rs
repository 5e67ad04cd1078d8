//! Subvolumes that are deleted by a command of ioctl(2) while programs use them.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

use crate::commands::{
    DEFAULT_SUBVOL, ORPHAN, SNAP_DESTROY, SUBVOL_CREATE, named, number, open, search, subvolume,
};
use crate::mounted::{mounted, mounted_with};

/// The longest wait for the kernel and the cleaner.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A deletion that is refused leaves the subvolume's own mount in place, with the programs in it.
#[test]
fn refused_deletion_leaves_the_mount_of_a_subvolume() {
    let Some(mount) = mounted_with("submounts") else { return };
    let top = open(mount.path(""));
    named(&top, SUBVOL_CREATE, b"a").expect("made");
    named(&open(mount.path("a")), SUBVOL_CREATE, b"nested").expect("made");
    let file = File::create(mount.path("a/file")).expect("made");
    let device = |path: &str| fs::metadata(mount.path(path)).expect("it is there").dev();
    let before = (device("a"), device("a/nested"));
    assert_eq!(named(&top, SNAP_DESTROY, b"a"), Err(libc::ENOTEMPTY));
    number(&top, DEFAULT_SUBVOL, subvolume(&open(mount.path("a/nested"))).0).expect("set");
    assert_eq!(named(&open(mount.path("a")), SNAP_DESTROY, b"nested"), Err(libc::EPERM));
    assert_eq!((device("a"), device("a/nested")), before);
    assert_eq!(file.metadata().expect("it is open").dev(), before.0);
    number(&top, DEFAULT_SUBVOL, 0).expect("set");
    named(&open(mount.path("a")), SNAP_DESTROY, b"nested").expect("it may go now");
}

/// A program has a directory open in a deleted subvolume. The kernel keeps the directory's inode
/// even after the program has closed it. After the close the subvolume is dropped, although memory
/// is not short.
#[test]
fn deleted_subvolume_goes_when_its_last_user_has_gone() {
    expect_deleted_subvolume_goes(&[]);
}

/// A program looked for names in vain after the deletion. The kernel remembers that these names are
/// absent, and therefore keeps their directory. The subvolume is dropped nevertheless.
#[test]
fn deleted_subvolume_goes_although_names_are_known_to_be_absent() {
    expect_deleted_subvolume_goes(&["absent", "e/absent", "absent as well"]);
}

/// Whether the kernel forgets inodes when a server asks for that.
fn can_prune() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's version");
    let mut numbers = release.split(|sign: char| !sign.is_ascii_digit()).map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
    let is_new = (next(), next()) >= (6, 18);
    if !is_new {
        eprintln!("SKIPPED: needs Linux 6.18, which forgets inodes when a server asks for it");
    }
    is_new
}

/// Deletes a subvolume while a program is in it and looks for these names from there.
fn expect_deleted_subvolume_goes(absent: &[&str]) {
    if !can_prune() {
        return;
    }
    let Some(mut mount) = mounted() else { return };
    let top = open(mount.path(""));
    named(&top, SUBVOL_CREATE, b"a").expect("made");
    fs::create_dir_all(mount.path("a/d/e")).expect("made");
    for name in ["a/f", "a/d/f", "a/d/e/f"] {
        fs::write(mount.path(name), "text").expect("written");
    }
    let walked = open(mount.path("a/d"));
    let (tree, _) = subvolume(&walked);
    named(&top, SNAP_DESTROY, b"a").expect("it may go");
    // The root tree has an item for each deleted subvolume until the subvolume is dropped.
    let is_there = || !search(&top, (1, [ORPHAN; 2], [48, 48], [tree, tree], 0, 1)).is_empty();
    assert!(is_there(), "a program uses it");
    for name in absent {
        let path = format!("/proc/self/fd/{}/{name}", walked.as_raw_fd());
        let error = fs::metadata(path).expect_err("there is no such name");
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }
    drop(walked);
    let since = Instant::now();
    while is_there() {
        assert!(since.elapsed() < TIMEOUT, "it stays, {} inodes are known", mount.known());
        thread::sleep(Duration::from_millis(100));
    }
}
