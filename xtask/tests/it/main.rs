//! The command line of `cargo xtask`. Because this test exists, `cargo test --workspace` builds the
//! program. So `.ci/run` can start the built program, and nothing is built twice.

use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

fn xtask(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(words).output().expect("it starts")
}

/// Every job is listed. Several words choose the jobs that have any of them.
#[test]
fn jobs_are_listed() {
    let lines = |words: &[&str]| {
        let output = xtask(words);
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("text").lines().count()
    };
    let all = lines(&["crash", "--list"]);
    let hostile = lines(&["crash", "--list", "--only", "hostile"]);
    let caches = lines(&["crash", "--list", "--only", "hostile", "--only", "of a cache"]);
    assert!(1 < hostile && hostile < caches && caches < all, "{hostile}, {caches}, {all}");
    assert!(all < lines(&["crash", "--list", "--fuzz"]));
}

/// A page that is killed at its time limit leaves no loop device behind.
#[test]
fn a_page_without_end_leaves_no_loop_device() {
    let loops = || {
        let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let files = entries
            .filter_map(|entry| fs::read_to_string(entry.path().join("loop/backing_file")).ok());
        files.filter(|file| file.contains("/home/guide/without-end.img")).count()
    };
    let mut mount = Command::new("unshare");
    mount.args(["--mount", "mount", "-t", "tmpfs", "x", "/mnt"]);
    if !mount.status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no right to mount");
        return;
    }
    let page = std::env::temp_dir().join(format!("xtask-guide-{}.md", std::process::id()));
    let text = "```sh\ntruncate -s 1M without-end.img\nlosetup --find without-end.img\n\
                sleep 1000\n```\n";
    fs::write(&page, text).expect("a page");
    let name = page.to_str().expect("a plain name");
    // On a busy machine the page may need longer to come to its last line.
    let mut told = String::new();
    for limit in ["3", "60"] {
        let output = xtask(&["guide", "--program", "/bin/true", "--limit", limit, name]);
        assert!(!output.status.success(), "{output:?}");
        told = String::from_utf8_lossy(&output.stdout).into_owned();
        if told.contains(":4: ") {
            break;
        }
    }
    fs::remove_file(&page).expect("removed");
    assert!(told.contains(":4: "), "the page ends at its fourth line: {told}");
    // A device goes when the last program that looks at it has closed it.
    let begun = Instant::now();
    while loops() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{told}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Impossible options are refused before anything is built.
#[test]
fn nonsense_is_refused() {
    for words in [["--only", "no such job"], ["--minutes", "0"], ["--minutes", "NaN"]] {
        assert!(!xtask(&[&["crash"], &words[..]].concat()).status.success(), "{words:?}");
    }
}
