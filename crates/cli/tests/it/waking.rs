//! Volumes that are mounted for reading first, and written later.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use buttress_block::{FileDevice, OpenOptions};

use crate::checker::check;
use crate::live::run;
use crate::unmounting::{can_mount, helper, succeeded};
use crate::{Bench, bench, text};

/// A volume with two subvolumes and a file in each, and places for mounts.
fn volume() -> Bench {
    let bench = bench();
    bench.volume("image", "256M");
    bench.ok(&["subvolume", "create", "image:/@", "image:/@home"]);
    fs::write(bench.path("file"), "as it was").expect("a file");
    for place in ["image:/@/file", "image:/@home/file"] {
        bench.ok(&["cp", "file", place]);
    }
    for place in ["a", "b"] {
        fs::create_dir(bench.path(place)).expect("a folder");
    }
    bench
}

fn remount(bench: &Bench, place: &str, options: &str) -> std::process::Output {
    helper(bench, "mount.buttress", &["image", place, "-o", options])
}

#[track_caller]
fn is_read_only(bench: &Bench, place: &str) {
    let error = fs::write(bench.path(place).join("new"), "x").expect_err("it is read-only");
    assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
}

#[track_caller]
fn ends(bench: &Bench) {
    bench.ok(&["ls", "image:/"]);
    assert_eq!(buttress_block::locked_by(&bench.path("image")), None);
    check(&bench.path("image"));
}

/// A volume that was mounted with `ro` is not changed, and other readers can open it, until a
/// remount makes it writable. Programs keep the files that they have open.
#[test]
fn a_read_only_mount_becomes_writable() {
    if !can_mount() {
        return;
    }
    for more in ["", ",noio_uring"] {
        let bench = volume();
        let before = fs::read(bench.path("image")).expect("the image");
        bench.ok(&["mount", "image", "a", "-o", &format!("ro{more}")]);
        let name = bench.path("a/@/file");
        let open = File::open(&name).expect("it is there");
        is_read_only(&bench, "a");
        assert_eq!(bench.ok(&["cat", "image:/@/file"]), "as it was");
        assert!(before == fs::read(bench.path("image")).expect("the image"), "it was written");

        succeeded(&remount(&bench, "a", "remount,rw"));
        fs::write(&name, "and is now").expect("it is writable");
        fs::remove_file(bench.path("a/@home/file")).expect("it is writable");
        let mut read = [0; 10];
        open.read_exact_at(&mut read, 0).expect("it is open yet");
        assert_eq!(&read, b"and is now");
        drop(open);
        File::open(&name).and_then(|file| file.sync_all()).expect("it is durable");
        bench.fails(&["ls", "image:/"], 1, &["image"]);

        succeeded(&remount(&bench, "a", "remount,ro"));
        is_read_only(&bench, "a");
        check(&bench.path("image"));
        succeeded(&remount(&bench, "a", "remount,rw"));
        fs::write(bench.path("a/@/other"), "x").expect("it is writable");
        bench.ok(&["umount", "a"]);
        ends(&bench);
        assert_eq!(bench.ok(&["cat", "image:/@/file"]), "and is now");
        assert_eq!(bench.ok(&["ls", "image:/@home"]), "");
    }
}

/// A second mount may be writable although the first mount is read-only. The first mount stays
/// read-only.
#[test]
fn a_second_mount_may_be_writable() {
    if !can_mount() {
        return;
    }
    let bench = volume();
    bench.ok(&["mount", "image", "a", "-o", "ro,subvol=@home"]);
    bench.ok(&["mount", "image", "b", "-o", "subvol=@home"]);
    fs::write(bench.path("b/new"), "by the other").expect("it is writable");
    assert_eq!(fs::read(bench.path("a/new")).expect("it is shown"), b"by the other");
    is_read_only(&bench, "a");
    bench.ok(&["check", "a"]);
    bench.ok(&["umount", "b"]);
    is_read_only(&bench, "a");
    succeeded(&remount(&bench, "a", "remount,rw"));
    fs::write(bench.path("a/file"), "x").expect("it is writable");
    bench.ok(&["umount", "a"]);
    ends(&bench);
}

/// If the volume cannot be written, the remount says why, and reads go on as before.
#[test]
fn a_volume_that_cannot_be_written_stays_read_only() {
    if !can_mount() || !Path::new("/dev/loop-control").exists() {
        return;
    }
    let bench = volume();
    let refused = |options: &str, words: &[&str]| {
        let output = remount(&bench, "a", options);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(32), "{said}");
        for word in words {
            assert!(said.contains(word), "no {word:?} in {said}");
        }
        is_read_only(&bench, "a");
        assert_eq!(fs::read(bench.path("a/@/file")).expect("it is read"), b"as it was");
    };
    // Another reader has the volume open, and would see the writes.
    bench.ok(&["mount", "image", "a", "-o", "ro"]);
    let reader = FileDevice::open(bench.path("image"), OpenOptions::READ).expect("it is shared");
    refused("remount,rw", &["image"]);
    let words = ["image"];
    bench.fails(&["mount", "image", "b"], 1, &words);
    drop(reader);
    // After the refused remount, the mount still holds its lock for reading.
    assert!(FileDevice::open(bench.path("image"), OpenOptions::WRITE).is_err());
    succeeded(&remount(&bench, "a", "remount,rw"));
    fs::write(bench.path("a/new"), "x").expect("it is writable");
    bench.ok(&["umount", "a"]);
    ends(&bench);
    bench.ok(&["rm", "image:/new"]);

    let device = run("losetup", &["--find", "--show", "--read-only", text(&bench.path("image"))]);
    let device = device.trim();
    bench.ok(&["mount", device, "a", "-o", "ro"]);
    refused("remount,rw", &[device]);
    bench.ok(&["umount", "a"]);
    run("losetup", &["-d", device]);

    for option in ["rescue=ignoredatacsums", "rescue=all"] {
        bench.ok(&["mount", "image", "a", "-o", &format!("ro,{option}")]);
        refused("remount,rw", &["image"]);
        bench.ok(&["umount", "a"]);
    }
    ends(&bench);
}
