//! Modes, owners, times, flags and extended attributes.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;

use buttress_test_program::skipped;
use rustix::fs::{
    AtFlags, CWD, Timespec, Timestamps, XattrFlags, getxattr, listxattr, removexattr, setxattr,
    utimensat,
};
use rustix::io::Errno;

use crate::mounted::mounted;

const UTIME_NOW: rustix::fs::Nsecs = rustix::fs::UTIME_NOW as rustix::fs::Nsecs;
const UTIME_OMIT: rustix::fs::Nsecs = rustix::fs::UTIME_OMIT as rustix::fs::Nsecs;

/// Modes and owners are kept, and a new owner takes the set-id bits away.
#[test]
fn modes_and_owners() {
    let Some(mount) = mounted() else { return };
    let path = mount.path("file");
    fs::write(&path, "").expect("a file");
    let mode = || fs::metadata(&path).expect("attributes").mode() & 0o7777;
    for bits in [0o000, 0o644, 0o755, 0o1777, 0o4755, 0o6755] {
        fs::set_permissions(&path, Permissions::from_mode(bits)).expect("a mode");
        assert_eq!(mode(), bits);
    }
    chown(&path, Some(1234), Some(5678)).expect("an owner");
    assert_eq!(mode(), 0o755, "set-id bits do not survive a new owner");
    let attr = fs::metadata(&path).expect("attributes");
    assert_eq!((attr.uid(), attr.gid()), (1234, 5678));
    let mount = mount.again();
    let attr = fs::metadata(mount.path("file")).expect("attributes");
    assert_eq!((attr.uid(), attr.gid(), attr.mode() & 0o7777), (1234, 5678, 0o755));
}

/// A write by another user takes the set-user-id bit away.
#[test]
fn writes_take_set_id_away() {
    let Some(mount) = mounted() else { return };
    fs::set_permissions(mount.path(""), Permissions::from_mode(0o777)).expect("a mode");
    let path = mount.path("tool");
    fs::write(&path, "#!").expect("a file");
    for by in ["printf x >> tool", ": > tool", "truncate -s 1 tool"] {
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).expect("a mode");
        let done = Command::new("setpriv")
            .args(["--reuid=1234", "--regid=1234", "--clear-groups", "sh", "-c", by])
            .current_dir(mount.path(""))
            .status();
        match done {
            Ok(status) => assert!(status.success(), "{by}"),
            Err(_) => return skipped("setpriv"),
        }
        let mode = fs::metadata(&path).expect("attributes").mode() & 0o7777;
        assert_eq!(mode, 0o777, "after {by}");
    }
}

/// A new object in a directory with the set-group bit belongs to the group of the directory.
#[test]
fn set_group_directories() {
    let Some(mount) = mounted() else { return };
    fs::create_dir(mount.path("d")).expect("a directory");
    chown(mount.path("d"), None, Some(4321)).expect("a group");
    fs::set_permissions(mount.path("d"), Permissions::from_mode(0o2775)).expect("a mode");
    fs::write(mount.path("d/f"), "").expect("a file");
    fs::create_dir(mount.path("d/e")).expect("a directory");
    std::os::unix::fs::symlink("x", mount.path("d/l")).expect("a link");
    for name in ["d/f", "d/e", "d/l"] {
        assert_eq!(fs::symlink_metadata(mount.path(name)).expect(name).gid(), 4321, "{name}");
    }
    assert_eq!(fs::metadata(mount.path("d/e")).expect("d/e").mode() & 0o2000, 0o2000);
}

/// Times are kept to the nanosecond, before 1970 too, and "now" is now.
#[test]
fn times() {
    let Some(mount) = mounted() else { return };
    let path = mount.path("file");
    fs::write(&path, "content").expect("a file");
    let set = |access: Timespec, change: Timespec| {
        let times = Timestamps { last_access: access, last_modification: change };
        utimensat(CWD, &path, &times, AtFlags::empty()).expect("times");
    };
    let at = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    set(at(1, 2), at(2_000_000_000, 999_999_999));
    let attr = fs::metadata(&path).expect("attributes");
    assert_eq!((attr.atime(), attr.atime_nsec()), (1, 2));
    assert_eq!((attr.mtime(), attr.mtime_nsec()), (2_000_000_000, 999_999_999));
    set(at(-2, 800_000_000), at(0, UTIME_OMIT));
    let attr = fs::metadata(&path).expect("attributes");
    assert_eq!((attr.atime(), attr.atime_nsec()), (-2, 800_000_000));
    assert_eq!(attr.mtime(), 2_000_000_000);
    set(at(0, UTIME_NOW), at(0, UTIME_NOW));
    let attr = fs::metadata(&path).expect("attributes");
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    assert!(now.as_secs().abs_diff(attr.mtime().cast_unsigned()) < 60);
    set(at(77, 0), at(88, 5));
    let mount = mount.again();
    let attr = fs::metadata(mount.path("file")).expect("attributes");
    assert_eq!((attr.atime(), attr.mtime(), attr.mtime_nsec()), (77, 88, 5));
}

/// A write moves the time of change; reading the attributes does not.
#[test]
fn writes_move_times() {
    let Some(mount) = mounted() else { return };
    let path = mount.path("file");
    fs::write(&path, "content").expect("a file");
    let old = Timespec { tv_sec: 1000, tv_nsec: 0 };
    let times = Timestamps { last_access: old, last_modification: old };
    utimensat(CWD, &path, &times, AtFlags::empty()).expect("times");
    assert_eq!(fs::metadata(&path).expect("attributes").mtime(), 1000);
    fs::write(&path, "other").expect("content");
    assert!(fs::metadata(&path).expect("attributes").mtime() > 1000);
    let mount = mount.again();
    assert!(fs::metadata(mount.path("file")).expect("attributes").mtime() > 1000);
}

/// Extended attributes can be set, measured, read, listed and removed. Wrong attributes are
/// refused, and valid attributes last.
#[test]
fn extended_attributes() {
    let Some(mount) = mounted() else { return };
    let path = mount.path("file");
    fs::write(&path, "").expect("a file");
    let set = |name: &str, value: &[u8], flags| setxattr(&path, name, value, flags);
    set("user.colour", b"blue", XattrFlags::CREATE).expect("new");
    assert_eq!(set("user.colour", b"red", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.shape", b"round", XattrFlags::REPLACE), Err(Errno::NODATA));
    set("user.colour", b"green", XattrFlags::REPLACE).expect("there");
    set("user.empty", b"", XattrFlags::empty()).expect("an empty value");
    set("trusted.secret", &[7; 3000], XattrFlags::empty()).expect("a large value");
    let mut buffer = [0_u8; 4096];
    assert_eq!(getxattr(&path, "user.colour", &mut buffer), Ok(5));
    assert_eq!(&buffer[..5], b"green");
    let small: &mut [u8] = &mut [0; 3];
    assert_eq!(getxattr(&path, "user.colour", small), Err(Errno::RANGE));
    assert_eq!(getxattr(&path, "user.none", &mut buffer), Err(Errno::NODATA));
    assert_eq!(set("strange.name", b"", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    let len = listxattr(&path, &mut buffer).expect("a list");
    let mut names: Vec<&[u8]> =
        buffer[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    assert_eq!(names, [&b"trusted.secret"[..], b"user.colour", b"user.empty"]);
    removexattr(&path, "user.empty").expect("there");
    assert_eq!(removexattr(&path, "user.empty"), Err(Errno::NODATA));
    let mount = mount.again();
    assert_eq!(getxattr(mount.path("file"), "trusted.secret", &mut buffer), Ok(3000));
    assert!(buffer[..3000].iter().all(|byte| *byte == 7));
}

/// `chattr` sets flags that `lsattr` shows. A file keeps its flag against copy-on-write.
#[test]
fn flags() {
    let Some(mount) = mounted() else { return };
    let path = mount.path("file");
    let file = File::create(&path).expect("a file");
    let flags = rustix::fs::ioctl_getflags(&file).expect("flags");
    assert!(flags.is_empty());
    let wanted = rustix::fs::IFlags::NODUMP | rustix::fs::IFlags::NOCOW;
    rustix::fs::ioctl_setflags(&file, wanted).expect("flags");
    assert_eq!(rustix::fs::ioctl_getflags(&file).expect("flags"), wanted);
    drop(file);
    let mount = mount.again();
    let file = File::open(mount.path("file")).expect("a file");
    assert_eq!(rustix::fs::ioctl_getflags(&file).expect("flags"), wanted);
}

/// Every program must respect immutable and append-only files. Only root can set and remove these
/// flags.
#[test]
fn immutable_and_growing() {
    use rustix::fs::IFlags;
    let Some(mount) = mounted() else { return };
    let path = mount.path("file");
    fs::write(&path, "first\n").expect("a file");
    let set = |flags| {
        let file = File::open(&path).expect("a file");
        rustix::fs::ioctl_setflags(file, flags).expect("flags");
    };
    let refused = |error: std::io::Error| assert_eq!(error.raw_os_error(), Some(1), "{error}");
    set(IFlags::APPEND);
    refused(fs::write(&path, "over").expect_err("opened to overwrite"));
    refused(File::options().write(true).open(&path).expect_err("opened to overwrite"));
    refused(fs::remove_file(&path).expect_err("removed"));
    let mut more = File::options().append(true).open(&path).expect("opened to append");
    std::io::Write::write_all(&mut more, b"second\n").expect("appended");
    drop(more);
    assert_eq!(fs::read(&path).expect("content"), b"first\nsecond\n");
    set(IFlags::IMMUTABLE);
    refused(File::options().append(true).open(&path).expect_err("opened to append"));
    refused(fs::rename(&path, mount.path("other")).expect_err("renamed"));
    refused(fs::set_permissions(&path, Permissions::from_mode(0o600)).expect_err("a mode"));
    fs::set_permissions(mount.path(""), Permissions::from_mode(0o777)).expect("a mode");
    let by_another = Command::new("setpriv")
        .args(["--reuid=1234", "--regid=1234", "--clear-groups", "chattr", "-i", "file"])
        .current_dir(mount.path(""))
        .output();
    if let Ok(output) = by_another {
        assert!(!output.status.success(), "only root takes the flag away");
    }
    set(IFlags::empty());
    fs::remove_file(&path).expect("removed");
}

/// `btrfs.compression` is a property. New objects inherit the property from their directory, and
/// the property follows the flag of `chattr`.
#[test]
fn properties() {
    use rustix::fs::IFlags;
    let Some(mount) = mounted() else { return };
    let name = "btrfs.compression";
    let flags = XattrFlags::empty();
    setxattr(mount.path(""), name, b"zstd", flags).expect("a property");
    fs::write(mount.path("file"), "words ".repeat(100_000)).expect("a file");
    let mut buffer = [0; 16];
    assert_eq!(getxattr(mount.path("file"), name, &mut buffer), Ok(4));
    assert_eq!(&buffer[..4], b"zstd");
    let file = File::open(mount.path("file")).expect("a file");
    let shown = rustix::fs::ioctl_getflags(&file).expect("flags");
    assert!(shown.contains(IFlags::COMPRESSED));
    rustix::fs::ioctl_setflags(&file, IFlags::empty()).expect("flags");
    assert_eq!(getxattr(mount.path("file"), name, &mut buffer), Err(Errno::NODATA));
    let wrong = setxattr(mount.path("file"), name, b"gzip", flags);
    assert_eq!(wrong, Err(Errno::INVAL));
}
