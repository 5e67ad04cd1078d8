//! `buttress restore`, `undelete` and `rescue`: their output and their exit codes.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use crate::checker::check;
use crate::live::{has, run};
use crate::{Bench, text};

fn damage(bench: &Bench, name: &str, at: u64) {
    let file = OpenOptions::new().write(true).open(bench.path(name)).expect("the image");
    file.write_all_at(&[0xAA; 4096], at).expect("damage");
}

fn filled(bench: &Bench) {
    bench.volume("a.img", "256M");
    std::fs::create_dir(bench.path("src")).expect("a folder");
    for number in 0..20 {
        let content = vec![number as u8; 5000 + number * 100];
        std::fs::write(bench.path(&format!("src/f{number}")), content).expect("a file");
    }
    bench.ok(&["cp", "--recursive", "src", "a.img:/"]);
}

fn json(bench: &Bench, words: &[&str]) -> serde_json::Value {
    let output = bench.run(&[&["--json"], words].concat());
    serde_json::from_slice(&output.stdout).expect("JSON alone")
}

/// A volume without its first superblock is opened by its second superblock. A dry run writes
/// nothing, and an unknown root is refused.
#[test]
fn files_come_out_of_a_damaged_volume() {
    let bench = crate::bench();
    filled(&bench);
    damage(&bench, "a.img", 64 << 10);
    bench.fails(&["ls", "a.img:/"], 3, &["a.img"]);
    let text = bench.ok(&["restore", "--dry-run", "a.img"]);
    assert!(text.contains("22 whole"), "{text}");
    let document = json(&bench, &["restore", "a.img", "out"]);
    assert_eq!(document["summary"]["whole"], 22);
    assert_eq!(document["files"].as_array().map(Vec::len), Some(22));
    for number in 0..20 {
        let one = std::fs::read(bench.path(&format!("src/f{number}"))).expect("read");
        assert!(std::fs::read(bench.path(&format!("out/src/f{number}"))).expect("read") == one);
    }
    let text = bench.ok(&["restore", "--path", "/src/f1?", "a.img", "some"]);
    assert!(text.contains("10 whole"), "{text}");
    let roots = json(&bench, &["restore", "--list-roots", "a.img"]);
    let newest = roots["roots"][0]["generation"].as_u64().expect("a generation").to_string();
    bench.ok(&["restore", "--root", &newest, "a.img", "again"]);
    bench.fails(&["restore", "--root", "999999", "a.img", "none"], 3, &["no root 999999"]);
    bench.fails(&["restore", "a.img"], 2, &["a folder"]);
    std::fs::write(bench.path("text"), vec![b'x'; 1 << 20]).expect("a file");
    bench.fails(&["restore", "text", "none"], 3, &["text", "no tree node"]);
}

/// Under the name of `btrfs`, `restore` takes a regular expression, which must match each folder
/// above a file as well. It also takes the root node of a subvolume.
#[test]
fn restore_takes_the_options_of_btrfs_progs() {
    let bench = crate::bench();
    filled(&bench);
    bench.ok(&["subvolume", "create", "a.img:/src/sub"]);
    bench.ok(&["cp", "src/f3", "a.img:/src/sub/inner"]);
    let btrfs = bench.path("btrfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_buttress"), &btrfs).expect("a link");
    let restore = |words: &[&str]| -> (Option<i32>, String) {
        let mut command = std::process::Command::new(&btrfs);
        command.arg("restore").args(words).current_dir(bench.path(""));
        let output = command.output().expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let names = |folder: &str| -> Vec<String> {
        let entries = std::fs::read_dir(bench.path(folder)).expect("a folder");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    let some = ["--path-regex", "^/(|SRC(|/f1[0-3]))$", "-c", "-d", "a.img", "some"];
    assert_eq!(restore(&some).0, Some(0));
    assert_eq!(names("some"), ["src"]);
    assert_eq!(names("some/src"), ["f10", "f11", "f12", "f13"]);
    // The expression does not match the folder above the file.
    assert_eq!(restore(&["--path-regex", "^/(|src/f1)$", "a.img", "none"]).0, Some(0));
    assert!(names("none").is_empty());
    let (code, said) = restore(&["--path-regex", "(", "a.img", "none"]);
    assert!(code == Some(1) && said.contains("not a regular expression"), "{said}");
    let roots = bench.ok(&["dump", "--tree", "root", "a.img"]);
    let item = roots.split("item ").find(|item| item.contains("(256 ROOT_ITEM")).expect("a root");
    let node = item.split("bytenr ").nth(1).expect("an address").split_whitespace().next();
    assert_eq!(restore(&["-f", node.expect("a number"), "a.img", "sub"]).0, Some(0));
    assert_eq!(names("sub"), ["inner"]);
    let (code, said) = restore(&["-f", "12345", "a.img", "none"]);
    assert!(code == Some(1) && said.contains("no node of a subvolume at 12345"), "{said}");
}

/// Deleted files are listed, and come back to another folder.
#[test]
fn deleted_files_come_back() {
    let bench = crate::bench();
    filled(&bench);
    bench.ok(&["rm", "--recursive", "a.img:/src"]);
    let text = bench.ok(&["undelete", "a.img"]);
    assert!(text.contains("/src/f7") && text.contains("whole"), "{text}");
    let document = json(&bench, &["undelete", "a.img", "--path", "/src/f?", "--to", "out"]);
    assert_eq!(document["summary"]["whole"], 10);
    let one = std::fs::read(bench.path("src/f7")).expect("read");
    assert!(std::fs::read(bench.path("out/src/f7")).expect("read") == one);
    let output = bench.run(&["undelete", "a.img", "--since", "yesterday"]);
    assert_eq!(output.status.code(), Some(2));
}

/// All repairs are listed first, and nothing is written without `--yes`.
#[test]
fn mending_needs_a_yes() {
    let bench = crate::bench();
    filled(&bench);
    bench.ok(&["rescue", "super-recover", "a.img"]);
    damage(&bench, "a.img", 64 << 10);
    for _ in 0..2 {
        let output = bench.run(&["rescue", "super-recover", "a.img"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(6), "{text}");
        assert!(text.contains("would write:") && text.contains("--yes"), "{text}");
    }
    let text = bench.ok(&["rescue", "super-recover", "--yes", "a.img"]);
    assert!(text.contains("written:"), "{text}");
    let text = bench.ok(&["rescue", "super-recover", "a.img"]);
    assert!(text.contains("nothing to mend"), "{text}");
    bench.ok(&["check", "--check-data-csum", "a.img"]);
    bench.ok(&["rescue", "clear-space-cache", "v2", "a.img", "--yes"]);
    bench.ok(&["rescue", "zero-log", "a.img"]);
    bench.ok(&["rescue", "fix-device-size", "a.img"]);
    bench.ok(&["rescue", "chunk-recover", "a.img"]);
    bench.ok(&["mkdir", "a.img:/new"]);
    bench.ok(&["check", "--check-data-csum", "a.img"]);
}

/// The UUID tree is emptied, and Linux builds the same tree again. Before that, subvolumes can be
/// made and sent.
#[test]
fn linux_builds_the_uuid_tree_anew() {
    let bench = crate::bench();
    bench.volume("a.img", "256M");
    let image = bench.path("a.img");
    bench.ok(&["subvolume", "create", "a.img:/one", "a.img:/two"]);
    bench.ok(&["subvolume", "snapshot", "-r", "a.img:/one", "a.img:/sent"]);
    bench.ok(&["send", "a.img:/sent", "--file", "stream"]);
    bench.ok(&["subvolume", "delete", "a.img:/sent"]);
    bench.ok(&["receive", "a.img:/", "--file", "stream"]);
    let items = || {
        let said = bench.ok(&["dump", "--tree", "uuid", "a.img"]);
        let is_it = |line: &&str| line.contains("UUID_KEY") || line.contains("subvol_id");
        let lines = said.lines().filter(is_it).map(|line| line.split(" itemoff").next());
        lines.flatten().map(str::to_owned).collect()
    };
    let before: Vec<String> = items();
    assert!(before.iter().any(|line| line.contains("UUID_KEY_RECEIVED_SUBVOL")), "{before:?}");
    let generation = || {
        let said = bench.ok(&["dump", "--super", "a.img"]);
        let line = said.lines().find(|line| line.starts_with("uuid_tree_generation"));
        line.and_then(|line| line.split_whitespace().nth(1)).map(str::to_owned)
    };
    let output = bench.run(&["rescue", "clear-uuid-tree", "a.img"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("5 items of the UUID tree") && items() == before, "{said}");
    let said = bench.ok(&["rescue", "clear-uuid-tree", "--yes", "a.img"]);
    assert!(said.contains("written:"), "{said}");
    assert!(items().is_empty());
    assert_eq!(generation().as_deref(), Some("0"));
    check(&image);
    bench.ok(&["check", "a.img"]);
    let said = bench.ok(&["rescue", "clear-uuid-tree", "a.img"]);
    assert!(said.contains("nothing to mend"), "{said}");
    // A commit leaves the tree marked as outdated.
    bench.ok(&["subvolume", "create", "a.img:/three"]);
    bench.ok(&["subvolume", "delete", "a.img:/three"]);
    assert_eq!(generation().as_deref(), Some("0"));
    check(&image);

    let btrfs = bench.path("btrfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_buttress"), &btrfs).expect("a link");
    let mut words = std::process::Command::new(&btrfs);
    let output = words.args(["rescue", "clear-uuid-tree"]).arg(&image).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    if !has(&["mount", "umount", "btrfs"], None) || !crate::live::is_root() {
        return;
    }
    let top = bench.path("top");
    std::fs::create_dir(&top).expect("a folder");
    // Linux ends its work on the tree before an unmount.
    run("mount", &["-o", "loop", text(&image), text(&top)]);
    run("umount", &[text(&top)]);
    assert_eq!(items(), before);
    assert_ne!(generation().as_deref(), Some("0"));
    check(&image);
}

/// `btrfs check` begins with another copy of the superblock, with an older root, or with roots at
/// addresses. What it does not have it refuses with what to use in its place.
#[test]
fn a_check_begins_where_it_is_told() {
    let bench = crate::bench();
    filled(&bench);
    let btrfs = bench.path("btrfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_buttress"), &btrfs).expect("a link");
    let check = |words: &[&str]| -> (String, Option<i32>) {
        let mut command = std::process::Command::new(&btrfs);
        command.arg("check").args(words).arg("a.img").current_dir(bench.path(""));
        let output = command.output().expect("it starts");
        let said = [&output.stdout[..], &output.stderr].concat();
        (String::from_utf8_lossy(&said).into_owned(), output.status.code())
    };
    let field = |name: &str| {
        let said = bench.ok(&["dump", "--super", "a.img"]);
        let line = said.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.and_then(|line| line.split_whitespace().nth(1)).expect("a field").to_owned()
    };
    let (root, chunks, last) = (field("root"), field("chunk_root"), field("generation"));
    let older: u64 = last.parse().expect("a number");
    for words in [
        &["-b"][..],
        &["--super", "1"],
        &["-r", &root, "--chunk-root", &chunks],
        &["-r", &root, "--readonly", "--check-data-csum", "-p", "--mode", "lowmem"],
    ] {
        let (said, code) = check(words);
        assert!(code == Some(0) && said.contains("no error found"), "{words:?}: {said}");
    }
    assert!(check(&["-s", "1"]).0.contains("using SB copy 1, bytenr 67108864"));
    // The root of the older commit names other bytes in use.
    let used = |said: &str| said.lines().find(|line| line.starts_with("found ")).map(str::to_owned);
    bench.ok(&["rm", "--recursive", "a.img:/src"]);
    assert_ne!(field("generation"), last);
    let (old, code) = check(&["-b"]);
    assert_eq!(code, Some(0), "{old}");
    assert_ne!(used(&old), used(&check(&[]).0), "{old} after {older}");

    damage(&bench, "a.img", 64 << 10);
    assert_eq!(check(&[]).1, Some(1));
    let (said, code) = check(&["-s", "1"]);
    assert_eq!(code, Some(0), "{said}");
    for (words, why) in [
        (&["-s", "3"][..], "super mirror should be less than 3"),
        (&["-s", "1", "-r", "4096"], "failed to read tree block 4096"),
        (&["-s", "1", "-r", "12345"], "not aligned"),
        (&["-s", "1", "--chunk-root", "12345"], "not aligned"),
        (&["-s", "1", "--repair"], "cannot be used with"),
        (&["-b", "--init-csum-tree"], "cannot be used with"),
        (&["-b", "--clear-space-cache", "v2"], "cannot be used with"),
        (&["-s", "1", "--clear-space-cache", "v2"], "cannot be used with"),
        (&["-r", &root, "--clear-space-cache", "v1"], "cannot be used with"),
        (&["--chunk-root", &chunks, "--clear-space-cache", "v1"], "cannot be used with"),
        (&["--readonly", "--clear-space-cache", "v2"], "cannot be used with"),
    ] {
        let (said, code) = check(words);
        assert!(code == Some(1) && said.contains(why), "{words:?}: {said}");
    }
    bench.ok(&["rescue", "super-recover", "--yes", "a.img"]);
    let (said, code) = check(&["--init-extent-tree", "--"]);
    assert!(code == Some(0) && said.contains("repairing:"), "{said}");
    crate::checker::check(&bench.path("a.img"));
}

/// Only verbs that read take words of `rescue=`.
#[test]
fn rescue_words_are_for_reading() {
    let bench = crate::bench();
    filled(&bench);
    for words in ["usebackuproot", "all", "nologreplay:ignorebadroots"] {
        bench.ok(&["ls", "--rescue", words, "a.img:/src"]);
        bench.ok(&["info", "--rescue", words, "a.img"]);
    }
    bench.fails(&["mkdir", "--rescue", "all", "a.img:/new"], 2, &["--rescue all"]);
    bench.fails(&["check", "--rescue", "all", "a.img"], 2, &["--rescue all"]);
    let output = bench.run(&["ls", "--rescue", "nonsense", "a.img:/"]);
    assert_eq!(output.status.code(), Some(2));
}
