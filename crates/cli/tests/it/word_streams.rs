//! The program as `btrfs`: several subvolumes in one stream, several streams in one input, and
//! commands that fail.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use buttress_test_program::Bench;

use crate::checker::check;
use crate::live::{has, run};
use crate::text;
use crate::words::{bench_of_words, program};

/// A volume in the file `image` with the read-only subvolumes `one`, `two` and `three`: each is a
/// snapshot of the same subvolume with one more change. Returns the program under the name `btrfs`.
fn bench_of_three() -> Option<(Bench, PathBuf)> {
    let (bench, ours) = bench_of_words()?;
    std::fs::create_dir(bench.path("host")).expect("a folder");
    std::fs::write(bench.path("host/big"), vec![7; 300_000]).expect("a file");
    bench.ok(&["subvolume", "create", "image:/s"]);
    for (name, file) in [("one", "a"), ("two", "b"), ("three", "c")] {
        std::fs::write(bench.path("host/small"), name).expect("a file");
        bench.ok(&["cp", "host/small", &format!("image:/s/{file}")]);
        bench.ok(&["cp", "host/big", &format!("image:/s/big-{file}")]);
        bench.ok(&["subvolume", "snapshot", "-r", "image:/s", &format!("image:/{name}")]);
    }
    Some((bench, ours))
}

fn btrfs(bench: &Bench, ours: &Path, words: &[&str]) -> Output {
    let mut command = program(bench, ours);
    command.current_dir(bench.folder()).args(words).output().expect("it starts")
}

/// The lines that a program printed as errors.
fn errors(output: &Output) -> usize {
    let said = String::from_utf8_lossy(&output.stderr);
    said.lines().filter(|line| line.starts_with("ERROR: ")).count()
}

/// Linux and this program receive the same subvolumes, from one stream for all subvolumes or from
/// one stream for each. With `-e`, a receiver leaves the next stream in the input.
#[test]
fn several_subvolumes_are_sent_at_once() {
    let needed = ["mkfs.btrfs", "btrfs", "mount", "umount", "losetup", "diff"];
    if !has(&needed, Some("/dev/fuse")) || !crate::live::is_root() {
        return;
    }
    let Some((bench, ours)) = bench_of_three() else { return };
    let all = ["image:/one", "image:/two", "image:/three"];
    let cases: [(&str, &[&str]); 4] = [
        ("full", &[]),
        ("joined", &["-e"]),
        ("from", &["-p", "image:/one"]),
        ("chained", &["-e", "-c", "image:/one"]),
    ];
    for (name, options) in cases {
        let first = if name == "full" || name == "joined" { &all[..] } else { &all[1..] };
        let words = [&["send", "-f", name], options, first].concat();
        let output = btrfs(&bench, &ours, &words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.matches("At subvol").count(), first.len(), "{said}");
    }
    let count = |name: &str| {
        let bytes = std::fs::read(bench.path(name)).expect("a stream");
        bytes.windows(13).filter(|bytes| bytes == b"btrfs-stream\0").count()
    };
    assert_eq!(["full", "joined", "from", "chained"].map(count), [3, 1, 2, 1]);
    let len = |name: &str| bench.path(name).metadata().expect("a stream").len();
    // Two headers and two ends are left out.
    assert_eq!(len("full") - len("joined"), 2 * (17 + 10));

    let (linux, top) = (bench.path("linux"), bench.path("lx"));
    std::fs::create_dir(&top).expect("a folder");
    File::create(&linux).expect("a file").set_len(300 << 20).expect("a size");
    run("mkfs.btrfs", &["-q", text(&linux)]);
    let device = run("losetup", &["--find", "--show", text(&linux)]);
    run("mount", &[device.trim(), text(&top)]);
    bench.volume("target", "300M");
    let place = |folder: &str| {
        std::fs::create_dir(top.join(folder)).expect("a folder");
        bench.ok(&["mkdir", &format!("target:/{folder}")]);
        (text(&top.join(folder)).to_owned(), format!("{}:/{folder}", text(&bench.path("target"))))
    };
    for (folder, streams) in [("a", ["full", "from"]), ("b", ["joined", "chained"])] {
        let (theirs, own) = place(folder);
        for (at, name) in streams.into_iter().enumerate() {
            if at == 1 {
                // The later snapshots are received once more, as changes of the first.
                for place in ["two", "three"] {
                    run("btrfs", &["subvolume", "delete", &format!("{theirs}/{place}")]);
                    bench.ok(&["subvolume", "delete", &format!("{own}/{place}")]);
                }
            }
            let input = || File::open(bench.path(name)).expect("a stream");
            let mut command = Command::new("btrfs");
            let words = ["receive", &theirs];
            let output = command.args(words).stdin(input()).output().expect("it starts");
            assert!(output.status.success(), "{name}: {output:?}");
            let mut command = program(&bench, &ours);
            let words = ["receive", &own];
            let output = command.args(words).stdin(input()).output().expect("it starts");
            assert!(output.status.success(), "{name}: {output:?}");
        }
    }
    // Each receiver takes one stream of the same open file.
    let (theirs, own) = place("each");
    let linux_input = File::open(bench.path("full")).expect("a stream");
    let own_input = File::open(bench.path("full")).expect("a stream");
    for name in ["one", "two", "three"] {
        for (mut command, input, place) in [
            (Command::new("btrfs"), &linux_input, &theirs),
            (program(&bench, &ours), &own_input, &own),
        ] {
            command.args(["receive", "-e", place]).stdin(input.try_clone().expect("a file"));
            let output = command.output().expect("it starts");
            assert!(output.status.success(), "{name}: {output:?}");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains(name) && said.lines().count() == 1, "{said}");
        }
    }
    let mut command = program(&bench, &ours);
    let output = command.args(["receive", "-e", &own]).stdin(own_input).output();
    let output = output.expect("it starts");
    assert!(!output.status.success(), "the input has ended: {output:?}");
    for folder in ["a", "b", "each"] {
        for name in ["one", "two", "three"] {
            let host = bench.path(&format!("out-{folder}-{name}"));
            let place = format!("target:/{folder}/{name}");
            bench.ok(&["cp", "-r", &place, text(&host)]);
            run("diff", &["-r", text(&host), text(&top.join(folder).join(name))]);
        }
    }
    run("umount", &[text(&top)]);
    run("losetup", &["--detach", device.trim()]);
    check(&bench.path("target"));
}

/// With `-E`, receiving goes on after failed commands. The subvolume stays incomplete, and nothing
/// is received after it.
#[test]
fn commands_may_fail() {
    let Some((bench, ours)) = bench_of_three() else { return };
    for (name, words) in [
        ("first", &["send", "-f", "first", "image:/one"][..]),
        ("rest", &["send", "-f", "rest", "-p", "image:/one", "image:/two", "image:/three"]),
    ] {
        assert!(btrfs(&bench, &ours, words).status.success(), "{name}");
    }
    // The commands for files in a folder that is gone fail.
    bench.ok(&["subvolume", "snapshot", "-r", "image:/s", "image:/base"]);
    bench.ok(&["rm", "image:/s/a"]);
    bench.ok(&["rm", "image:/s/b"]);
    bench.ok(&["rm", "image:/s/c"]);
    bench.ok(&["subvolume", "snapshot", "-r", "image:/s", "image:/less"]);
    let words = ["send", "-f", "after", "-p", "image:/base", "image:/less", "image:/one"];
    assert!(btrfs(&bench, &ours, &words).status.success());
    let cases = [(None, 1), (Some("1"), 1), (Some("2"), 2), (Some("0"), 4)];
    for (at, (limit, wanted)) in cases.into_iter().enumerate() {
        let target = format!("target{at}");
        std::fs::copy(bench.path("image"), bench.path(&target)).expect("room");
        for name in ["less", "one"] {
            bench.ok(&["subvolume", "delete", &format!("{target}:/{name}")]);
        }
        let top = format!("{target}:/");
        // Three files are missing from the subvolume that the stream changes.
        let base = format!("{target}:/base");
        bench.ok(&["property", "set", "-f", &base, "ro", "false"]);
        for file in ["a", "b", "c"] {
            bench.ok(&["rm", &format!("{base}/{file}")]);
        }
        bench.ok(&["property", "set", &base, "ro", "true"]);
        let options = limit.map_or(vec![], |limit| vec!["-E", limit]);
        let words = [&["receive", "-f", "after"], &options[..], &[&top[..]]].concat();
        let output = btrfs(&bench, &ours, &words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        // With no limit, the last line tells that the subvolume is incomplete.
        assert_eq!(errors(&output), wanted, "{words:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("incomplete"), "{said}");
        let shown = bench.ok(&["subvolume", "list", &target]);
        assert!(shown.contains("less") && !shown.contains("one"), "{shown}");
        let ro = bench.ok(&["property", "get", &format!("{target}:/less"), "ro"]);
        assert!(ro.contains("false"), "an incomplete subvolume is not made read-only: {ro}");
        check(&bench.path(&target));
    }
    // A limit that is not reached makes no difference.
    bench.volume("good", "300M");
    let words = ["receive", "-E", "3", "-f", "first", "good:/"];
    let output = btrfs(&bench, &ours, &words);
    assert_eq!((output.status.code(), errors(&output)), (Some(0), 0), "{output:?}");
    // A stream that is cut ends, whatever the limit is.
    let whole = std::fs::read(bench.path("rest")).expect("a stream");
    std::fs::write(bench.path("cut"), &whole[..whole.len() / 2]).expect("a file");
    let output = btrfs(&bench, &ours, &["receive", "-E", "0", "-f", "cut", "good:/"]);
    assert_eq!((output.status.code(), errors(&output)), (Some(1), 1), "{output:?}");
}
