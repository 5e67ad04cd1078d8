//! Names: making, finding, moving and removing them.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, makedev, mknodat, renameat_with};

use crate::mounted::mounted;

/// An object of every kind can be made, has its kind, and can be removed.
#[test]
fn every_kind_of_object() {
    let Some(mount) = mounted() else { return };
    fs::write(mount.path("file"), "content").expect("a file");
    fs::create_dir(mount.path("directory")).expect("a directory");
    symlink("where/to", mount.path("link")).expect("a symbolic link");
    let node = |name: &str, kind, device| {
        mknodat(CWD, mount.path(name), kind, Mode::from_raw_mode(0o600), device).expect(name);
        fs::symlink_metadata(mount.path(name)).expect(name)
    };
    assert!(node("pipe", FileType::Fifo, 0).file_type().is_fifo());
    assert!(node("socket", FileType::Socket, 0).file_type().is_socket());
    let device = makedev(259, 0x1_2345);
    let block = node("block", FileType::BlockDevice, device);
    assert!(block.file_type().is_block_device());
    assert_eq!(block.rdev(), device);
    assert!(
        node("character", FileType::CharacterDevice, makedev(1, 3)).file_type().is_char_device()
    );
    assert_eq!(fs::read_link(mount.path("link")).expect("a link").to_str(), Some("where/to"));
    for name in ["file", "link", "pipe", "socket", "block", "character"] {
        fs::remove_file(mount.path(name)).expect(name);
    }
    fs::remove_dir(mount.path("directory")).expect("it is empty");
    assert_eq!(fs::read_dir(mount.path("")).expect("the root").count(), 0);
}

/// Wrong requests are refused with the error number that programs expect.
#[test]
fn refusals() {
    let Some(mount) = mounted() else { return };
    fs::create_dir(mount.path("d")).expect("a directory");
    fs::write(mount.path("d/f"), "").expect("a file");
    let kind = |result: std::io::Result<()>| result.expect_err("refused").kind();
    assert_eq!(kind(fs::create_dir(mount.path("d"))), ErrorKind::AlreadyExists);
    assert_eq!(kind(fs::remove_dir(mount.path("d"))), ErrorKind::DirectoryNotEmpty);
    assert_eq!(kind(fs::remove_file(mount.path("d"))), ErrorKind::IsADirectory);
    assert_eq!(kind(fs::remove_dir(mount.path("d/f"))), ErrorKind::NotADirectory);
    assert_eq!(kind(fs::remove_file(mount.path("none"))), ErrorKind::NotFound);
    assert_eq!(kind(fs::rename(mount.path("none"), mount.path("x"))), ErrorKind::NotFound);
    assert_eq!(kind(fs::write(mount.path("d/f/g"), "")), ErrorKind::NotADirectory);
    assert_eq!(kind(fs::rename(mount.path("d"), mount.path("d/below"))), ErrorKind::InvalidInput);
    assert_eq!(kind(fs::write(mount.path(&"n".repeat(256)), "")), ErrorKind::InvalidFilename);
    fs::write(mount.path(&"n".repeat(255)), "").expect("the longest name");
}

/// The inode number in a listing is the number that `stat` returns, and the root has the number of
/// the disk format.
#[test]
fn inode_numbers_agree() {
    let Some(mount) = mounted() else { return };
    fs::write(mount.path("a"), "").expect("a file");
    fs::create_dir(mount.path("b")).expect("a directory");
    assert_eq!(fs::metadata(mount.path("")).expect("the root").ino(), 256);
    for entry in
        rustix::fs::Dir::new(fs::File::open(mount.path("")).expect("the root")).expect("a listing")
    {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_str().expect("ASCII");
        if name != ".." {
            assert_eq!(entry.ino(), fs::metadata(mount.path(name)).expect(name).ino(), "{name}");
        }
    }
}

/// A rename moves a name, replaces a name, refuses to replace a name, and exchanges two names.
/// Directories know their new parent.
#[test]
fn renames() {
    let Some(mount) = mounted() else { return };
    let read = |name: &str| fs::read_to_string(mount.path(name)).expect(name);
    fs::write(mount.path("a"), "a").expect("a file");
    fs::write(mount.path("b"), "b").expect("a file");
    fs::create_dir_all(mount.path("d/e")).expect("directories");
    let with = |from: &str, to: &str, flags| {
        renameat_with(CWD, mount.path(from), CWD, mount.path(to), flags)
    };
    assert_eq!(with("a", "b", RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    with("a", "b", RenameFlags::EXCHANGE).expect("both exist");
    assert_eq!((read("a"), read("b")), ("b".to_owned(), "a".to_owned()));
    assert_eq!(with("a", "none", RenameFlags::EXCHANGE), Err(rustix::io::Errno::NOENT));
    with("a", "d/e", RenameFlags::EXCHANGE).expect("a file and a directory may swap");
    assert_eq!(read("d/e"), "b");
    assert!(fs::metadata(mount.path("a")).expect("it was e").is_dir());
    with("d/e", "a/f", RenameFlags::empty()).expect("into the directory");
    fs::rename(mount.path("b"), mount.path("a/f")).expect("over a file");
    assert_eq!(read("a/f"), "a");
    fs::rename(mount.path("a"), mount.path("d/a")).expect("a directory");
    let up = fs::metadata(mount.path("d/a/..")).expect("its parent").ino();
    assert_eq!(up, fs::metadata(mount.path("d")).expect("d").ino());
}

/// A file with several names has one inode. The link count of the inode is the number of names.
#[test]
fn hard_links() {
    let Some(mount) = mounted() else { return };
    fs::write(mount.path("one"), "1").expect("a file");
    for count in 2..=50 {
        fs::hard_link(mount.path("one"), mount.path(&format!("name{count}"))).expect("a link");
        assert_eq!(fs::metadata(mount.path("one")).expect("one").nlink(), count);
    }
    fs::write(mount.path("name7"), "seven").expect("the same file");
    assert_eq!(fs::read_to_string(mount.path("one")).expect("one"), "seven");
    fs::remove_file(mount.path("one")).expect("one name");
    assert_eq!(fs::metadata(mount.path("name7")).expect("another").nlink(), 49);
    let mount = mount.again();
    assert_eq!(fs::read_to_string(mount.path("name50")).expect("the last"), "seven");
}

/// A name that was not found is found once it exists.
#[test]
fn absence_is_remembered_only_while_true() {
    let Some(mount) = mounted() else { return };
    for round in 0..3 {
        assert!(!mount.path("x").exists(), "round {round}");
        fs::write(mount.path("x"), "").expect("a file");
        assert!(mount.path("x").exists());
        fs::rename(mount.path("x"), mount.path("y")).expect("a rename");
        assert!(!mount.path("x").exists());
        fs::remove_file(mount.path("y")).expect("there");
    }
}
