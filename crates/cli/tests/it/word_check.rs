//! What `btrfs check` prints in place of a check, beside btrfs-progs.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use buttress_format::{CsumType, Kind, TreeId};
use serde_json::Value;

use crate::checker::check;
use crate::live::{Mounted, has, run};
use crate::words::program;
use crate::{Bench, text};

/// Bytes of a node, as `mkfs.btrfs` makes them.
const NODE: usize = 16 << 10;

/// What the program prints to standard output, and its exit code.
fn answer(bench: &Bench, name: &Path, args: &[&str]) -> (String, Option<i32>) {
    let output = program(bench, name).args(args).output().expect("it starts");
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
}

/// A volume that Linux made: subvolumes and snapshots with trees of several levels that share nodes
/// and data, with quotas and a group of groups.
fn volume_of_linux(bench: &Bench) {
    let (image, top) = (bench.path("image"), bench.path("lx"));
    File::create(&image).expect("a file").set_len(600 << 20).expect("a size");
    fs::create_dir(&top).expect("a folder");
    run("mkfs.btrfs", &["-q", text(&image)]);
    run("mount", &["-o", "loop", text(&image), text(&top)]);
    let path = |name: &str| text(&top.join(name)).to_owned();
    let btrfs = |words: &[&str]| run("btrfs", words);
    let sync = || run("sync", &["--file-system", text(&top)]);
    let fill = |folder: &str, from: usize, to: usize| {
        for number in from..to {
            let bytes = vec![number as u8; if number % 50 == 0 { 70_000 } else { 900 }];
            fs::write(top.join(format!("{folder}/file-{number}")), bytes).expect("room");
        }
    };
    fill("", 0, 300);
    btrfs(&["subvolume", "create", &path("a")]);
    fill("a", 0, 8000);
    sync();
    btrfs(&["subvolume", "snapshot", &path("a"), &path("b")]);
    btrfs(&["subvolume", "snapshot", "-r", &path("b"), &path("c")]);
    fill("a", 100, 200);
    fill("b", 4000, 4010);
    sync();
    btrfs(&["subvolume", "snapshot", &path("b"), &path("d")]);
    btrfs(&["subvolume", "create", &path("e")]);
    run("cp", &["--reflink=always", &path("a/file-0"), &path("e/clone")]);
    run("cp", &["--reflink=always", &path("d/file-5000"), &path("clone")]);
    fill("d", 7000, 7003);
    // Only snapshots have some of the nodes and extents now.
    fs::remove_file(top.join("a/file-50")).expect("removed");
    btrfs(&["subvolume", "delete", "-C", &path("a")]);
    btrfs(&["subvolume", "sync", text(&top)]);
    btrfs(&["quota", "enable", text(&top)]);
    // The first count ends before the group has members: it would miss them.
    btrfs(&["quota", "rescan", "-w", text(&top)]);
    btrfs(&["qgroup", "create", "1/7", text(&top)]);
    for member in ["0/257", "0/258"] {
        btrfs(&["qgroup", "assign", "--no-rescan", member, "1/7", text(&top)]);
    }
    btrfs(&["quota", "rescan", "-w", text(&top)]);
    run("umount", &[text(&top)]);
}

/// Changes every copy of every leaf of the quota tree.
fn change_leaves(image: &Path, change: &mut dyn FnMut(&mut [u8])) {
    let file = OpenOptions::new().read(true).write(true).open(image).expect("the image");
    let len = file.metadata().expect("its length").len();
    let mut node = vec![0; NODE];
    for at in (0..len).step_by(NODE) {
        file.read_exact_at(&mut node, at).expect("a read");
        let csum = CsumType::Crc32c.digest(&node[32..]);
        if number_at(&node, 88) == TreeId::QUOTA.0 && node[100] == 0 && node[..4] == csum[..4] {
            change(&mut node);
            file.write_all_at(&node, at).expect("a write");
        }
    }
}

fn number_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Adds to the recorded counts of a quota group in every copy of its leaf.
fn change_counts(image: &Path, group: u64, referenced: u64, exclusive: u64) {
    let mut changed = 0;
    change_leaves(image, &mut |node| {
        let count = u32::from_le_bytes(node[96..100].try_into().expect("four bytes"));
        for slot in 0..count as usize {
            let item = 101 + 25 * slot;
            if node[item + 8] != Kind::QGROUP_INFO.0 || number_at(node, item + 9) != group {
                continue;
            }
            let offset = u32::from_le_bytes(node[item + 17..item + 21].try_into().expect("four"));
            for (field, more) in [(8, referenced), (24, exclusive)] {
                let place = 101 + offset as usize + field;
                let number = number_at(node, place).wrapping_add(more);
                node[place..place + 8].copy_from_slice(&number.to_le_bytes());
            }
            changed += 1;
        }
        let csum = CsumType::Crc32c.digest(&node[32..]);
        node[..32].copy_from_slice(&csum);
    });
    assert!(changed > 0, "no leaf has group {group}");
}

/// The counts of groups and the users of extents are those of btrfs-progs, line by line, and the
/// exit codes, too: on a whole volume, and on one with wrong counts.
#[test]
fn users_of_extents_are_told_as_by_btrfs_progs() {
    let needed = ["mkfs.btrfs", "btrfs", "mount", "umount", "losetup", "cp"];
    if !has(&needed, None) || !crate::live::is_root() {
        return;
    }
    let bench = crate::bench();
    volume_of_linux(&bench);
    let image = bench.path("image");
    let ours = bench.path("btrfs");
    symlink(env!("CARGO_BIN_EXE_buttress"), &ours).expect("a link");
    let both = |args: &[&str]| {
        let args = [&["check"][..], args, &[text(&image)]].concat();
        let wanted = answer(&bench, Path::new("btrfs"), &args);
        let found = answer(&bench, &ours, &args);
        assert_eq!(wanted, found, "{args:?}: btrfs-progs on the left");
        found
    };
    let (told, code) = both(&["-Q"]);
    assert_eq!(code, Some(0), "{told}");
    for group in ["0/5", "0/257", "0/260", "1/7"] {
        assert!(told.contains(&format!("Counts for qgroup id: {group} \n")), "{group}: {told}");
    }
    for id in ["5", "257", "258", "259", "260", "999"] {
        let (told, code) = both(&["-E", id]);
        assert_eq!(code, Some(0), "{told}");
        let shared = told.lines().skip(6).filter(|line| line.split('\t').nth(2) != Some("1"));
        assert_eq!(shared.count() > 0, id != "999", "{id}: {told}");
    }
    check(&image);

    change_counts(&image, 257, 4096, 0);
    change_counts(&image, 258, 0, u64::MAX - 8191);
    let (told, code) = both(&["--qgroup-report"]);
    assert_eq!(code, Some(1), "{told}");
    for line in [
        "Counts for qgroup id: 0/257 are different",
        "diff:\t\treferenced -4096 referenced compressed -4096",
        "Counts for qgroup id: 0/258 are different",
        "diff:\t\texclusive 8192 exclusive compressed 8192",
        "Counts for qgroup id: 0/259 ",
    ] {
        assert!(told.lines().any(|found| found == line), "{line}: {told}");
    }
    let document = bench.run(&["--json", "check", "-Q", "image"]);
    assert_eq!(document.status.code(), Some(1));
    let document: Value = serde_json::from_slice(&document.stdout).expect("JSON");
    let groups = document["groups"].as_array().expect("groups");
    let wrong = groups.iter().filter(|group| group["differs"] == true);
    let wrong: Vec<_> = wrong.map(|group| &group["group"]).collect();
    assert_eq!(wrong, ["0/257", "0/258"]);

    // Quotas that cannot be read are no quotas without groups.
    change_leaves(&image, &mut |node| node[NODE - 1] ^= 1);
    bench.fails(&["check", "-Q", "image"], 1, &["a tree cannot be read"]);
}

/// Linux says that its counts are outdated, and both programs repeat that. Without quotas there is
/// nothing to count. The same is told of a volume that is mounted.
#[test]
fn counts_that_are_outdated_are_no_errors() {
    let needed = ["mkfs.btrfs", "btrfs", "mount", "umount", "losetup"];
    if !has(&needed, Some("/dev/fuse")) || !crate::live::is_root() {
        return;
    }
    let bench = crate::bench();
    let (image, top) = (bench.path("image"), bench.path("lx"));
    File::create(&image).expect("a file").set_len(300 << 20).expect("a size");
    fs::create_dir(&top).expect("a folder");
    run("mkfs.btrfs", &["-q", text(&image)]);
    let ours = bench.path("btrfs");
    symlink(env!("CARGO_BIN_EXE_buttress"), &ours).expect("a link");
    let both = |args: &[&str]| {
        let args = [&["check"][..], args, &[text(&image)]].concat();
        let wanted = answer(&bench, Path::new("btrfs"), &args);
        assert_eq!(wanted, answer(&bench, &ours, &args), "{args:?}: btrfs-progs on the left");
        wanted
    };
    let (told, code) = both(&["-Q"]);
    assert!(code == Some(0) && !told.contains("Counts"), "{told}");

    run("mount", &["-o", "loop", text(&image), text(&top)]);
    for words in [
        &["subvolume", "create", "X/a"][..],
        &["subvolume", "create", "X/b"],
        &["quota", "enable", "X"],
        &["quota", "rescan", "-w", "X"],
        &["qgroup", "create", "1/1", "X"],
    ] {
        let words: Vec<_> = words.iter().map(|word| word.replace('X', text(&top))).collect();
        run("btrfs", &words.iter().map(String::as_str).collect::<Vec<_>>());
    }
    fs::write(top.join("a/file"), vec![1; 300_000]).expect("room");
    run("sync", &["--file-system", text(&top)]);
    // A group that gains a member with data must be counted again.
    let assign = ["qgroup", "assign", "--no-rescan", "0/256", "1/1", text(&top)];
    std::process::Command::new("btrfs").args(assign).output().expect("it starts");
    run("umount", &[text(&top)]);
    let (told, code) = both(&["-Q"]);
    assert!(code == Some(0) && told.contains("Counts for qgroup id: 1/1"), "{told}");

    let mounted = Mounted::new(&bench, &[]);
    fs::write(bench.path("mnt/a/more"), vec![2; 100_000]).expect("room");
    let (told, code) = answer(&bench, &ours, &["check", "-E", "256", text(&bench.path("mnt"))]);
    assert_eq!(code, Some(0), "{told}");
    let shows = |len: &str| told.lines().any(|line| line.split('\t').nth(1) == Some(len));
    assert!(shows("102400") && shows("303104") && told.contains("mounted at"), "{told}");
    let mount = bench.path("mnt");
    let clear = ["check", "--clear-ino-cache", text(&mount)];
    assert_eq!(answer(&bench, &ours, &clear).1, Some(1), "a mounted volume is not changed");
    mounted.end();
    check(&image);
}

/// The lines of `--clear-ino-cache` are those of btrfs-progs, where there is nothing to remove.
#[test]
fn inode_caches_are_cleared_with_the_same_lines() {
    if !has(&["btrfs"], None) {
        return;
    }
    let bench = crate::bench();
    bench.volume("image", "300M");
    for name in ["a", "b"] {
        bench.ok(&["subvolume", "create", &format!("image:/{name}")]);
    }
    let image = bench.path("image");
    let ours = bench.path("btrfs");
    symlink(env!("CARGO_BIN_EXE_buttress"), &ours).expect("a link");
    let args = ["check", "--clear-ino-cache", text(&image)];
    let wanted = answer(&bench, Path::new("btrfs"), &args);
    assert!(wanted.0.contains("Successfully cleaned up ino cache for root id: 257"), "{wanted:?}");
    assert_eq!(wanted, answer(&bench, &ours, &args), "btrfs-progs on the left");
    check(&image);
}
