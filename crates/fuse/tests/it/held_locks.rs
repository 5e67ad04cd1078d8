//! Requests that hold the inode locks of Linux, beside names and pages that the kernel drops, and
//! on a volume without room. Each step has the name of its rows in the table *What may wait for
//! the kernel* of `docs/internals/mount.md`. The rows about one file's pages are in `coherence`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{
    CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags, copy_file_range,
    fallocate, mknodat, removexattr, renameat_with, setxattr,
};
use rustix::io::Errno;

use crate::coherence::{Aligned, End, MODES, PAGE, Step, View, in_time, open};
use crate::commands::{
    GET_INODE_FLAGS, SET_INODE_FLAGS, SNAP_DESTROY, SUBVOL_CREATE, named, number, snapshot,
};
use crate::mounted::{mounted_small, mounted_with};

const ROUNDS: usize = 20;
const NODUMP: u64 = 0x40;

/// Does some work in a directory while another thread makes and deletes subvolumes there. Each of
/// these commands makes the kernel drop a name of the directory.
fn beside_dropped_names(dir: &Path, mut work: impl FnMut(usize)) {
    let top = File::open(dir).expect("a directory");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                named(&top, SUBVOL_CREATE, b"subvolume").expect("made");
                named(&top, SNAP_DESTROY, b"subvolume").expect("deleted");
            }
        });
        let end = End(&is_over);
        (0..ROUNDS).for_each(&mut work);
        drop(end);
    });
}

/// Sets a flag of a file and closes it. With the write-back cache, the kernel is then told to drop
/// the names of the file.
fn change_flags(path: &Path) {
    let file = File::open(path).expect("a file");
    let flags = number(&file, GET_INODE_FLAGS, 0).expect("flags") & 0xffff_ffff;
    number(&file, SET_INODE_FLAGS, flags ^ NODUMP).expect("flags");
}

/// Steps in a directory of a volume with room.
const STEPS: [Step; 4] = [
    ("CREATE, MKNOD, MKDIR, SYMLINK", |dir| {
        beside_dropped_names(dir, |_| {
            make_names(dir).expect("there is room");
            remove_names(dir);
        });
    }),
    ("LOOKUP, LINK, UNLINK, RMDIR, RENAME, READDIR, READDIRPLUS", |dir| {
        let [file, link, other, below] = ["file", "link", "other", "below"].map(|n| dir.join(n));
        beside_dropped_names(dir, |_| {
            fs::write(&file, "text").expect("a file");
            change_flags(&file);
            fs::hard_link(&file, &link).expect("a link");
            fs::create_dir(&below).expect("a directory");
            let _ = fs::metadata(dir.join("subvolume"));
            change_flags(&link);
            fs::rename(&link, &other).expect("renamed");
            fs::rename(&other, below.join("file")).expect("renamed");
            // The subvolume may be deleted between the listing and the look at it.
            let listed = fs::read_dir(dir).expect("a listing").flatten();
            assert!(listed.filter(|entry| entry.metadata().is_ok()).count() >= 2);
            change_flags(&file);
            fs::remove_file(&file).expect("it is there");
            fs::remove_dir_all(&below).expect("it is there");
        });
    }),
    ("SETXATTR, REMOVEXATTR, IOCTL that sets flags", |dir| {
        let path = dir.join("file");
        let (file, direct) = (open(&path, OFlags::empty()), open(&path, OFlags::DIRECT));
        file.set_len(4 * PAGE as u64).expect("a length");
        let (view, memory) = (View::new(&file, 4 * PAGE), Aligned::new(3));
        beside_dropped_names(dir, |round| {
            for path in [dir, &path] {
                setxattr(path, "user.x", b"value", XattrFlags::empty()).expect("set");
                change_flags(path);
                removexattr(path, "user.x").expect("removed");
            }
            // A direct write drops the pages that the mapping reads and makes dirty.
            view.set(round, 1);
            direct.write_all_at(&memory.0[..PAGE], PAGE as u64).expect("written");
            assert_eq!((view.get(round), view.get(PAGE)), (1, 3));
        });
    }),
    ("IOCTL of btrfs", |dir| {
        let top = File::open(dir).expect("a directory");
        named(&top, SUBVOL_CREATE, b"source").expect("made");
        let source = File::open(dir.join("source")).expect("a directory");
        let file = open(&dir.join("source/file"), OFlags::empty());
        file.set_len(4 * PAGE as u64).expect("a length");
        let view = View::new(&file, 4 * PAGE);
        beside_dropped_names(dir, |round| {
            // A snapshot has all that programs have written, so the kernel sends it first.
            view.set(round, round as u8);
            file.write_all_at(&[round as u8; 100], 2 * PAGE as u64).expect("written");
            snapshot(&top, &source, b"copy", 0).expect("made");
            let copy = fs::read(dir.join("copy/file")).expect("it is there");
            assert_eq!((copy[round], copy[2 * PAGE]), (round as u8, round as u8));
            named(&top, SNAP_DESTROY, b"copy").expect("deleted");
        });
    }),
];

/// Makes names of all kinds.
fn make_names(dir: &Path) -> io::Result<()> {
    let regular = FileType::RegularFile;
    File::create_new(dir.join("created"))?;
    mknodat(CWD, dir.join("node"), regular, Mode::from_raw_mode(0o600), 0)?;
    fs::create_dir(dir.join("directory"))?;
    symlink("target", dir.join("symlink"))?;
    Ok(())
}

fn remove_names(dir: &Path) {
    for name in ["created", "node", "symlink", "whiteout", "renamed"] {
        let _ = fs::remove_file(dir.join(name));
    }
    let _ = fs::remove_dir(dir.join("directory"));
}

/// No answer waits for a name or a page of which the drop waits for the request.
#[test]
fn requests_are_answered_beside_dropped_names() {
    for mode in MODES {
        let Some(mount) = mounted_with(mode) else { return };
        for (number, (row, step)) in STEPS.into_iter().enumerate() {
            let dir = mount.path(&number.to_string());
            fs::create_dir(&dir).expect("a directory");
            in_time(&mount, &format!("{row} ({mode})"), || step(&dir));
        }
    }
}

type NeedsRoom = (&'static str, fn(&Path) -> io::Result<()>);

/// Requests that need room for data, in a directory of a full volume with the file `little`.
const NEED_ROOM: [NeedsRoom; 5] = [
    ("WRITE from the cache", |dir| {
        let file = open(&dir.join("little"), OFlags::empty());
        let view = View::new(&file, 4 * PAGE);
        (0..4 * PAGE).step_by(PAGE).for_each(|at| view.set(at, 9));
        file.sync_all()
    }),
    ("WRITE without an owner", |dir| {
        let file = open(&dir.join("little"), OFlags::empty());
        file.write_all_at(&[8; 4 * PAGE], 0)?;
        file.sync_all()
    }),
    ("WRITE with an owner", |dir| {
        let (file, memory) = (open(&dir.join("little"), OFlags::DIRECT), Aligned::new(7));
        file.write_all_at(&memory.0, 0)
    }),
    ("FALLOCATE", |dir| {
        let file = open(&dir.join("little"), OFlags::empty());
        Ok(fallocate(&file, FallocateFlags::empty(), 1 << 20, 1 << 20)?)
    }),
    ("COPY_FILE_RANGE", |dir| {
        // A part of a block is written anew, not shared.
        let file = open(&dir.join("little"), OFlags::empty());
        let (mut from, mut to) = (100, 5 * PAGE as u64 + 50);
        copy_file_range(&file, Some(&mut from), &file, Some(&mut to), PAGE)?;
        file.sync_all()
    }),
];

/// Takes all free space for a file.
fn fill(path: &Path) {
    let file = File::create(path).expect("a file");
    let mut at = 0;
    for size in [1 << 20, 64 << 10, PAGE as u64] {
        let refused = loop {
            match fallocate(&file, FallocateFlags::empty(), at, size) {
                Ok(()) => at += size,
                Err(error) => break error,
            }
        };
        assert_eq!(refused, Errno::NOSPC);
    }
}

/// Makes a request while a file waits for its last user. The request waits for the `release` and
/// the `forget` of that file, and holds its locks in the kernel meanwhile.
fn waits_for_room(dir: &Path, request: fn(&Path) -> io::Result<()>) {
    // On a busy machine the kernel may release the file later than any request waits.
    let is_done = (0..4).any(|_| {
        fs::write(dir.join("little"), [1; 8 * PAGE]).expect("there is room");
        File::open(dir.join("little")).and_then(|file| file.sync_all()).expect("durable");
        fill(&dir.join("fill"));
        let user = File::open(dir.join("fill")).expect("it is there");
        fs::remove_file(dir.join("fill")).expect("it is there");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                drop(user);
            });
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let _ = fs::metadata(dir.join("absent"));
                    assert!(fs::read_dir(dir).expect("a listing").count() > 0);
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            request(dir).is_ok()
        })
    });
    assert!(is_done, "no room came");
}

/// A request that waits for room keeps none of the requests waiting that bring the room.
#[test]
fn requests_that_wait_for_room_are_answered() {
    for mode in MODES {
        let Some(mount) = mounted_small(256 << 20, mode) else { return };
        for (row, request) in NEED_ROOM {
            let dir = mount.path("");
            in_time(&mount, &format!("{row} ({mode})"), || waits_for_room(&dir, request));
        }
    }
}

/// The length of an attribute that takes a block of metadata almost alone.
const BLOCK_LEN: usize = 15_000;

/// Takes all free space for data, then for metadata. Returns the number of files that it made.
fn fill_metadata(dir: &Path) -> usize {
    fill(&dir.join("fill"));
    let value = vec![5; BLOCK_LEN];
    let refused = (0..).find(|number| {
        let path = dir.join(format!("block{number}"));
        let made = File::create(&path).map_err(|error| Errno::from_io_error(&error));
        let made =
            made.and_then(|_| setxattr(&path, "user.x", &value, XattrFlags::empty()).map_err(Some));
        made.is_err_and(|error| {
            assert_eq!(error, Some(Errno::NOSPC));
            true
        })
    });
    refused.expect("no volume has room for all")
}

/// Makes and renames names as [`make_names`] does, and leaves a whiteout for one of them.
fn make_all_names(dir: &Path) -> io::Result<()> {
    remove_names(dir);
    make_names(dir)?;
    let (from, to) = (dir.join("created"), dir.join("renamed"));
    Ok(renameat_with(CWD, &from, CWD, &to, RenameFlags::WHITEOUT)?)
}

/// New names wait for room in metadata. They hold the inode lock of their directory.
#[test]
fn names_that_wait_for_room_are_made() {
    let Some(mount) = mounted_small(256 << 20, "") else { return };
    let dir = mount.path("names");
    fs::create_dir(&dir).expect("a directory");
    let blocks = fill_metadata(&mount.path(""));
    let refused = make_names(&dir).expect_err("no file is about to go");
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    let mut left = (0..blocks).map(|number| mount.path(&format!("block{number}")));
    in_time(&mount, "CREATE, MKNOD, MKDIR, SYMLINK, RENAME that leaves a whiteout", || {
        let is_done = (0..4).any(|_| {
            let users: Vec<_> = left
                .by_ref()
                .take(blocks / 8)
                .map(|path| {
                    let user = File::open(&path).expect("it is there");
                    fs::remove_file(path).expect("it is there");
                    user
                })
                .collect();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(50));
                    drop(users);
                });
                make_all_names(&dir).is_ok()
            })
        });
        assert!(is_done, "no room came");
    });
}
