//! Requests that wait: what `stats` and `top` say of them while they do.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::away::{hide, show, wait_until};
use crate::live::{Mounted, has};
use crate::{bench, text};

/// Objects that are hidden. A test that fails shows them again: its reader waits for them.
struct Hidden(Vec<PathBuf>);

impl Drop for Hidden {
    fn drop(&mut self) {
        show(&self.0);
    }
}

/// A program reads from a store that does not answer. `stats` names the operation, the inode, and
/// the store as the cause, and `top` shows the same on a wide and on a narrow screen. Afterwards
/// nothing waits.
#[test]
fn a_read_that_waits_for_a_store_is_shown() {
    if !has(&["umount", "mkfifo"], Some("/dev/fuse")) {
        return;
    }
    let bench = bench();
    let folder = bench.path("volume");
    let volume = format!("file://{}", folder.display());
    bench.ok(&["mkfs", &volume, "--size", "1G"]);
    let content: Vec<u8> = (0..300_000_u32).map(|at| (at / 7) as u8).collect();
    fs::write(bench.path("note"), &content).expect("a file");
    bench.ok(&["cp", "note", &format!("{volume}:/")]);
    let mounted = Mounted::of(&bench, &volume, &[]);
    let (mount, note) = (bench.path("mnt"), bench.path("mnt/note"));
    let place = text(&mount);
    let inode = fs::metadata(&note).expect("it is there").ino();
    let sections = || {
        let said = bench.ok(&["--json", "stats", place]);
        let stats: Value = serde_json::from_str(&said).expect("JSON");
        stats["sections"].clone()
    };
    std::thread::scope(|scope| {
        let hidden = Hidden(hide(&folder));
        let reader = scope.spawn(|| fs::read(&note).expect("the store is back"));
        let found = |sections: &Value| {
            let waiters = sections["waiters"].as_array().expect("a list");
            let is_read =
                |waiter: &&Value| waiter["operation"] == "read" && waiter["waits_for"] == "store";
            waiters.iter().find(is_read).cloned()
        };
        let mut seen = json!({});
        wait_until("no read waits for the store", || {
            seen = sections();
            found(&seen).is_some()
        });
        let waiter = found(&seen).expect("it was seen");
        assert_eq!(waiter["inode"], inode, "{waiter}");
        let ms = |name: &str| waiter[name].as_u64().expect("a time");
        assert!(ms("waiting_ms") <= ms("since_ms"), "{waiter}");
        assert!(seen["waiting"]["store"]["threads"].as_u64() >= Some(1), "{seen}");
        let name = waiter["thread"].as_str().expect("a name");
        let pool = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('-');
        for part in ["busy", "waiting"] {
            assert!(seen["pools"][pool][part].as_u64() >= Some(1), "{part} of {pool} in {seen}");
        }
        let metrics = bench.ok(&["stats", "--openmetrics"]);
        let is_metric = |line: &str| {
            line.starts_with("buttress_waiting_threads{")
                && line.contains("kind=\"store\"")
                && !line.ends_with(" 0")
        };
        assert!(metrics.lines().any(is_metric), "{metrics}");
        assert!(!metrics.contains("buttress_waiters"), "{metrics}");
        let tables = bench.ok(&["stats", place]);
        let is_row = |line: &str| {
            // The border of a pane stands beside the words.
            let parts = line.split(|c: char| c.is_whitespace() || c == '│');
            let has = |word: &str| parts.clone().any(|part| part == word);
            has("read") && has("store") && has(&inode.to_string())
        };
        assert!(tables.lines().any(is_row), "{tables}");
        for columns in ["120", "80"] {
            let shown = bench.ok(&["top", "--delay", "0.1", "--columns", columns, place]);
            assert!(shown.lines().any(is_row), "{columns} columns: {shown}");
        }
        drop(hidden);
        assert!(reader.join().expect("no panic") == content);
    });
    let is_over = || sections()["waiting"]["store"]["threads"] == 0;
    wait_until("the wait is over", is_over);
    mounted.end();
}
