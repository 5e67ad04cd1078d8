//! The commands of ioctl(2) that Linux's btrfs has. One table of these commands runs on a mount and
//! on Linux's own btrfs, from copies of one image, by root and by other users. The answers must be
//! equal. The table leaves out times, generations, random uuids and names of devices.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::thread;

use buttress_test_program::unless_busy;
use rustix::fs::{Gid, Uid};

use crate::commands::{
    BY_ID, DEFAULT_SUBVOL, DEV_INFO, FS_INFO, GET_FEATURES, GET_INODE_FLAGS, GETFLAGS, GETVERSION,
    INHERIT, NOCOW, READ_ONLY, SET_INODE_FLAGS, SETFLAGS, SNAP_CREATE, SNAP_CREATE_V2,
    SNAP_DESTROY, SNAP_DESTROY_V2, START_SYNC, SUBVOL_CREATE, SUBVOL_CREATE_V2, SYNC, WAIT_SYNC,
    argument, call, device_errors, named, number, open, path_for_users, path_of, received, refs,
    search, second, snapshot, subvolume, trim, word,
};
use crate::linux::Linux;
use crate::mounted::{SHARED, mounted_behind};

const USER: u32 = 1000;
const GROUP: u32 = 2000;
const CLUB: u32 = 2001;

/// Collects the answers of commands, each with the number of its step.
#[derive(Default)]
struct Said(Vec<String>);

impl Said {
    fn add(&mut self, about: &str, answer: impl std::fmt::Debug) {
        self.0.push(format!("{about}: {answer:?}"));
    }
}

fn facts(top: &File, said: &mut Said) {
    let mut bytes = argument(&[0; 6], (48, &[7]));
    said.add(
        "volume",
        call(top, FS_INFO, &mut bytes).map(|()| {
            let (ids, sizes) = (bytes[..32].to_vec(), bytes[32..56].to_vec());
            (ids, sizes, bytes[64..80].to_vec())
        }),
    );
    for (id, uuid) in [(1, 0), (2, 0), (1, 7)] {
        let mut bytes = argument(&[id, uuid, uuid], (0, b""));
        let done = call(top, DEV_INFO, &mut bytes);
        let path = bytes[3072] == b'/';
        said.add("device", done.map(|()| (bytes[..24].to_vec(), word(&bytes, 32), path)));
    }
    let mut bytes = vec![0; 24];
    said.add("features", call(top, GET_FEATURES, &mut bytes).map(|()| bytes.clone()));
    said.add("version", number(top, GETVERSION, 0).map(|_| ()));
    said.add("unknown", number(top, 0x8008_94c8, 0));
}

fn creation(dir: &Path, top: &File, said: &mut Said) {
    let absent = fs::metadata(dir.join("a")).is_err();
    said.add("create", (absent, named(top, SUBVOL_CREATE, b"a")));
    let made = fs::metadata(dir.join("a")).expect("it is seen at once");
    said.add("made", (made.mode(), made.uid(), made.gid()));
    said.add("its top", subvolume(&open(dir.join("a"))));
    let long = [b'n'; 256];
    for name in [&b"a"[..], b"x/y", b".", b"..", b"", &long, b"../a"] {
        said.add("create", named(top, SUBVOL_CREATE, name));
        said.add("second", second(top, SUBVOL_CREATE_V2, (0, 0, 0), name));
        if name != b"a" {
            said.add("destroy", named(top, SNAP_DESTROY, name));
        }
    }
    said.add("no end", named(top, SUBVOL_CREATE, &[b'n'; 4088]));
    said.add("no end", second(top, SUBVOL_CREATE_V2, (0, 0, 0), &[b'n'; 4040]));
    said.add("no end", named(top, SNAP_DESTROY, &[b'n'; 4088]));
    for (flags, len) in
        [(1, 0), (READ_ONLY, 0), (INHERIT, 0), (INHERIT, 71), (BY_ID, 0), (1 << 40, 0)]
    {
        let name = format!("flags{flags}");
        said.add(&name, second(top, SUBVOL_CREATE_V2, (0, flags, len), name.as_bytes()));
    }
    fs::write(dir.join("file"), "text").expect("a file");
    said.add("in a file", named(&open(dir.join("file")), SUBVOL_CREATE, b"b"));
    fs::create_dir(dir.join("set")).expect("a directory");
    chown(dir.join("set"), None, Some(GROUP)).expect("a group");
    fs::set_permissions(dir.join("set"), Permissions::from_mode(0o2775)).expect("a mode");
    let set = open(dir.join("set"));
    said.add("flags", call(&set, SET_INODE_FLAGS, &mut NOCOW.to_ne_bytes()));
    said.add("set-gid", named(&open(dir.join("set")), SUBVOL_CREATE, b"b"));
    let made = fs::metadata(dir.join("set/b")).expect("it is there");
    let flags = number(&open(dir.join("set/b")), GET_INODE_FLAGS, 0);
    said.add("made", (made.mode(), made.uid(), made.gid(), flags));
}

fn numbers(dir: &Path, top: &File, said: &mut Said) {
    fs::create_dir_all(dir.join("d/e")).expect("directories");
    fs::write(dir.join("d/e/file"), "text").expect("a file");
    let (deep, middle) = (open(dir.join("d/e")), open(dir.join("d")));
    said.add("below", named(&deep, SUBVOL_CREATE, b"s"));
    let ino = |path: &str| fs::metadata(dir.join(path)).expect("it is there").ino();
    let (e, d) = (ino("d/e"), ino("d"));
    for (tree, number) in [(0, e), (0, ino("d/e/file")), (0, 256), (5, e), (5, 1 << 20), (999, e)] {
        said.add("path", path_of(top, tree, number));
    }
    let below = open(dir.join("d/e/s"));
    let (tree, about) = subvolume(&below);
    said.add("below", (tree, about));
    said.add("path", path_of(&below, 0, 256));
    for file in [top, &middle, &deep] {
        for (dir, tree) in [(e, tree), (d, tree), (256, tree), (e, 999), (1 << 20, tree)] {
            said.add("for users", path_for_users(file, dir, tree));
        }
    }
    for from in [0, 257, 1 << 20] {
        said.add("references", refs(top, from));
    }
    said.add("references", refs(&below, 0));
}

fn flags(dir: &Path, top: &File, said: &mut Said) {
    said.add("create", named(top, SUBVOL_CREATE, b"flagged"));
    let tree = open(dir.join("flagged"));
    // No program has synced this file.
    fs::write(dir.join("flagged/before"), [7; 10_000]).expect("writable");
    let get = |file: &File| number(file, GETFLAGS, 0);
    let set = |file: &File, flags| number(file, SETFLAGS, flags).map(|_| ());
    said.add("flags", (get(&tree), set(&tree, READ_ONLY), get(&tree)));
    let error = |done: std::io::Result<()>| done.err().and_then(|error| error.raw_os_error());
    said.add("write", error(fs::write(dir.join("flagged/after"), "text")));
    said.add("in it", named(&tree, SUBVOL_CREATE, b"inner"));
    said.add("its facts", subvolume(&tree));
    said.add("flags", (set(&tree, 1), set(&tree, READ_ONLY | 1), set(&tree, READ_ONLY)));
    said.add("flags", (set(&tree, 0), get(&tree)));
    said.add("write", error(fs::write(dir.join("flagged/after"), "text")));
    said.add("kept", fs::read(dir.join("flagged/before")).is_ok_and(|it| it == [7; 10_000]));
    let inner = open(dir.join("d"));
    said.add("no top", (get(&inner), set(&inner, READ_ONLY), get(top)));
}

fn snapshots(dir: &Path, top: &File, said: &mut Said) {
    let source = open(dir.join("a"));
    let mut file = File::create(dir.join("a/open")).expect("a file");
    file.write_all(&[5; 70_000]).expect("room");
    said.add("snapshot", snapshot(top, &source, b"snap", READ_ONLY));
    said.add("content", fs::read(dir.join("snap/open")).is_ok_and(|it| it == [5; 70_000]));
    file.write_all(b"more").expect("room");
    let len = fs::metadata(dir.join("snap/open")).expect("it is there").len();
    said.add("its facts", (len, subvolume(&open(dir.join("snap")))));
    said.add("writable", snapshot(top, &source, b"copy", 0));
    said.add("write", fs::write(dir.join("copy/new"), "text").is_ok());
    let first = argument(&[i64::from(source.as_raw_fd()).cast_unsigned()], (8, b"old"));
    said.add("first version", call(top, SNAP_CREATE, &mut first.clone()));
    let other = tempfile::tempfile().expect("a file elsewhere");
    let inner = open(dir.join("d"));
    for (about, fd) in [
        ("no descriptor", 9999),
        ("negative", -1),
        ("elsewhere", other.as_raw_fd()),
        ("no top", inner.as_raw_fd()),
        ("a file", file.as_raw_fd()),
    ] {
        said.add(about, second(top, SNAP_CREATE_V2, (fd, 0, 0), b"new"));
    }
    for name in [&b"snap"[..], b"x/y", b"", b"."] {
        said.add("name", snapshot(top, &source, name, 0));
    }
    said.add("flags", snapshot(top, &source, b"new", 1));
}

fn deletion(dir: &Path, top: &File, said: &mut Said) {
    for name in [&b"none"[..], b"file", b"d", b"x/y", b"set"] {
        said.add("destroy", named(top, SNAP_DESTROY, name));
        said.add("second", second(top, SNAP_DESTROY_V2, (0, 0, 0), name));
    }
    said.add("flags", second(top, SNAP_DESTROY_V2, (0, 1, 0), b"snap"));
    let tree = |name: &str| subvolume(&open(dir.join(name))).0;
    said.add("nested", named(&open(dir.join("a")), SUBVOL_CREATE, b"nested"));
    said.add("destroy", named(top, SNAP_DESTROY, b"a"));
    said.add("destroy", named(&open(dir.join("a")), SNAP_DESTROY, b"nested"));
    let set = |tree| number(top, DEFAULT_SUBVOL, tree).map(|_| ());
    said.add("default", (set(tree("copy")), named(top, SNAP_DESTROY, b"copy"), set(999), set(0)));
    said.add("destroy", named(top, SNAP_DESTROY, b"copy"));
    said.add("gone", fs::metadata(dir.join("copy")).is_err());
    let by_id = |tree: u64| second(top, SNAP_DESTROY_V2, (0, BY_ID, 0), &tree.to_ne_bytes());
    said.add("by number", (by_id(tree("d/e/s")), fs::metadata(dir.join("d/e/s")).is_err()));
    said.add("by number", (by_id(5), by_id(255), by_id(9999)));
    let mut names: Vec<_> = fs::read_dir(dir).expect("a listing").flatten().collect();
    names.sort_by_key(fs::DirEntry::file_name);
    said.add("left", names.iter().map(fs::DirEntry::file_name).collect::<Vec<_>>());
    let after = fs::metadata(dir).expect("it is there");
    said.add("size of the top", after.size());
}

fn commits(top: &File, said: &mut Said) {
    said.add("sync", number(top, SYNC, 0).map(|_| ()));
    let begun = number(top, START_SYNC, 0);
    said.add("start", begun.is_ok_and(|number| number > 0));
    said.add("wait", number(top, WAIT_SYNC, begun.unwrap_or(0)).map(|_| ()));
    said.add("wait", (number(top, WAIT_SYNC, 0), number(top, WAIT_SYNC, 1 << 40)));
}

fn searches(dir: &Path, top: &File, said: &mut Said) {
    const ANY: [u64; 2] = [0, u64::MAX];
    number(top, SYNC, 0).expect("synced");
    let mine = open(dir.join("flagged"));
    for wanted in [
        (1, [5, 5], [156, 156], ANY, 0, 100),
        (1, [256, 400], [144, 156], ANY, 0, 100),
        (1, [257, 258], [132, 156], ANY, 0, 3),
        (0, ANY, [0, u32::MAX], ANY, 0, u32::MAX),
        (5, [256, 256], [84, 96], ANY, 0, u32::MAX),
        (5, [256, 256], [84, 96], ANY, u64::MAX, u32::MAX),
        (5, ANY, [0, 255], ANY, 0, 0),
        (9999, ANY, [0, 255], ANY, 0, 10),
        (3, [256, 256], [228, 228], [0, 14 << 20], 0, 1),
    ] {
        said.add("search", search(&mine, wanted));
    }
}

fn records(dir: &Path, top: &File, said: &mut Said) {
    for (id, wanted, flags) in [(1, 5, 0), (1, 2, 0), (1, 0, 0), (1, 9, 1), (2, 5, 0), (0, 5, 1)] {
        said.add("errors", device_errors(top, id, wanted, flags));
    }
    for (from, len, least) in [(0, u64::MAX, 0), (0, 4095, 0), (0, 0, 0), (0, u64::MAX, 1 << 40)] {
        said.add("trim", trim(top, from, len, least));
    }
    said.add("create", named(top, SUBVOL_CREATE, b"received"));
    let tree = open(dir.join("received"));
    said.add("received", (received(&tree, 9), received(&tree, 9), received(&tree, 8)));
    said.add("no top", received(&open(dir.join("d")), 9));
    said.add("flags", number(&tree, SETFLAGS, READ_ONLY).map(|_| ()));
    said.add("read-only", received(&tree, 7));
}

/// Commands by a mount that is read-only while another mount is writable.
fn by_read_only_mount(dir: &Path) -> Vec<String> {
    for name in ["tree", "gone"] {
        named(&open(dir), SUBVOL_CREATE, name.as_bytes()).expect("a subvolume");
    }
    let there = tempfile::tempdir().expect("a directory");
    let mount = |words: &[&str]| {
        let mut mount = std::process::Command::new("mount");
        assert!(mount.args(words).arg(there.path()).status().expect("mount").success());
    };
    mount(&["--bind", dir.to_str().expect("UTF-8")]);
    mount(&["-o", "remount,bind,ro"]);
    let mut said = Said::default();
    let commands = |top: &File, tree: &File, said: &mut Said| {
        said.add("create", named(top, SUBVOL_CREATE, b"new"));
        said.add("second", second(top, SUBVOL_CREATE_V2, (0, 0, 0), b"new2"));
        said.add("snapshot", snapshot(top, tree, b"snap", 0));
        said.add("destroy", named(top, SNAP_DESTROY, b"gone"));
        let number_of = subvolume(tree).0;
        let by_id = second(top, SNAP_DESTROY_V2, (0, BY_ID, 0), &number_of.to_ne_bytes());
        said.add("by number", by_id);
        said.add("default", number(top, DEFAULT_SUBVOL, 5).map(|_| ()));
        said.add("flags", number(tree, SETFLAGS, READ_ONLY).map(|_| ()));
        said.add("received", received(tree, 9));
        said.add("facts", (number(tree, GETFLAGS, 0), subvolume(tree)));
        said.add("errors", device_errors(top, 1, 5, 1));
        said.add("trim", trim(top, 0, u64::MAX, 0));
        said.add("sync", number(top, SYNC, 0).map(|_| ()));
    };
    {
        let (top, tree) = (open(there.path()), open(there.path().join("tree")));
        commands(&top, &tree, &mut said);
    }
    let ended = unless_busy(|| std::process::Command::new("umount").arg(there.path()).output());
    assert!(ended.status.success());
    assert!(said.0.iter().filter(|line| line.contains("30")).count() >= 8, "{:?}", said.0);
    said.add("created", named(&open(dir), SUBVOL_CREATE, b"new"));
    said.0
}

/// All commands by root.
fn by_root(dir: &Path) -> Vec<String> {
    let (top, mut said) = (open(dir), Said::default());
    facts(&top, &mut said);
    creation(dir, &top, &mut said);
    numbers(dir, &top, &mut said);
    flags(dir, &top, &mut said);
    snapshots(dir, &top, &mut said);
    deletion(dir, &top, &mut said);
    commits(&top, &mut said);
    searches(dir, &top, &mut said);
    records(dir, &top, &mut said);
    said.0
}

/// Runs steps as a user with one additional group. Other threads keep their user.
fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let work = scope.spawn(|| {
            let (user, group) = (Uid::from_raw(uid), Gid::from_raw(GROUP));
            rustix::thread::set_thread_groups(&[Gid::from_raw(CLUB)]).expect("root may");
            rustix::thread::set_thread_res_gid(group, group, group).expect("root may");
            rustix::thread::set_thread_res_uid(user, user, user).expect("root may");
            work()
        });
        work.join().expect("no panic")
    })
}

/// Commands that users other than root may or may not call.
fn by_user(dir: &Path) -> Vec<String> {
    fs::set_permissions(dir, Permissions::from_mode(0o755)).expect("a mode");
    for (name, uid, gid, mode) in [
        ("own", USER, GROUP, 0o755),
        ("closed", 0, 0, 0o700),
        ("member", 0, GROUP, 0o775),
        ("club", 0, CLUB, 0o770),
        ("reader", 0, CLUB, 0o755),
        ("sticky", 0, 0, 0o1777),
    ] {
        fs::create_dir(dir.join(name)).expect("a directory");
        chown(dir.join(name), Some(uid), Some(gid)).expect("an owner");
        fs::set_permissions(dir.join(name), Permissions::from_mode(mode)).expect("a mode");
    }
    let top = open(dir);
    fs::create_dir(dir.join("closed/inner")).expect("a directory");
    let inner = open(dir.join("closed/inner"));
    named(&inner, SUBVOL_CREATE, b"deep").expect("root may");
    let (inner, deep) = (inner.metadata().expect("it").ino(), open(dir.join("closed/inner/deep")));
    let deep = subvolume(&deep).0;
    for name in ["closed", "own", "sticky"] {
        named(&open(dir.join(name)), SUBVOL_CREATE, b"roots").expect("root may");
    }
    let dirs = ["", "own", "closed", "member", "club", "reader", "sticky"];
    let opened = dirs.map(|name| (name, open(dir.join(name))));
    let roots = open(dir.join("own/roots"));
    let mut said = Said::default();
    as_user(USER, || {
        for (name, dir) in &opened {
            said.add(name, named(dir, SUBVOL_CREATE, b"mine"));
            said.add(name, second(dir, SUBVOL_CREATE_V2, (0, 0, 0), b"second"));
        }
        let own = &opened[1].1;
        let mine = open(dir.join("own/mine"));
        let made = mine.metadata().expect("attributes");
        said.add("mine", (made.uid(), made.gid(), made.mode()));
        said.add("snapshot", snapshot(own, &mine, b"snap", READ_ONLY));
        said.add("into a closed one", snapshot(&opened[2].1, &mine, b"snap", 0));
        said.add("of root's", snapshot(own, &roots, b"of root", 0));
        let set = |file: &File, flags| number(file, SETFLAGS, flags).map(|_| ());
        said.add("flags", (set(&mine, READ_ONLY), set(&mine, 0), set(&roots, READ_ONLY)));
        said.add("default", number(own, DEFAULT_SUBVOL, 0));
        said.add("search", search(own, (0, [0, u64::MAX], [0, 255], [0, u64::MAX], 0, 9)));
        let ino = |file: &File| file.metadata().expect("attributes").ino();
        let (mine_in, closed) = (ino(own), ino(&opened[2].1));
        said.add(
            "path",
            (path_of(&top, 0, mine_in), path_of(&top, 0, 256), path_of(&mine, 0, 256)),
        );
        let tree = subvolume(&mine).0;
        said.add("for users", path_for_users(&top, mine_in, tree));
        said.add("for users", path_for_users(&top, closed, deep + 1));
        for file in [&top, &opened[2].1] {
            said.add("for users", path_for_users(file, inner, deep));
        }
        said.add("facts", (call(&top, FS_INFO, &mut vec![0; 1024]), subvolume(&roots)));
        said.add("references", refs(&top, 0));
        said.add("sync", number(&top, SYNC, 0).map(|_| ()));
        said.add("errors", (device_errors(&top, 1, 5, 0), device_errors(&top, 1, 5, 1)));
        said.add("trim", trim(&top, 0, u64::MAX, 0));
        said.add("received", received(&roots, 9));
    });
    said.0
}

/// Deletions by users, in the directories that [`by_user`] left.
fn deleting_by_user(dir: &Path) -> Vec<String> {
    let dirs = ["", "own", "closed", "member", "sticky"];
    let opened = dirs.map(|name| (name, open(dir.join(name))));
    let mut said = Said::default();
    as_user(USER, || {
        for (about, dir) in &opened {
            for name in [&b"mine"[..], b"roots", b"snap", b"none"] {
                said.add(about, named(dir, SNAP_DESTROY, name));
            }
            said.add(about, second(dir, SNAP_DESTROY_V2, (0, 0, 0), b"second"));
        }
    });
    said.0
}

/// Runs steps on a mount and on Linux's btrfs, from copies of one image.
fn compare(options: &str, steps: fn(&Path) -> Vec<String>) {
    compare_with(options, options, steps);
}

fn compare_with(options: &str, of_linux: &str, steps: fn(&Path) -> Vec<String>) {
    let theirs = |image: &Path| Linux::of_copy(image, of_linux);
    let Some((mount, linux)) = mounted_behind(options, theirs) else { return };
    let ours = steps(&mount.path(""));
    let Some(linux) = linux else { return };
    let theirs = steps(linux.path());
    let differ: Vec<_> = ours
        .iter()
        .zip(&theirs)
        .filter(|(ours, theirs)| ours != theirs)
        .map(|(ours, theirs)| format!("{ours}\n  Linux {theirs}"))
        .collect();
    assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ.join("\n"));
    assert_eq!(ours.len(), theirs.len());
}

#[test]
fn commands_of_root_answer_as_in_linux() {
    compare("", by_root);
}

/// New subvolumes are mounted by themselves, and are unmounted before they are deleted.
#[test]
fn commands_answer_as_in_linux_where_subvolumes_are_mounts() {
    compare_with("submounts", "", by_root);
}

/// The kernel has one file system for all mounts of the volume.
#[test]
fn commands_answer_as_in_linux_on_shared_mounts() {
    compare_with(SHARED, "", by_root);
}

/// The kernel passes on commands of every mount. A command by a read-only mount changes nothing, as
/// in Linux. A command by a writable mount of the same volume changes the volume.
#[test]
fn commands_by_a_read_only_mount_are_refused_as_in_linux() {
    compare("", by_read_only_mount);
    compare_with(SHARED, "", by_read_only_mount);
}

#[test]
fn commands_of_users_are_refused_as_in_linux() {
    compare("", |dir| [by_user(dir), deleting_by_user(dir)].concat());
}

#[test]
fn users_may_delete_where_an_option_says_so() {
    compare("user_subvol_rm_allowed", |dir| [by_user(dir), deleting_by_user(dir)].concat());
}
