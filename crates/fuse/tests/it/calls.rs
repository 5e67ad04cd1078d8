//! Calls that need requests of newer kernels: files without names, whiteouts, the time of birth,
//! long copies, the label. The same steps run on Linux's own btrfs and must give the same results.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, StatxFlags, copy_file_range, linkat, openat,
    renameat_with, statx,
};
use rustix::io::Errno;

use crate::linux::Linux;
use crate::mounted::mounted;

/// Steps in a directory. They return their results as text.
type Steps = fn(&Path) -> Vec<String>;

/// Runs steps on a mount and on Linux's btrfs. Compares the results with `expected`, even where
/// Linux cannot mount the volume.
fn compare(steps: Steps, expected: &[&str]) {
    let Some(mount) = mounted() else { return };
    assert_eq!(steps(&mount.path("")), expected);
    let Some(linux) = Linux::mounted("") else { return };
    assert_eq!(steps(linux.path()), expected, "Linux's btrfs");
}

fn unnamed(dir: &Path, flags: OFlags) -> File {
    let flags = OFlags::TMPFILE | OFlags::RDWR | flags;
    openat(CWD, dir, flags, Mode::from_raw_mode(0o640)).expect("a file without a name").into()
}

/// Gives an open file a name by way of `/proc`, as a program without privileges must.
fn name(file: &File, path: &Path) -> Result<(), Errno> {
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, open, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// A file that is made without a name gets one name, and then a second. It keeps its content.
#[test]
fn unnamed_files_get_names() {
    let steps: Steps = |dir| {
        let mut file = unnamed(dir, OFlags::empty());
        let mut said = Vec::new();
        let state = |file: &File| {
            let attr = file.metadata().expect("attributes");
            format!("{:o} {} names {} bytes", attr.mode() & 0o7777, attr.nlink(), attr.len())
        };
        file.write_all(&[7; 70_000]).expect("room");
        said.push(state(&file));
        said.push(format!("{:?}", name(&file, &dir.join("a"))));
        said.push(format!("{:?}", name(&file, &dir.join("a"))));
        said.push(format!("{:?}", name(&file, &dir.join("b"))));
        said.push(state(&file));
        file.sync_all().expect("durable");
        let again = fs::read(dir.join("b")).expect("content");
        said.push(format!("{}", again == [7; 70_000]));
        said.push(format!("{:?}", name(&unnamed(dir, OFlags::EXCL), &dir.join("c"))));
        let mut gone = unnamed(dir, OFlags::empty());
        gone.write_all(b"text").expect("room");
        gone.rewind().expect("the start");
        let mut text = String::new();
        gone.read_to_string(&mut text).expect("content");
        said.push(text);
        drop(gone);
        let mut names: Vec<_> = fs::read_dir(dir).expect("a listing").flatten().collect();
        names.sort_by_key(fs::DirEntry::file_name);
        said.push(names.iter().map(|one| one.file_name().into_string().expect("ASCII")).collect());
        said
    };
    let expected = [
        "640 0 names 70000 bytes",
        "Ok(())",
        "Err(Os { code: 17, kind: AlreadyExists, message: \"File exists\" })",
        "Ok(())",
        "640 2 names 70000 bytes",
        "true",
        "Err(Os { code: 2, kind: NotFound, message: \"No such file or directory\" })",
        "text",
        "ab",
    ];
    compare(steps, &expected);
}

/// A rename can leave a whiteout at the old name. The new name may be free, lead to a file, or lie
/// in another directory.
#[test]
fn renames_leave_whiteouts() {
    let steps: Steps = |dir| {
        fs::create_dir(dir.join("d")).expect("a directory");
        for name in ["a", "b", "c", "d/f"] {
            fs::write(dir.join(name), name).expect("a file");
        }
        fs::create_dir_all(dir.join("e/inner")).expect("directories");
        let rename = |from: &str, to: &str, flags| {
            let done = renameat_with(CWD, dir.join(from), CWD, dir.join(to), flags);
            format!("{done:?}")
        };
        let whiteout = RenameFlags::WHITEOUT;
        let mut said = vec![
            rename("a", "new", whiteout),
            rename("b", "d/f", whiteout),
            rename("c", "new", whiteout | RenameFlags::NOREPLACE),
            rename("c", "new", whiteout | RenameFlags::EXCHANGE),
            rename("e", "d/e", whiteout),
        ];
        for name in ["a", "b", "e"] {
            let attr = fs::symlink_metadata(dir.join(name)).expect("a whiteout");
            let kind = attr.file_type().is_char_device();
            let (device, names) = (attr.rdev(), attr.nlink());
            said.push(format!("{kind} {device} {names} {:o}", attr.mode() & 0o7777));
        }
        for name in ["new", "d/f", "c"] {
            said.push(fs::read_to_string(dir.join(name)).expect("content"));
        }
        said.push(format!("{}", dir.join("d/e/inner").is_dir()));
        let names = fs::read_dir(dir).expect("a listing").count();
        said.push(format!("{names} names in {} bytes", fs::metadata(dir).expect("it").size()));
        said
    };
    let refused = |number: i32, kind: &str, text: &str| {
        format!("Err(Os {{ code: {number}, kind: {kind}, message: \"{text}\" }})")
    };
    let exists = refused(17, "AlreadyExists", "File exists");
    let invalid = refused(22, "InvalidInput", "Invalid argument");
    let left = "true 0 1 0";
    let expected = [
        "Ok(())",
        "Ok(())",
        &exists,
        &invalid,
        "Ok(())",
        left,
        left,
        left,
        "a",
        "b",
        "c",
        "true",
        "6 names in 16 bytes",
    ];
    compare(steps, &expected);
}

/// Programs can read the time of birth, which stays when other times change.
#[test]
fn files_tell_when_they_were_made() {
    let steps: Steps = |dir| {
        let path = dir.join("file");
        let before = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        fs::write(&path, "text").expect("a file");
        let birth = |path: &Path| {
            let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
            let told = statx(CWD, path, AtFlags::empty(), wanted).expect("attributes");
            assert!(told.stx_mask & StatxFlags::BTIME.bits() != 0, "{:x}", told.stx_mask);
            (told.stx_btime.tv_sec, told.stx_btime.tv_nsec, told.stx_size, told.stx_nlink)
        };
        let first = birth(&path);
        let earlier = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
        let file = File::options().write(true).open(&path).expect("open");
        file.set_times(earlier).expect("new times");
        drop(file);
        let is_later = (first.0, i64::from(first.1)) >= (before.tv_sec, before.tv_nsec);
        let size = format!("{} bytes, {} names", first.2, first.3);
        vec![format!("{is_later}"), format!("{}", birth(&path) == first), size]
    };
    compare(steps, &["true", "true", "4 bytes, 1 names"]);
}

/// A copy of more than four GiB is one call.
#[test]
fn copies_may_be_long() {
    const LEN: u64 = 5 << 30;
    let steps: Steps = |dir| {
        let source = File::create_new(dir.join("from")).expect("a file");
        source.set_len(LEN).expect("a hole");
        let target = File::create_new(dir.join("to")).expect("a file");
        let source = File::open(dir.join("from")).or(Ok::<_, ()>(source)).expect("open");
        let (mut from, mut to) = (0, 0);
        let mut calls = 0;
        while from < LEN {
            let count = usize::try_from(LEN - from).expect("64 bits");
            let copied = copy_file_range(&source, Some(&mut from), &target, Some(&mut to), count);
            assert!(copied.expect("copied") > 0);
            calls += 1;
        }
        vec![format!("{} bytes, {}", target.metadata().expect("it").len(), calls <= 3)]
    };
    compare(steps, &["5368709120 bytes, true"]);
}

/// `FS_IOC_GETFSLABEL`.
const GET_LABEL: rustix::ioctl::Opcode = 0x8100_9431;

/// The label can be read by the call that `findfs` and other programs use.
#[test]
#[expect(unsafe_code, reason = "the command has no name in rustix")]
fn mounts_tell_their_label() {
    let steps: Steps = |dir| {
        let top = File::open(dir).expect("the top");
        // SAFETY: the command writes 256 bytes.
        let label = unsafe {
            let getter = rustix::ioctl::Getter::<GET_LABEL, [u8; 256]>::new();
            rustix::ioctl::ioctl(&top, getter).expect("a label")
        };
        let end = label.iter().position(|&byte| byte == 0).expect("an end");
        vec![String::from_utf8_lossy(&label[..end]).into_owned()]
    };
    compare(steps, &[""]);
}
