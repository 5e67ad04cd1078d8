//! The command line of `cargo xtask`. Because this test exists, `cargo test --workspace` builds the
//! program. So `.ci/run` can start the built program, and nothing is built twice.

use std::process::{Command, Output};

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

/// Impossible options are refused before anything is built.
#[test]
fn nonsense_is_refused() {
    for words in [["--only", "no such job"], ["--minutes", "0"], ["--minutes", "NaN"]] {
        assert!(!xtask(&[&["crash"], &words[..]].concat()).status.success(), "{words:?}");
    }
}
