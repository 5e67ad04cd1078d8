//! Folders made to do harm, given to the copy that `mkfs --rootdir` makes.
//!
//! The volume must have the folder's content, and the checker must find nothing in it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_check::{NoProgress, Options, check_devices};
use buttress_cli::transfer::{Import, Job, Keep, open_dir, survey};
use buttress_cli::ui::Progress;
use buttress_fs::{FileKind, Filesystem, Inode, InodeId, MountOptions, NameError};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid,
    XattrFlags,
};

use crate::dice::Dice;
use crate::mutate::NUMBERS;
use crate::targets;

/// The most steps in which a tree is made.
const STEPS_MAX: usize = 120;
/// The longest path of a tree. Objects are made by their whole path, and system calls refuse paths
/// over 4096 bytes.
const PATH_MAX: usize = 3000;
/// The offsets of pieces of files.
const PLACES: [u64; 9] = [0, 1, 4095, 4096, 100_000, 131_071, 1 << 20, (1 << 31) - 1, 1 << 40];
/// The number of pieces of a file.
const PIECES: u64 = 3;
/// Bits of modes.
const MODES: [u32; 8] = [0, 0o7777, 0o4755, 0o2070, 0o1777, 0o644, 0o111, 0o600];
/// The content of files outside of the folder, which must not be found in a volume.
const SECRET: &[u8] = b"SECRET-OF-SOMEBODY-ELSE";

const XATTRS: [&str; 5] =
    ["user.x", "user.another one", "trusted.t", "security.s", "user.\u{1f4a9}\n"];

fn name(dice: &mut Dice<'_>, number: usize) -> PathBuf {
    let mut bytes = match dice.below(8) {
        0 => vec![b'n'; 252],
        1 => vec![0xff, 0xfe, b'\n', b'\t', 0x1b],
        2 => b" -rf ".to_vec(),
        3 => "\u{202e}\u{0301}\u{1f4a9}".into(),
        4 => b"...".to_vec(),
        5 => vec![0x80 | dice.below(127) as u8; 1 + dice.below(200)],
        _ => Vec::new(),
    };
    bytes.extend(number.to_string().into_bytes());
    bytes.truncate(255);
    PathBuf::from(OsStr::from_bytes(&bytes))
}

/// Makes a tree as the bytes say.
fn plant(root: &Path, outside: &Path, dice: &mut Dice<'_>) {
    let is_root = rustix::process::geteuid().is_root();
    let (mut folders, mut others) = (vec![root.to_owned()], Vec::new());
    for number in 0..STEPS_MAX {
        if dice.is_empty() {
            break;
        }
        let folder = dice.one(&folders).clone();
        let path = folder.join(name(dice, number));
        if path.as_os_str().len() > PATH_MAX {
            continue;
        }
        let mut special = |kind: FileType, device: u64| {
            // Making devices needs a privilege, and not every host allows the name.
            if rustix::fs::mknodat(CWD, &path, kind, Mode::from(0o600), device).is_ok() {
                others.push(path.clone());
            }
        };
        match dice.below(14) {
            0..3 => {
                if std::fs::create_dir(&path).is_ok() {
                    folders.push(path);
                }
            }
            3 => {
                let targets = [outside.to_owned(), path.clone(), PathBuf::from("x".repeat(4000))];
                let odd = PathBuf::from(OsStr::from_bytes(b"../../../\xff/etc/passwd"));
                let target = [&targets[..], &[odd, folder.clone()]].concat();
                if std::os::unix::fs::symlink(dice.one(&target), &path).is_ok() {
                    others.push(path);
                }
            }
            4 => special(FileType::Fifo, 0),
            5 => special(FileType::Socket, 0),
            6 => special(FileType::CharacterDevice, *dice.one(&NUMBERS)),
            7 => special(FileType::BlockDevice, *dice.one(&NUMBERS)),
            8 if !others.is_empty() => {
                // On some hosts, the number of names of a file is limited.
                if rustix::fs::link(dice.one(&others), &path).is_ok() {
                    others.push(path);
                }
            }
            9 => {
                let path = dice.one(&[&folders[..], &others[..]].concat()).clone();
                let bits = *dice.one(&MODES) | if is_root { 0 } else { 0o700 };
                // The call fails for a symbolic link, which has no mode.
                let _ =
                    rustix::fs::chmodat(CWD, &path, Mode::from(bits), AtFlags::SYMLINK_NOFOLLOW);
            }
            10 => {
                let path = dice.one(&[&folders[..], &others[..]].concat()).clone();
                let value = vec![dice.below(256) as u8; dice.below(3900)];
                let name = *dice.one(&XATTRS);
                // Not every host has extended attributes, and not every user may set them.
                let _ = rustix::fs::lsetxattr(&path, name, &value, XattrFlags::empty());
            }
            11 => {
                let path = dice.one(&[&folders[..], &others[..]].concat()).clone();
                let mut time = || Timespec {
                    tv_sec: *dice.one(&NUMBERS) as i64,
                    tv_nsec: (dice.word() % 1_000_000_000) as i64,
                };
                let times = Timestamps { last_access: time(), last_modification: time() };
                let _ = rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW);
                if is_root {
                    let (uid, gid) = (dice.below(65536) as u32, dice.below(65536) as u32 * 65521);
                    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                    let _ = rustix::fs::chownat(CWD, &path, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
                }
            }
            _ => {
                if file(&path, dice).is_ok() {
                    others.push(path);
                }
            }
        }
    }
}

/// A file with pieces and holes, cut or lengthened at the end.
fn file(path: &Path, dice: &mut Dice<'_>) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).create_new(true).open(path)?;
    for _ in 0..dice.below(PIECES as usize + 1) {
        let len = *dice.one(&[40_000, 3000, 5000, 9000]);
        let bytes = vec![dice.below(256) as u8; dice.below(len)];
        let place = *dice.one(&PLACES);
        // The write fails if the host does not allow so long a file.
        let _ = file.write_all_at(&bytes, place);
    }
    if dice.below(3) == 0 {
        let _ = file.set_len(*dice.one(&PLACES) + dice.below(5000) as u64);
    }
    Ok(())
}

/// Makes a tree from the bytes and copies it into a volume. The volume is checked and compared.
///
/// # Panics
///
/// If there is a bug.
pub fn rootdir(data: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder for the tree");
    let (root, outside) = (folder.path().join("tree"), folder.path().join("outside"));
    std::fs::create_dir(&root).expect("a new folder");
    std::fs::write(&outside, SECRET).expect("a new file");
    let mut dice = Dice::new(data);
    let compress = *dice.one(&["no", "zlib", "lzo", "zstd"]);
    plant(&root, &outside, &mut dice);

    let device = Arc::new(targets::fresh().fork());
    let options = MountOptions::parse(&format!("rw,noatime,compress={compress}"));
    let mut options = options.expect("known options");
    options.background = false;
    let fs = Filesystem::open(vec![device.clone()], options).expect("a good volume");
    let census = survey(open_dir(&root).expect("it is ours"), &|_| false).expect("it is ours");
    let bar = Progress::hidden();
    let mut job = Job::new(Keep { attributes: true, everything: true }, true, &bar);
    let top = fs.root();
    let copied = Import::new(&mut job, &fs).contents(open_dir(&root).expect("it is ours"), &top);
    copied.unwrap_or_else(|failure| panic!("{failure}"));
    let tally = job.tally;
    assert!(
        tally.files + tally.directories + tally.others <= census.entries,
        "{tally:?} {census:?}"
    );
    assert!(tally.bytes <= tally.files * PIECES * (1 << 18), "holes are left out: {tally:?}");
    drop(top);
    fs.close().expect("room");

    let report = check_devices(vec![device.clone()], &Options::thorough(), &NoProgress);
    let report = report.expect("a good volume");
    assert!(report.issues.is_empty(), "{}", report.to_text());
    let options = MountOptions::parse("ro,noatime").expect("known options");
    let fs = Filesystem::open(vec![device], options).expect("a good volume");
    let same = Compared::default().folders(&root, &fs.root());
    assert_eq!(same, census.entries, "every name is there");
    fs.close().expect("nothing to write");
}

/// Files with several names, on both sides.
#[derive(Default)]
struct Compared {
    links: HashMap<(u64, u64), InodeId>,
}

impl Compared {
    /// Compares a folder and everything in it with its copy. Returns the number of names.
    fn folders(&mut self, root: &Path, top: &Inode) -> u64 {
        let mut count = 0;
        let mut left = vec![(root.to_owned(), top.clone())];
        while let Some((path, inode)) = left.pop() {
            self.entry(&path, &inode);
            let mut theirs: Vec<_> = std::fs::read_dir(&path)
                .expect("it is ours")
                .map(|entry| entry.expect("it is ours").file_name())
                .collect();
            let mut ours = buttress_cli::listing::entries(&inode).expect("a good volume");
            theirs.sort_unstable();
            let names: Vec<_> = ours.iter().map(|entry| OsStr::from_bytes(&entry.name)).collect();
            assert_eq!(names, theirs, "in {}", path.display());
            count += ours.len() as u64;
            for (name, entry) in theirs.iter().zip(ours.drain(..)) {
                let path = path.join(name);
                if entry.attr.kind == FileKind::Directory {
                    left.push((path, entry.inode));
                } else {
                    self.entry(&path, &entry.inode);
                }
            }
        }
        count
    }

    fn entry(&mut self, path: &Path, inode: &Inode) {
        let what = || path.display().to_string();
        let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).expect("it is ours");
        let attr = inode.attr();
        let kind = FileKind::from_mode(stat.st_mode);
        assert_eq!(Some(attr.kind), kind, "{}", what());
        assert_eq!((attr.uid, attr.gid), (stat.st_uid, stat.st_gid), "{}", what());
        assert_eq!(attr.mtime.sec, stat.st_mtime, "{}", what());
        assert_eq!(Ok(attr.mtime.nsec), stat.st_mtime_nsec.try_into(), "{}", what());
        if attr.kind != FileKind::Symlink {
            assert_eq!(attr.mode & 0o7777, stat.st_mode & 0o7777, "{}", what());
        }
        if attr.kind != FileKind::Directory {
            assert_eq!(u64::from(attr.nlink), stat.st_nlink, "{}", what());
            let of = *self.links.entry((stat.st_dev, stat.st_ino)).or_insert(attr.id);
            assert_eq!(attr.id, of, "{}: names of one file stay names of one file", what());
        }
        match attr.kind {
            FileKind::Regular => content(path, inode, &stat),
            FileKind::Symlink => {
                let target = std::fs::read_link(path).expect("it is ours");
                let link = inode.read_link().expect("a good volume");
                assert_eq!(OsStr::from_bytes(&link), target, "{}", what());
            }
            FileKind::Character | FileKind::Block => {
                let (major, minor) =
                    (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
                assert_eq!(attr.rdev, u64::from(major) << 20 | u64::from(minor), "{}", what());
            }
            _ => {}
        }
        for name in XATTRS {
            let mut value = vec![0; 4096];
            let theirs = rustix::fs::lgetxattr(path, name, &mut value[..]).ok();
            let ours = inode.xattr(name.as_bytes());
            let is_none = matches!(&ours, Err(error)
                if error.kind() == buttress_fs::ErrorKind::Name(NameError::NoAttribute));
            match theirs {
                Some(len) => assert_eq!(ours.expect("it was copied"), value[..len], "{}", what()),
                None => assert!(is_none, "{}: {name:?} is {ours:?}", what()),
            }
        }
    }
}

/// The copy has the runs of data of the host's file. Everything between runs reads as zeros.
fn content(path: &Path, inode: &Inode, stat: &Stat) {
    let size = stat.st_size as u64;
    assert_eq!(inode.attr().size, size, "{}", path.display());
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).expect("it is ours");
    let mut at = 0;
    let (mut theirs, mut ours) = (vec![0; 128 << 10], vec![0; 128 << 10]);
    while at < size {
        let start = rustix::fs::seek(&file, SeekFrom::Data(at)).unwrap_or(size).min(size);
        // Compares the beginning and the end of the hole, and the whole run.
        for (from, len) in [(at, 4096), (start.saturating_sub(4096).max(at), 4096)] {
            let len = len.min(start.saturating_sub(from)) as usize;
            let read = inode.read_at(from, &mut ours[..len]).expect("a good volume");
            assert!(read == len && ours[..len].iter().all(|&byte| byte == 0), "{}", path.display());
        }
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        at = start;
        while at < end {
            let want = theirs.len().min((end - at) as usize);
            let len = rustix::io::pread(&file, &mut theirs[..want], at).expect("it is ours");
            let read = inode.read_at(at, &mut ours[..want]).expect("a good volume");
            assert!(len == read && len > 0, "{} at {at}", path.display());
            assert!(ours[..len] == theirs[..len], "{} at {at}", path.display());
            at += len as u64;
        }
        if start >= size {
            break;
        }
    }
}
