//! What `btrfs device add` does to the content of a device.

use std::fs::File;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use crate::Bench;
use crate::checker::check;
use crate::live::{Mounted, has};
use crate::words::said;

/// Offsets that hold data at first. No volume that is as empty as those here writes there.
const WRITTEN_AT: [u64; 3] = [5 << 20, 150 << 20, (200 << 20) - 4096];

/// A device that is full of data, as far as a test can tell.
fn full(bench: &Bench, name: &str, size: u64) {
    let file = File::create(bench.path(name)).expect("a file");
    file.set_len(size).expect("a size");
    for at in WRITTEN_AT.into_iter().filter(|at| *at < size) {
        file.write_all_at(&[0xa5; 4096], at).expect("data");
    }
}

/// Whether the data of a device is there.
fn is_full(bench: &Bench, name: &str) -> bool {
    let file = File::open(bench.path(name)).expect("a device");
    let mut bytes = [0; 4096];
    WRITTEN_AT.into_iter().any(|at| {
        file.read_exact_at(&mut bytes, at).expect("the data");
        bytes == [0xa5; 4096]
    })
}

fn bench() -> (Bench, std::path::PathBuf) {
    let bench = crate::bench();
    let ours = bench.path("btrfs");
    symlink(env!("CARGO_BIN_EXE_buttress"), &ours).expect("a link");
    (bench, ours)
}

/// The words of a command line, with the paths of files in the place of their names.
fn add(bench: &Bench, ours: &Path, words: &[&str]) -> (String, Option<i32>) {
    let path = |word: &&str| match word.starts_with('-') {
        true => (*word).to_owned(),
        false => bench.path(word).display().to_string(),
    };
    let words: Vec<String> = words.iter().map(path).collect();
    let words: Vec<&str> =
        ["device", "add"].into_iter().chain(words.iter().map(String::as_str)).collect();
    said(bench, ours, &words)
}

/// A device keeps all its bytes where it does not become part of the volume.
#[test]
fn a_device_that_is_refused_keeps_its_bytes() {
    let (bench, ours) = bench();
    full(&bench, "new", 200 << 20);
    full(&bench, "small", 8 << 20);
    bench.ok(&["mkfs", "one", "--size", "200M"]);
    for name in ["first", "second"] {
        File::create(bench.path(name)).expect("a file").set_len(200 << 20).expect("a size");
    }
    bench.ok(&["mkfs", "first", "second"]);
    let names = ["new", "small", "one", "first", "second"];
    let bytes = |name: &str| std::fs::read(bench.path(name)).expect("the bytes");
    let before = names.map(bytes);
    for words in [
        // The arguments are swapped.
        &["-f", "one", "new"][..],
        // There is no such volume.
        &["new", "nowhere"],
        &["-f", "one", "nowhere"],
        // The device is a member.
        &["-f", "one", "one"],
        &["-f", "second", "first"],
        &["-f", "first", "second"],
        // Not all devices of the volume are here.
        &["new", "first"],
        // The volume refuses the device.
        &["small", "one"],
    ] {
        let (said, code) = add(&bench, &ours, words);
        assert_eq!(code, Some(1), "{words:?}: {said}");
        assert!(!said.contains("TRIM"), "{words:?}: {said}");
        for (name, before) in names.iter().zip(&before) {
            // The volume is opened for writing, and so commits, before it refuses a small device.
            if words != ["small", "one"] || *name != "one" {
                assert!(bytes(name) == *before, "{words:?}: {name} changed: {said}");
            }
        }
    }
    check(&bench.path("one"));
}

/// The same on a mount. What the mount refuses keeps its bytes.
#[test]
fn a_mount_discards_only_what_it_takes() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let (bench, ours) = bench();
    bench.volume("image", "200M");
    full(&bench, "new", 200 << 20);
    full(&bench, "small", 8 << 20);
    bench.ok(&["mkfs", "other", "--size", "200M"]);
    let bytes = |name: &str| std::fs::read(bench.path(name)).expect("the bytes");
    let (small, other) = (bytes("small"), bytes("other"));
    let mounted = Mounted::new(&bench, &[]);
    for words in [&["small", "mnt"][..], &["-f", "image", "mnt"], &["other", "mnt"]] {
        let (said, code) = add(&bench, &ours, words);
        assert!(code == Some(1) && !said.contains("TRIM"), "{words:?}: {said}");
    }
    assert!(bytes("small") == small && bytes("other") == other && is_full(&bench, "new"));
    let (said, code) = add(&bench, &ours, &["new", "mnt"]);
    assert!(code == Some(0) && said.contains("Performing full device TRIM"), "{said}");
    assert!(!is_full(&bench, "new"));
    let (said, code) = add(&bench, &ours, &["-f", "new", "mnt"]);
    assert!(code == Some(1) && !said.contains("TRIM"), "{said}");
    mounted.end();
}

/// A device that becomes part of a volume loses its content, unless `-K` is given.
#[test]
fn a_device_that_is_added_is_discarded() {
    let (bench, ours) = bench();
    for keeps in [false, true] {
        bench.ok(&["mkfs", "--force", "image", "--size", "200M"]);
        full(&bench, "new", 200 << 20);
        let option = if keeps { &["-K"][..] } else { &[] };
        let (said, code) = add(&bench, &ours, &[option, &["new", "image"]].concat());
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(said.contains("Performing full device TRIM"), !keeps, "{said}");
        assert_eq!(is_full(&bench, "new"), keeps);
        bench.ok(&["check", "image", "--device", "new"]);
    }
}
