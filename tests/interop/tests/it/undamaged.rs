//! Undamaged volumes that other programs made: if `btrfs check` finds no error, our checker finds
//! none.

use std::path::Path;

use buttress_check::{Options, Report, Severity, check_image, check_images};
use buttress_fs::{BalanceOptions, Filter, NewInode};
use buttress_interop::linux::{
    Images, check, check_all, has_linux_btrfs, has_program, run, sparse_file, try_run, unmount,
};
use buttress_interop::sample::{Folder, Scale, fill};
use buttress_interop::scratch::Scratch;

use crate::open::{close, open};

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

/// Checks that neither checker finds an error. Returns the report of our checker.
#[track_caller]
fn check_volume(image: &Path, what: &str) -> Report {
    check(image);
    let report = check_image(image, &Options::thorough()).expect("a check");
    assert!(report.is_clean(), "{what}:\n{}", report.to_text());
    report
}

/// Scripts that fill an ext4 before it is converted.
const CONTENTS: &[(&str, &str)] = &[
    ("nothing", ""),
    ("holes", "truncate -s 300M hole; echo end >> hole; truncate -s 1000 empty"),
    (
        "room ahead",
        "fallocate -l 5M ahead; : > kept; fallocate -n -l 1M kept
         dd if=/dev/urandom of=ahead bs=4096 count=5 seek=50 conv=notrunc status=none",
    ),
    (
        "attributes",
        "mkdir dir; setfacl -m u:5:rw dir; setfacl -d -m u:5:rw dir; echo a > dir/file
         setfattr -n user.colour -v blue dir/file; setfattr -n trusted.a -v b dir",
    ),
    (
        "names",
        "echo a > a; for n in $(seq 200); do ln a link-$n; done; ln -s a short
         ln -s $(printf 'x/%.0s' $(seq 1000)) long; mkfifo pipe; mknod zero c 1 5
         mkdir -m 1777 many; cd many; for n in $(seq 500); do : > $n; done",
    ),
];

/// Volumes that btrfs-convert made are clean, also after a balance of ours.
#[test]
fn converted_volume_is_clean() {
    let programs = ["btrfs-convert", "mkfs.ext4", "setfacl", "setfattr"];
    if !has_linux_btrfs() || !programs.iter().all(|program| has_program(program)) {
        return;
    }
    let scratch = Scratch::new();
    let (image, folder) = (scratch.join("converted.img"), scratch.join("ext4"));
    std::fs::create_dir(&folder).expect("a folder");
    for (number, (what, script)) in CONTENTS.iter().enumerate() {
        let _ = std::fs::remove_file(&image);
        sparse_file(&image, 300 << 20);
        run("mkfs.ext4", ["-q", "-F", "-b", "4096", text(&image)]);
        run("mount", ["-o", "loop", text(&image), text(&folder)]);
        let script = format!("set -e; cd '{}'; {script}", folder.display());
        let filled = std::panic::catch_unwind(|| run("bash", ["-c", &script]));
        unmount(&folder);
        assert!(filled.is_ok(), "{what}");
        let more: &[&str] = [&[][..], &["-d"], &["-n"], &["-N", "4096"]][number % 4];
        run("btrfs-convert", more.iter().copied().chain([text(&image)]));
        check_volume(&image, what);
        if number == 0 {
            let fs = open(std::slice::from_ref(&image), true);
            fs.balance(&BalanceOptions::full(), &mut |_| true).expect("a balance");
            close(fs);
            check_volume(&image, "a balance of ours");
        }
    }
}

/// A volume that `btrfs-image` restores lacks the copies of the superblock and all data.
#[test]
fn restored_dump_is_clean() {
    if !has_linux_btrfs() || !has_program("btrfs-image") {
        return;
    }
    let images = Images::new(1, 300 << 20);
    images.mkfs(&[]);
    let mount = images.mount("");
    fill(&Folder::new(mount.path()), &Scale { dirs: 3, files: 10, ..Scale::default() });
    mount.shell("btrfs -q subvolume snapshot -r . copy");
    mount.unmount();
    let (dump, image) = (images.scratch().join("dump"), images.scratch().join("restored.img"));
    for former in ["nothing", "another volume"] {
        if former == "another volume" {
            sparse_file(&image, 300 << 20);
            run("mkfs.btrfs", ["-q", "-f", text(&image)]);
        }
        run("btrfs-image", [text(images.path()), text(&dump)]);
        run("btrfs-image", ["-r", text(&dump), text(&image)]);
        // The data is not in the dump, so its checksums are not checked.
        run("btrfs", ["check", text(&image)]);
        let report = check_image(&image, &Options::default()).expect("a check");
        assert!(report.is_clean(), "{former}:\n{}", report.to_text());
        assert!(report.has("super-copy-missing"), "{former}:\n{}", report.to_text());
        std::fs::remove_file(&dump).expect("a file");
    }
}

/// Files of Linux share preallocated extents, and some of these files write into these extents.
#[test]
fn shared_allocation_of_linux_is_clean() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 300 << 20);
    images.mkfs(&[]);
    let mount = images.mount("");
    mount.shell(
        "fallocate -l 4M ahead; sync; for n in 1 2 3; do cp --reflink=always ahead $n; done
         btrfs -q subvolume snapshot . copy
         for file in ahead 2 copy/3; do
             dd if=/dev/urandom of=$file bs=5000 count=9 seek=${#file}0 conv=notrunc status=none
         done; rm copy/ahead; sync",
    );
    mount.unmount();
    images.check();
}

/// Options of `mkfs.btrfs`, and the number of devices.
const MADE: &[(usize, &str)] = &[
    (1, ""),
    (1, "-m single"),
    (1, "-m dup -d dup"),
    (1, "-M"),
    (1, "-M -m dup -d dup"),
    (1, "-n 4k"),
    (1, "-n 64k"),
    (1, "-O ^extref,^skinny-metadata,^no-holes"),
    (1, "-O block-group-tree"),
    (1, "-O ^free-space-tree"),
    (1, "-R ^free-space-tree"),
    (1, "-R quota"),
    (1, "-O squota"),
    (1, "-O raid-stripe-tree"),
    (1, "--csum blake2"),
    (1, "--rootdir FOLDER"),
    (1, "--rootdir FOLDER --shrink"),
    (1, "--rootdir FOLDER -M"),
    (1, "--rootdir FOLDER -m single -n 4k -R ^free-space-tree"),
    (2, ""),
    (2, "-m raid1 -d raid1"),
    (2, "-m single -d raid1"),
    (2, "-m raid1 -d single"),
    (2, "-m raid0 -d raid0"),
    (2, "-M -m raid1 -d raid1"),
    (3, "-m raid1c3 -d raid5"),
    (4, "-m raid6 -d raid6"),
    (4, "-m raid10 -d raid10"),
    (4, "-m raid1c4 -d raid0"),
];

/// Ways in which Linux mounts a new volume: each leaves other records of free space.
const USED: &[&str] =
    &["", "nospace_cache,clear_cache", "space_cache=v1,clear_cache", "space_cache=v2"];

/// A volume that Linux has just made or used gives no warning, as with `btrfs check`.
#[test]
fn new_volume_of_linux_gives_no_warning() {
    if !has_linux_btrfs() {
        return;
    }
    let silent = |images: &Images, what: &str| {
        check_all(images.paths());
        let report = check_images(images.paths(), &Options::thorough()).expect("a check");
        let is_silent = report.issues.iter().all(|issue| issue.severity() == Severity::Note);
        assert!(is_silent, "{what}:\n{}", report.to_text());
    };
    let scratch = Scratch::new();
    let folder = scratch.join("folder");
    run(
        "bash",
        ["-c", "mkdir -p $1/a/b; seq 9999 >$1/a/b/c; echo >$1/d; ln -s d $1/e", "-", text(&folder)],
    );
    let (mut made, mut number) = (0, 0);
    for (devices, options) in MADE {
        let images = Images::new(*devices, 300 << 20);
        let options: Vec<_> = options.split_whitespace().collect();
        let words = options.iter().map(|word| if *word == "FOLDER" { text(&folder) } else { word });
        let paths = images.paths().iter().map(|path| text(path));
        // Some versions do not know some features.
        if try_run("mkfs.btrfs", ["-q", "-f"].into_iter().chain(words).chain(paths)).is_err() {
            eprintln!("mkfs.btrfs refuses {options:?}");
            continue;
        }
        made += 1;
        silent(&images, &format!("{options:?}"));
        // Not every kernel mounts these features.
        if options.contains(&"-O") {
            continue;
        }
        let used = USED[number % USED.len()];
        number += 1;
        let mount = images.mount(used);
        mount.shell("mkdir more; seq 99999 >more/file; sync; rm -rf more/file; echo >more/last");
        mount.unmount();
        silent(&images, &format!("{options:?}, mounted with {used:?}"));
    }
    assert!(made >= 15, "only {made} kinds of volumes");
}

/// `mkfs.btrfs` leaves the records of an empty group behind the metadata. If the data group behind
/// them is removed, the next group begins at these records. Its commit deletes them.
#[test]
fn new_group_takes_the_place_of_left_records() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 1 << 30);
    images.mkfs(&["-m", "single", "-d", "dup"]);
    let filesystem = open(images.paths(), true);
    let empty = Filter { usage: Some((0, 0)), ..Filter::default() };
    let options = BalanceOptions { data: Some(empty), ..BalanceOptions::default() };
    filesystem.balance(&options, &mut |_| true).expect("a balance");
    let file = filesystem.root().create(b"file", NewInode::file(0o644)).expect("a file");
    file.write_at(0, &[7; 4 << 20]).expect("room");
    drop(file);
    close(filesystem);
    check_volume(&images.paths()[0], "a group in place of left records");
    images.check();
    let filesystem = open(images.paths(), true);
    filesystem.root().unlink(b"file").expect("it is there");
    close(filesystem);
    images.check();
    images.mount("").shell("seq 99999 >other; sync");
    images.check();
}
