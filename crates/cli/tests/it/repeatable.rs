//! Two runs of `mkfs` give the same bytes.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::Bench;

const EPOCH: &str = "1700000000";

/// Makes a tree of files, from the first to the last or from the last to the first.
fn tree(top: &Path, is_backwards: bool) {
    std::fs::create_dir(top).expect("a folder");
    let mut names: Vec<u32> = (0..60).collect();
    if is_backwards {
        names.reverse();
    }
    for folder in ["one", "two"] {
        std::fs::create_dir(top.join(folder)).expect("a folder");
    }
    for number in names {
        let folder = if number.is_multiple_of(3) { "one" } else { "two" };
        let path = top.join(folder).join(format!("file {number}"));
        let file = File::create(&path).expect("a file");
        let content: Vec<u8> = (0..number * 1500).map(|at| (at * number / 7) as u8).collect();
        file.write_all_at(&content, 0).expect("written");
        file.set_permissions(PermissionsExt::from_mode(0o600 + number % 8)).expect("a mode");
        // Some times are earlier than the latest time that the volume may have.
        if number.is_multiple_of(2) {
            let time = UNIX_EPOCH + Duration::new(1_600_000_000 + u64::from(number), 5);
            file.set_modified(time).expect("a time");
        }
    }
    // Some zeros of the file are written, and others are a hole.
    let zeros = File::create(top.join("zeros")).expect("a file");
    zeros.write_all_at(b"end", 3 << 20).expect("written");
    if is_backwards {
        zeros.write_all_at(&vec![0; 2 << 20], 4096).expect("written");
    }
    std::fs::hard_link(top.join("two/file 1"), top.join("again")).expect("a link");
    std::os::unix::fs::symlink("two", top.join("link")).expect("a link");
}

fn mkfs(bench: &Bench, words: &[&str], epoch: Option<&str>) -> Vec<u8> {
    let image = bench.path("made.img");
    let _ = std::fs::remove_file(&image);
    let mut command = bench.command(&[&["mkfs", "made.img"], words].concat());
    match epoch {
        Some(epoch) => command.env("SOURCE_DATE_EPOCH", epoch),
        None => command.env_remove("SOURCE_DATE_EPOCH"),
    };
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    bench.ok(&["check", "--check-data-csum", "made.img"]);
    std::fs::read(&image).expect("the image")
}

/// Equal trees give equal bytes, whatever the order of names and the holes on the host. Other trees
/// give other identifiers.
#[test]
fn equal_trees_give_equal_volumes() {
    let bench = crate::bench();
    tree(&bench.path("forth"), false);
    tree(&bench.path("back"), true);
    let old = ["-O", "^no-holes,^block-group-tree", "--nodesize", "4k"];
    for more in [&[][..], &["--compress", "zstd"], &old] {
        let words = |dir| [&["--size", "128M", "--rootdir", dir], more].concat();
        let first = mkfs(&bench, &words("forth"), Some(EPOCH));
        let second = mkfs(&bench, &words("back"), Some(EPOCH));
        let unlike = first.iter().zip(&second).position(|(one, other)| one != other);
        assert_eq!((first.len(), unlike), (second.len(), None), "{more:?}");
    }
    std::fs::write(bench.path("back/two/file 2"), b"other").expect("written");
    let uuid = || {
        let text = bench.ok(&["--json", "info", "made.img"]);
        let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        document["uuid"].as_str().expect("an identifier").to_owned()
    };
    mkfs(&bench, &["--size", "128M", "--rootdir", "forth"], Some(EPOCH));
    let before = uuid();
    mkfs(&bench, &["--size", "128M", "--rootdir", "back"], Some(EPOCH));
    assert_ne!(before, uuid(), "other content, other identifiers");
}

/// Two runs are equal also without a folder, if the time and the seed are equal. An invalid
/// `SOURCE_DATE_EPOCH` is refused.
#[test]
fn a_seed_gives_identifiers() {
    let bench = crate::bench();
    let size = ["--size", "128M"];
    let made = |more: &[&str], epoch| mkfs(&bench, &[&size, more].concat(), epoch);
    assert!(made(&[], Some(EPOCH)) == made(&[], Some(EPOCH)));
    assert!(made(&[], Some(EPOCH)) != made(&["--seed", "a"], Some(EPOCH)));
    assert!(made(&["--seed", "b"], Some(EPOCH)) == made(&["--seed", "b"], Some(EPOCH)));
    assert!(made(&[], None) != made(&[], None), "without any of it two runs differ");
    let mut command = bench.command(&["mkfs", "made.img", "--force", "--size", "256M"]);
    let output = command.env("SOURCE_DATE_EPOCH", "tomorrow").output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
}
