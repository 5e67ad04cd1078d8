//! `buttress check`: what it prints, and how it ends.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::Output;

use crate::Bench;

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn damage(bench: &Bench, name: &str, at: u64) {
    let file = OpenOptions::new().write(true).open(bench.path(name)).expect("the image");
    file.write_all_at(b"damage", at).expect("damage");
}

/// A volume without a fault: steps, sums, and 0.
#[test]
fn a_clean_volume() {
    let bench = crate::bench();
    bench.volume("a.img", "256M");
    let text = bench.ok(&["check", "a.img", "--check-data-csum"]);
    for words in ["[1/8] checking", "[8/8] checking quota groups", "no error found"] {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }
    let text = bench.ok(&["--json", "check", "a.img", "--readonly"]);
    let document: serde_json::Value = serde_json::from_str(&text).expect("JSON alone");
    assert_eq!(document["clean"], true);
    assert_eq!(document["issues"].as_array().map(Vec::len), Some(0));
}

/// A fault: named, 1, and mended when that is asked for.
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
    let document: serde_json::Value = serde_json::from_str(&said(&output)).expect("JSON alone");
    assert_eq!(document["issues"][0]["code"], "super-copy-damaged");
    assert_eq!(document["issues"][0]["offset"], 64 << 20);

    let text = bench.ok(&["check", "a.img", "--repair"]);
    assert!(text.contains("repaired:") && text.contains("no error found"), "{text}");
    bench.ok(&["check", "a.img"]);
}

/// What is no volume, and a command line that cannot be right.
#[test]
fn check_refuses_files_without_a_volume() {
    let bench = crate::bench();
    std::fs::write(bench.path("text"), vec![b'x'; 1 << 20]).expect("a file");
    bench.fails(&["check", "text"], 3, &["text", "holds no btrfs"]);
    bench.fails(&["check", "nothing"], 1, &["nothing"]);
    let output = bench.run(&["check", "a.img", "--repair", "--readonly"]);
    assert_eq!(output.status.code(), Some(2));
}
