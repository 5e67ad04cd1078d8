//! `buttress check`: its output and its exit codes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::live::{Mounted, has};
use crate::{Bench, checker, text};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn damage(bench: &Bench, name: &str, at: u64) {
    let file = OpenOptions::new().write(true).open(bench.path(name)).expect("the image");
    file.write_all_at(b"damage", at).expect("damage");
}

/// For a volume without a fault, `check` prints steps and sums, and ends with 0.
#[test]
fn a_clean_volume() {
    let bench = crate::bench();
    bench.volume("a.img", "256M");
    let text = bench.ok(&["check", "a.img", "--check-data-csum"]);
    for words in ["[1/8] checking", "[8/8] checking quota groups", "no error found"] {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }
    let text = bench.ok(&["--json", "check", "a.img", "--readonly"]);
    let document: Value = serde_json::from_str(&text).expect("JSON alone");
    assert_eq!((&document["clean"], &document["is_mounted"]), (&true.into(), &false.into()));
    assert_eq!(document["issues"].as_array().map(Vec::len), Some(0));
}

/// A fault is named, the exit code is 1, and the fault is repaired on request.
#[test]
fn a_damaged_superblock() {
    let bench = crate::bench();
    bench.volume("a.img", "256M");
    damage(&bench, "a.img", (64 << 20) + 300);
    let output = bench.run(&["check", "a.img"]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("[super-copy-damaged]") && text.contains("1 error found"), "{text}");
    let output = bench.run(&["--json", "check", "a.img"]);
    let document: Value = serde_json::from_str(&said(&output)).expect("JSON alone");
    assert_eq!(document["issues"][0]["code"], "super-copy-damaged");
    assert_eq!(document["issues"][0]["offset"], 64 << 20);

    let text = bench.ok(&["check", "a.img", "--repair"]);
    assert!(text.contains("repairing:") && text.contains("no error found"), "{text}");
    bench.ok(&["check", "a.img"]);
}

/// Files that are no volume, and wrong command lines, are refused.
#[test]
fn check_refuses_files_without_a_volume() {
    let bench = crate::bench();
    fs::write(bench.path("text"), vec![b'x'; 1 << 20]).expect("a file");
    bench.fails(&["check", "text"], 3, &["text", "holds no btrfs"]);
    bench.fails(&["check", "nothing"], 1, &["nothing"]);
    let output = bench.run(&["check", "a.img", "--repair", "--readonly"]);
    assert_eq!(output.status.code(), Some(2));
}

/// Writes, syncs, renames and removes until `stop`, so that every commit frees space of the
/// previous commit.
fn work(folder: &std::path::Path, stop: &AtomicBool) {
    for round in 0.. {
        let name = |number: usize| folder.join(format!("file-{number}"));
        for number in 0..20 {
            let bytes = format!("{round} {number} ").repeat(4000);
            fs::write(name(number), bytes).expect("it is written");
            if number % 3 == 0 {
                File::open(name(number)).and_then(|file| file.sync_all()).expect("it is durable");
            }
            if stop.load(Ordering::Relaxed) {
                return;
            }
        }
        fs::rename(name(1), name(2)).expect("it is renamed");
        fs::remove_file(name(3)).expect("it is removed");
    }
}

fn checked(bench: &Bench, place: &str) -> Value {
    let text = bench.ok(&["--json", "check", "--check-data-csum", place]);
    serde_json::from_str(&text).expect("JSON alone")
}

/// A mounted volume is checked by any of its names while programs write. The check includes all
/// earlier writes, and no write during the check looks like damage.
#[test]
fn a_mounted_volume_is_checked_while_programs_write() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.volume("image", "256M");
    let mounted = Mounted::new(&bench, &["-o", "commit=1"]);
    let folder = bench.path("mnt/folder");
    fs::create_dir(&folder).expect("a folder");
    let before = bench.path("mnt/before");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| work(&folder, &stop));
        let mut last = 0;
        for (round, place) in ["mnt", "image", "mnt/folder", "mnt"].into_iter().enumerate() {
            let bytes = ((round + 1) << 20) as u64;
            fs::write(&before, vec![round as u8; bytes as usize]).expect("it is written");
            let document = checked(&bench, place);
            assert_eq!((&document["clean"], &document["is_mounted"]), (&true.into(), &true.into()));
            let verified = document["totals"]["verified_bytes"].as_u64().expect("bytes");
            assert!(verified >= bytes, "what was written before is read: {document}");
            let commit = document["commit"].as_u64().expect("a number");
            assert!(commit > last, "{commit} behind {last}");
            last = commit;
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().expect("it writes until the end");
    });
    let told = bench.ok(&["check", "mnt"]);
    for words in ["mounted at ", &mounted.pid().to_string(), "is checked", "no error found"] {
        assert!(told.contains(words), "no {words:?} in\n{told}");
    }
    // If there is nothing to commit, the check writes nothing.
    let image = fs::read(bench.path("image")).expect("the image");
    checked(&bench, "mnt");
    assert!(image == fs::read(bench.path("image")).expect("the image"), "it was written");
    let words = ["mounted at", "unmount it to repair"];
    bench.fails(&["check", "mnt", "--repair"], 1, &words);
    bench.fails(&["check", "image", "--repair"], 1, &words);
    damage(&bench, "image", (64 << 20) + 300);
    let output = bench.run(&["check", "mnt"]);
    assert!(said(&output).contains("[super-copy-damaged]"), "{output:?}");
    assert_eq!(output.status.code(), Some(1));
    mounted.end();
    bench.ok(&["check", "--repair", "image"]);
    checker::check(&bench.path("image"));
}

/// The check uses the present devices of the volume, by the names that its mount was given.
#[test]
fn a_mounted_volume_of_several_devices_is_checked() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.volume("image", "256M");
    File::create(bench.path("more")).expect("a file").set_len(256 << 20).expect("sparse");
    let mounted = Mounted::new(&bench, &[]);
    bench.ok(&["device", "add", "mnt", "more"]);
    fs::write(bench.path("mnt/file"), vec![1; 1 << 20]).expect("it is written");
    for place in ["mnt", "image"] {
        assert_eq!(checked(&bench, place)["clean"], true, "{place}");
    }
    mounted.end();
    let mounted = Mounted::new(&bench, &["--device", "more"]);
    for args in [&["mnt"][..], &["image"], &["more"], &["image", "--device", "more"]] {
        bench.ok(&[&["check", "--check-data-csum"], args].concat());
    }
    // A verb that ignores the lock of a mount does not wait for the end of the mount.
    let output = bench.run(&["info", "more", "--device", "image"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !told.contains("waiting for process"), "{told}");
    mounted.end();
    // Read-only mounts write nothing, and their commit is the last commit.
    let mounted = Mounted::new(&bench, &["--device", "more", "-o", "ro"]);
    let image = fs::read(bench.path("image")).expect("the image");
    assert_eq!(checked(&bench, "mnt")["clean"], true);
    assert!(image == fs::read(bench.path("image")).expect("the image"), "it was written");
    mounted.end();
}

/// If the volume is mounted with a cache, the message names the cache. If another program has the
/// volume open without a mount, the message names that program.
#[test]
fn a_volume_that_another_program_has_is_not_checked() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.volume("image", "256M");
    bench.ok(&["cache", "format", "cache", "--size", "24M", "--origin", "image"]);
    let mounted = Mounted::new(&bench, &["--cache", "cache"]);
    bench.fails(&["check", "mnt"], 4, &["mounted at", "it has a cache", "unmount it first"]);
    mounted.end();
    let options = buttress_block::OpenOptions::WRITE;
    let held = buttress_block::FileDevice::open(bench.path("image"), options).expect("it is free");
    bench.fails(&["check", "image"], 1, &["image", &std::process::id().to_string()]);
    bench.ok(&["check", "--force", "image"]);
    drop(held);
    bench.fails(&["check", text(bench.folder())], 1, &["is a directory on"]);
}
