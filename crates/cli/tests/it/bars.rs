//! Progress bars: on a terminal each long command shows one. With `--quiet`, with `--json` and in
//! pipes there is none. A reader that leaves early ends a command without an error.

use std::fs;
use std::process::{Command, Stdio};

use buttress_test_program::Bench;

use crate::bench;
use crate::checker::check;
use crate::live::has;

/// Long commands, in an order in which each finds what it needs, and the first word of their bars.
const LONG: [(&str, &str); 19] = [
    ("mkfs --rootdir source image", "filling"),
    ("cp -r source image:/copied", "copying"),
    ("check --check-data-csum image", "extents"),
    ("scrub start image", "scrub"),
    ("balance start -d all image", "balance"),
    ("filesystem defragment -r image:/", "writing"),
    ("fstrim image", "fstrim"),
    ("subvolume snapshot -r image:/ image:/snapshot", ""),
    ("send -f stream image:/snapshot", "send"),
    ("mkfs --size 256M other", ""),
    ("receive -f stream other", "receiving"),
    ("cp -r image:/copied out", "copying"),
    ("cp image other:/whole", "copying"),
    ("restore image restored", "files"),
    ("undelete image", "scanning"),
    ("du image", "du"),
    ("compsize image", "compsize"),
    ("map image -o map.svg", "map"),
    ("dump image", ""),
];

/// What a command line writes to its terminal, without the sequences that move the cursor. Standard
/// output is no terminal, so that what is left are bars and notes.
fn on_terminal(bench: &Bench, line: &str) -> String {
    let program = env!("CARGO_BIN_EXE_buttress");
    let inner = format!("exec {program} {line} >answer");
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--flush", "--command", &inner, "typescript"]);
    script.current_dir(bench.folder()).stdin(Stdio::null()).stdout(Stdio::null());
    let status = script.status().expect("script runs");
    let written = fs::read(bench.path("typescript")).expect("what was shown");
    let shown = String::from_utf8_lossy(&written).replace('\r', "\n");
    let is_own = |line: &&str| !line.is_empty() && !line.starts_with("Script ");
    let shown: String = shown.lines().filter(is_own).map(|line| format!("{line}\n")).collect();
    assert!(status.success(), "{line}: {shown}");
    shown
}

/// A volume to begin with: the source of the first copy.
fn source(bench: &Bench) {
    fs::create_dir(bench.path("source")).expect("a folder");
    for number in 0..50 {
        let content = vec![number as u8; 40_000];
        fs::write(bench.path(&format!("source/{number}")), content).expect("a file");
    }
}

/// The commands show bars on a terminal. The bars are gone at the end: the last line is cleared.
#[test]
fn long_commands_show_bars_on_terminals() {
    if !has(&["script", "btrfs"], None) {
        return;
    }
    let bench = bench();
    source(&bench);
    for (line, bar) in LONG {
        let shown = on_terminal(&bench, line);
        assert!(bar.is_empty() || shown.contains(bar), "{line}: no bar {bar:?}: {shown}");
        assert!(bar.is_empty() || shown.contains("\x1b[2K"), "{line}: it is cleared: {shown}");
    }
    for name in ["image", "other"] {
        check(&bench.path(name));
    }
}

/// With `--quiet` a terminal shows nothing but the answer. So does a pipe without it, and JSON is
/// one document.
#[test]
fn quiet_commands_and_pipes_show_no_bars() {
    if !has(&["script", "btrfs"], None) {
        return;
    }
    let bench = bench();
    source(&bench);
    for (line, bar) in LONG {
        let shown = on_terminal(&bench, &format!("--quiet {line}"));
        assert_eq!(shown, "", "{line}");
        let Some((verb, words)) = line.split_once(' ').filter(|_| !bar.is_empty()) else {
            continue;
        };
        if ["mkfs", "cp", "receive", "restore", "send"].contains(&verb) {
            continue;
        }
        let words: Vec<_> = words.split(' ').collect();
        let output = bench.run(&[&[verb], &words[..]].concat());
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
        let json = on_terminal(&bench, &format!("--json {line}"));
        assert_eq!(json, "", "{line}");
        let answer = fs::read(bench.path("answer")).expect("an answer");
        if !answer.is_empty() {
            serde_json::from_slice::<serde_json::Value>(&answer).expect("one document");
        }
    }
}

/// A reader that ends early, as `head`, is no error, and the command ends. A stream that is cut is
/// an error.
#[test]
fn readers_may_leave_early() {
    if !has(&["head", "bash"], None) {
        return;
    }
    let bench = bench();
    source(&bench);
    // Each answer is longer than what a pipe holds, so the command still writes when `head` ends.
    fs::write(bench.path("source/long"), vec![b'x'; 4 << 20]).expect("a file");
    for number in 0..4000 {
        let name = format!("source/{number:0>200}");
        fs::write(bench.path(&name), "").expect("a file");
    }
    bench.ok(&["mkfs", "--rootdir", "source", "image"]);
    bench.ok(&["subvolume", "snapshot", "-r", "image:/", "image:/s"]);
    let cut = "buttress: image:/s: cannot write the stream: Broken pipe";
    for (line, code, told) in [
        ("dump image", "0", ""),
        ("tree image", "0", ""),
        ("ls -l image:/", "0", ""),
        ("cat image:/long", "0", ""),
        ("--quiet send image:/s", "1", cut),
    ] {
        let program = env!("CARGO_BIN_EXE_buttress");
        let pipe = format!("{program} {line} | head -c 10 >answer; echo ${{PIPESTATUS[0]}}");
        let mut shell = Command::new("bash");
        shell.args(["-c", &pipe]).current_dir(bench.folder());
        let output = shell.output().expect("bash runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.starts_with(told) && errors.is_empty() == told.is_empty(), "{errors}");
        assert_eq!(fs::read(bench.path("answer")).expect("the front").len(), 10, "{line}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), code, "{line}");
    }
}
