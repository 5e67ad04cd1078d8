//! Names are made, found, listed, moved and removed, and are the same after a remount.

use buttress_fs::{
    ErrorKind, FileKind, InodeFlags, MakeOptions, NameError, NewInode, RenameFlags, SetAttr,
    XattrFlags, mode,
};

use buttress_format::Timespec;

use crate::checker::{check, expect_sound};
use crate::volume::{content, file_with, list, memory, memory_with, mount, mount_with, pattern};

fn name_error<T: std::fmt::Debug>(result: buttress_fs::Result<T>) -> NameError {
    match result.expect_err("a refusal").kind() {
        ErrorKind::Name(name) => name,
        kind => panic!("{kind:?}"),
    }
}

/// An empty volume mounts and closes, and the checker finds no fault.
#[test]
fn an_empty_volume_survives_a_mount() {
    let device = memory(256);
    let fs = mount(&device);
    assert_eq!(fs.root().attr().kind, FileKind::Directory);
    assert!(list(&fs.root()).is_empty());
    fs.close().expect("closed");
    check(&device);
}

/// New inodes are found after a remount, with their attributes.
#[test]
fn names_survive_a_remount() {
    let device = memory(256);
    let fs = mount(&device);
    let root = fs.root();
    let dir = root.mkdir(b"dir", 0o750, 10, 20).expect("mkdir");
    file_with(&dir, "file", b"hello");
    dir.symlink(b"link", b"file", 1, 2).expect("symlink");
    dir.create(b"pipe", NewInode::fifo(0o600)).expect("mknod");
    dir.create(b"dev", NewInode::char_device(0o600, (5 << 20) | 1)).expect("mknod");
    drop((root, dir));
    fs.close().expect("closed");
    check(&device);

    let fs = mount(&device);
    let dir = fs.resolve("dir").expect("dir");
    assert_eq!((dir.attr().uid, dir.attr().gid, dir.attr().mode & 0o7777), (10, 20, 0o750));
    assert_eq!(list(&dir), ["dev", "file", "link", "pipe"]);
    assert_eq!(content(&dir.lookup(b"file").expect("file")), b"hello");
    assert_eq!(dir.lookup(b"link").expect("link").read_link().expect("target"), b"file");
    assert_eq!(dir.lookup(b"dev").expect("dev").attr().rdev, (5 << 20) | 1);
    assert_eq!(dir.attr().size, 2 * "devfilelinkpipe".len() as u64);
    assert_eq!(dir.parent().expect("parent"), fs.root().id());
    assert_eq!(name_error(dir.lookup(b"nothing")), NameError::NotFound);
    assert_eq!(name_error(dir.create(b"file", NewInode::file(0o644))), NameError::Exists);
    assert_eq!(name_error(fs.root().rmdir(b"dir")), NameError::NotEmpty);
    assert_eq!(name_error(fs.root().unlink(b"dir")), NameError::IsDir);
}

/// Removing names leaves nothing behind, whether the file is open or not.
#[test]
fn removal_leaves_nothing() {
    let device = memory(256);
    let fs = mount(&device);
    let root = fs.root();
    let open = file_with(&root, "open", &[7; 100_000]);
    file_with(&root, "closed", &[8; 100_000]);
    fs.sync().expect("sync");
    root.unlink(b"open").expect("unlink");
    root.unlink(b"closed").expect("unlink");
    root.mkdir(b"empty", 0o755, 0, 0).expect("mkdir");
    root.rmdir(b"empty").expect("rmdir");
    assert_eq!(content(&open), [7; 100_000], "an open file keeps its content");
    assert_eq!(open.attr().nlink, 0);
    let temporary = root.tmpfile(0o600, 0, 0).expect("tmpfile");
    temporary.write_at(0, b"kept").expect("write");
    root.link(&temporary, b"named").expect("link");
    drop((open, temporary));
    fs.sync().expect("sync");
    assert_eq!(list(&root), ["named"]);
    drop(root);
    fs.close().expect("closed");
    check(&device);
    let fs = mount(&device);
    assert_eq!(content(&fs.resolve("named").expect("named")), b"kept");
}

/// Changed attributes of a file without a name reserve no metadata, because a full volume might
/// have none. The changed attributes are lost with the file, or become durable if the file gets a
/// name.
#[test]
fn attributes_without_a_name_take_nothing() {
    let device = memory(256);
    let fs = mount(&device);
    let root = fs.root();
    let (removed, unnamed) = (file_with(&root, "file", b""), root.tmpfile(0o600, 0, 0));
    let unnamed = unnamed.expect("tmpfile");
    root.unlink(b"file").expect("unlink");
    fs.sync().expect("sync");
    let time = Timespec { sec: 12345, nsec: 678 };
    let change = SetAttr { mode: Some(0o640), mtime: Some(time), ..SetAttr::default() };
    for file in [&removed, &unnamed] {
        let attr = file.set_attr(&change).expect("attributes");
        assert_eq!((attr.mode & 0o7777, attr.mtime), (0o640, time));
    }
    assert_eq!(fs.space_stats().accounts.running, (0, 0), "items that will never be read");
    root.link(&unnamed, b"named").expect("link");
    drop((removed, unnamed, root));
    fs.close().expect("closed");
    check(&device);
    let attr = mount(&device).resolve("named").expect("it has a name").attr();
    assert_eq!((attr.mode & 0o7777, attr.mtime), (0o640, time));
}

/// A file that had no name and was open when the volume was closed is removed by the next mount.
#[test]
fn orphans_go_at_the_next_mount() {
    let device = memory(256);
    let fs = mount(&device);
    let before = fs.statfs().expect("statfs").blocks_available;
    let open = file_with(&fs.root(), "open", &[7; 10 << 20]);
    open.sync().expect("sync");
    fs.root().unlink(b"open").expect("unlink");
    fs.close().expect("closed");
    drop(open);
    check(&device);
    let fs = mount(&device);
    // The first sync removes the inode. The second sync removes the chunk that became empty.
    fs.sync().expect("sync");
    fs.sync().expect("sync");
    let after = fs.statfs().expect("statfs").blocks_available;
    assert!(after + 64 >= before, "{after} of {before} blocks came back");
    fs.close().expect("closed");
    check(&device);
}

/// Hard links are added until one item is full, then some more are added, and then links are
/// removed.
#[test]
fn many_links_use_the_extended_form() {
    let device = memory(256);
    let fs = mount(&device);
    let root = fs.root();
    let file = file_with(&root, "first", b"x");
    let long = "n".repeat(200);
    for n in 0..200 {
        root.link(&file, format!("{long}{n}").as_bytes()).expect("link");
    }
    assert_eq!(file.attr().nlink, 201);
    fs.sync().expect("sync");
    check(&device);
    for n in (0..200).rev() {
        root.unlink(format!("{long}{n}").as_bytes()).expect("unlink");
    }
    assert_eq!(file.attr().nlink, 1);
    drop((root, file));
    fs.close().expect("closed");
    check(&device);
}

/// Tests every kind of rename, including forbidden renames.
#[test]
fn renames() {
    let device = memory(256);
    let fs = mount(&device);
    let root = fs.root();
    let a = root.mkdir(b"a", 0o755, 0, 0).expect("mkdir");
    let b = root.mkdir(b"b", 0o755, 0, 0).expect("mkdir");
    let plain = RenameFlags::default();
    file_with(&a, "one", b"1");
    file_with(&a, "two", b"2");
    a.rename(b"one", &a, b"uno", plain).expect("within");
    a.rename(b"uno", &b, b"one", plain).expect("across");
    a.rename(b"two", &b, b"one", plain).expect("over");
    assert_eq!(content(&b.lookup(b"one").expect("one")), b"2");
    assert!(list(&a).is_empty());
    let no_replace = RenameFlags { no_replace: true, ..plain };
    file_with(&a, "three", b"3");
    assert_eq!(name_error(a.rename(b"three", &b, b"one", no_replace)), NameError::Exists);
    let exchange = RenameFlags { exchange: true, ..plain };
    a.rename(b"three", &b, b"one", exchange).expect("exchange");
    assert_eq!(content(&a.lookup(b"three").expect("three")), b"2");
    assert_eq!(content(&b.lookup(b"one").expect("one")), b"3");
    let below = a.mkdir(b"below", 0o755, 0, 0).expect("mkdir");
    let loops = root.rename(b"a", &below, b"a", plain).expect_err("a loop").kind();
    assert_eq!(loops, ErrorKind::Invalid);
    root.rename(b"b", &below, b"b", plain).expect("a directory moves");
    assert_eq!(b.parent().expect("parent"), below.id());
    let empty = root.mkdir(b"empty", 0o755, 0, 0).expect("mkdir");
    below.rename(b"b", &root, b"empty", plain).expect("over an empty directory");
    assert_eq!(empty.attr().nlink, 0);
    assert_eq!(name_error(empty.create(b"x", NewInode::file(0o644))), NameError::NotFound);
    assert_eq!(name_error(root.rename(b"empty", &root, b"a", plain)), NameError::NotEmpty);
    drop((root, a, b, below, empty));
    fs.close().expect("closed");
    check(&device);
}

/// Extended attributes: values that are too long are refused, and new inodes inherit the access
/// lists of their directory.
#[test]
fn attributes() {
    let device = memory(256);
    let fs = mount(&device);
    let root = fs.root();
    let file = file_with(&root, "file", b"x");
    let flags = XattrFlags::default();
    file.set_xattr(b"user.a", b"1", flags).expect("set");
    file.set_xattr(b"user.b", &[9; 4000], flags).expect("set");
    file.set_xattr(b"user.a", b"2", flags).expect("set again");
    let create = XattrFlags { create: true, ..flags };
    assert_eq!(name_error(file.set_xattr(b"user.a", b"3", create)), NameError::Exists);
    assert_eq!(name_error(file.set_xattr(b"user.c", &[0; 17_000], flags)), NameError::TooBig);
    assert_eq!(file.xattr(b"user.a").expect("get"), b"2");
    file.remove_xattr(b"user.b").expect("remove");
    assert_eq!(name_error(file.remove_xattr(b"user.b")), NameError::NoAttribute);
    assert_eq!(file.list_xattrs().expect("list"), [b"user.a".to_vec()]);

    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, bits, id) in [(1u16, 7u16, !0u32), (2, 7, 9), (4, 5, !0), (16, 7, !0), (32, 0, !0)] {
        list.extend(tag.to_le_bytes());
        list.extend(bits.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let dir = root.mkdir(b"dir", 0o755, 0, 0).expect("mkdir");
    dir.set_xattr(b"system.posix_acl_default", &list, flags).expect("set");
    let below = dir.mkdir(b"below", 0o777, 0, 0).expect("mkdir");
    assert_eq!(below.xattr(b"system.posix_acl_default").expect("copied"), list);
    assert_eq!(below.attr().mode & 0o777, 0o770);
    let made = below.create(b"made", NewInode::file(0o666)).expect("create");
    assert_eq!(made.attr().mode & 0o777, 0o660);
    assert!(made.xattr(b"system.posix_acl_access").is_ok());
    let changed = made
        .set_attr(&SetAttr { mode: Some(0o4755), uid: Some(3), ..SetAttr::default() })
        .expect("set_attr");
    assert_eq!((changed.mode, changed.uid), (mode::REGULAR | 0o4755, 3));
    drop((root, file, dir, below, made));
    fs.close().expect("closed");
    check(&device);
}

/// New files of a directory with the flag against copy-on-write have the flag, too.
#[test]
fn nodatacow_is_inherited() {
    let device = memory(256);
    let fs = mount(&device);
    let dir = fs.root().mkdir(b"dir", 0o755, 0, 0).expect("mkdir");
    let set = SetAttr { flags: Some(InodeFlags::NODATACOW), ..SetAttr::default() };
    dir.set_attr(&set).expect("set_attr");
    let file = file_with(&dir, "file", &[1; 8192]);
    let both = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
    assert_eq!(file.attr().flags & both, both);
    file.sync().expect("sync");
    file.write_at(0, &[2; 4096]).expect("write");
    drop((dir, file));
    fs.close().expect("closed");
    check(&device);
}

/// A read-only mount refuses every change and says why.
#[test]
fn a_read_only_mount_refuses() {
    let device = memory(256);
    let fs = mount(&device);
    file_with(&fs.root(), "file", b"x");
    fs.close().expect("closed");
    let fs = mount_with(&device, "ro");
    assert!(fs.read_only_reason().is_some());
    let file = fs.resolve("file").expect("file");
    assert_eq!(content(&file), b"x");
    assert_eq!(file.write_at(0, b"y").expect_err("read-only").kind(), ErrorKind::ReadOnly);
    let made = fs.root().create(b"new", NewInode::file(0o644));
    assert_eq!(made.expect_err("read-only").kind(), ErrorKind::ReadOnly);
    fs.close().expect("closed");
}

/// A listing that goes on while names come and go shows each lasting name exactly once.
#[test]
fn listings_are_stable() {
    let device = memory(256);
    let fs = mount(&device);
    let dir = fs.root().mkdir(b"dir", 0o755, 0, 0).expect("mkdir");
    for n in 0..300 {
        dir.create(format!("stays{n}").as_bytes(), NewInode::file(0o644)).expect("create");
    }
    let mut seen = Vec::new();
    let mut cookie = 0;
    loop {
        let mut more = 0;
        dir.read_dir(cookie, |entry| {
            seen.push(String::from_utf8_lossy(entry.name).into_owned());
            cookie = entry.cookie;
            more += 1;
            if more == 7 {
                std::ops::ControlFlow::Break(())
            } else {
                std::ops::ControlFlow::Continue(())
            }
        })
        .expect("a listing");
        if more < 7 || seen.len() > 2000 {
            break;
        }
        let made = format!("comes{}", seen.len());
        dir.create(made.as_bytes(), NewInode::file(0o644)).expect("create");
        if seen.len() % 2 == 0 {
            dir.unlink(made.as_bytes()).expect("unlink");
        }
        if seen.len() == 70 {
            fs.sync().expect("sync");
        }
        if seen.len() > 600 {
            break;
        }
    }
    let mut stays: Vec<_> = seen.iter().filter(|name| name.starts_with("stays")).collect();
    assert_eq!(stays.len(), 300);
    stays.sort();
    stays.dedup();
    assert_eq!(stays.len(), 300);
}

/// A dirty file that loses its name exists as long as it has a handle. Its data is not written
/// back, and after its removal no lookup by number finds it.
#[test]
fn nameless_inodes_go_with_their_last_user() {
    let device = memory(256);
    let fs = mount(&device);
    let file = file_with(&fs.root(), "file", &pattern(1, 300_000));
    let (id, free) = (file.id(), fs.statfs().expect("sizes").blocks_free);
    fs.root().unlink(b"file").expect("unlink");
    let second = fs.inode(id).expect("it is held");
    drop(file);
    assert_eq!(content(&second), pattern(1, 300_000));
    drop(second);
    assert_eq!(name_error(fs.inode(id)), NameError::NotFound);
    assert!(fs.statfs().expect("sizes").blocks_free > free, "what it was reserved came back");

    // The same holds for a file that is replaced by a rename, and for a file that never had a name.
    let id = file_with(&fs.root(), "old", &pattern(2, 300_000)).id();
    file_with(&fs.root(), "new", &pattern(3, 300_000));
    fs.root().rename(b"new", &fs.root(), b"old", RenameFlags::default()).expect("rename");
    assert_eq!(name_error(fs.inode(id)), NameError::NotFound);
    let unnamed = fs.root().tmpfile(0o600, 0, 0).expect("a file");
    unnamed.write_at(0, &pattern(4, 100_000)).expect("write");
    let id = unnamed.id();
    drop(unnamed);
    assert_eq!(name_error(fs.inode(id)), NameError::NotFound);
    assert_eq!(content(&fs.resolve("old").expect("file")), pattern(3, 300_000));
    fs.close().expect("closed");
    check(&device);
}

/// A file can have 65535 names. One more name is refused with the error for too many links, after a
/// remount too. Removing a name makes room for another name. Only our own checker runs, because
/// `btrfs check` takes a minute for so many names.
#[test]
fn a_file_has_65535_names_and_no_more() {
    const LINKS: u32 = 65_535;
    let device = memory_with(256, &MakeOptions { nodesize: 4096, ..MakeOptions::default() });
    let fs = mount(&device);
    let dir = fs.root().mkdir(b"dir", 0o755, 0, 0).expect("mkdir");
    let (file, other) = (file_with(&dir, "0", b"counted"), file_with(&dir, "other", b""));
    for i in 1..LINKS {
        dir.link(&file, i.to_string().as_bytes()).expect("below the limit");
    }
    assert_eq!(file.attr().nlink, LINKS);
    assert_eq!(name_error(dir.link(&file, b"more")), NameError::TooManyLinks);
    assert_eq!(name_error(fs.root().link(&file, b"more")), NameError::TooManyLinks);
    dir.link(&other, b"more").expect("another file's name");
    drop((dir, file, other));
    fs.close().expect("closed");
    expect_sound(&device);

    let fs = mount(&device);
    let dir = fs.resolve("dir").expect("dir");
    let file = dir.lookup(b"65534").expect("the last name");
    assert_eq!((file.attr().nlink, file.id()), (LINKS, dir.lookup(b"0").expect("the first").id()));
    assert_eq!(name_error(dir.link(&file, b"one")), NameError::TooManyLinks);
    dir.unlink(b"30000").expect("unlink");
    dir.link(&file, b"one").expect("there is room for one");
    assert_eq!(name_error(dir.link(&file, b"two")), NameError::TooManyLinks);
    for i in 30_001..40_000 {
        dir.unlink(i.to_string().as_bytes()).expect("unlink");
    }
    assert_eq!(file.attr().nlink, LINKS - 9_999);
    assert_eq!(content(&file), b"counted");
    drop((dir, file));
    fs.close().expect("closed");
    expect_sound(&device);
}

/// A rename leaves a whiteout in place of the old name, and after a remount the whiteout and the
/// new name exist.
#[test]
fn whiteouts_take_the_place_of_names() {
    let device = memory(256);
    let fs = mount(&device);
    let root = fs.root();
    let dir = root.mkdir(b"dir", 0o755, 0, 0).expect("mkdir");
    file_with(&root, "a", b"first");
    file_with(&root, "b", b"second");
    let leave = |from: &[u8], to: &[u8], flags| {
        root.rename_leaving_whiteout(from, &dir, to, flags, (10, 20))
    };
    let plain = RenameFlags::default();
    leave(b"a", b"new", plain).expect("over nothing");
    leave(b"b", b"new", plain).expect("over a file");
    let exchange = RenameFlags { exchange: true, ..plain };
    assert_eq!(leave(b"a", b"new", exchange).expect_err("refused").kind(), ErrorKind::Invalid);
    root.create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
    assert_eq!(leave(b"sub", b"s", plain).expect_err("refused").kind(), ErrorKind::Unsupported);
    drop(dir);
    fs.resolve("dir/new").expect("the file").sync().expect("durable");
    drop((root, fs));
    check(&device);

    let fs = mount(&device);
    for name in ["a", "b"] {
        let attr = fs.resolve(name).expect("a whiteout").attr();
        assert_eq!((attr.kind, attr.rdev, attr.mode & 0o7777), (FileKind::Character, 0, 0));
        assert_eq!((attr.uid, attr.gid, attr.nlink), (10, 20, 1));
    }
    assert_eq!(content(&fs.resolve("dir/new").expect("the file")), b"second");
    fs.close().expect("closed");
    check(&device);
}
