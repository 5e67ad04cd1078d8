//! The whole screen of mounts and servers, printed and drawn.

use std::fs;

use serde_json::Value;

use crate::live::{Mounted, has};
use crate::text;

/// A mount beside a program that writes: all panes have figures, on a wide and on a narrow screen,
/// and a drawing is one file of SVG.
#[test]
fn the_screen_shows_a_mount() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.volume("image", "300M");
    let mounted = Mounted::new(&bench, &[]);
    let (mount, drawing) = (bench.path("mnt"), bench.path("top.svg"));
    for number in 0..20 {
        fs::write(mount.join(format!("file-{number}")), vec![number; 100_000]).expect("written");
    }
    let place = text(&mount);
    let wide = bench.ok(&["top", "--delay", "0.2", place]);
    for pane in ["Requests", "Waits for space", "Space", "Memory", "Threads", "Commits", "create"] {
        assert!(wide.contains(pane), "no {pane} in {wide}");
    }
    assert!(wide.contains(place), "{wide}");
    let (_, pools) = wide.split_once("busy: ").expect("the pools");
    assert!(pools.contains("fuse") && pools.contains("flush"), "{wide}");
    // A cold volume reads its roots from the device, and then finds them in memory.
    let stats: Value = serde_json::from_str(&bench.ok(&["--json", "stats", place])).expect("JSON");
    let memory = &stats["sections"]["memory"];
    for name in ["node_hits", "node_misses"] {
        assert!(memory[name].as_u64().is_some_and(|count| count > 0), "{name} in {memory}");
    }
    let (_, hits) = wide.split_once("node cache: ").expect("the line of hits");
    assert!(hits.split('\n').next().is_some_and(|line| line.contains(" % of all")), "{wide}");
    let narrow = bench.ok(&["top", "--delay", "0.1", "--columns", "20", "--lines", "8", place]);
    assert!(narrow.lines().count() <= 8, "{narrow}");
    bench.ok(&["top", "--delay", "0.1", "--output", text(&drawing), place]);
    let drawn = fs::read_to_string(&drawing).expect("it was drawn");
    assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"), "{drawn}");
    mounted.end();
}

/// Where the mount has a cache of data, the screen shows how often that had what was read.
#[test]
fn the_screen_shows_hits_of_the_page_cache() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.volume("image", "300M");
    fs::write(bench.path("file"), vec![5; 1 << 20]).expect("written");
    bench.ok(&["cp", "file", "image:/"]);
    let mounted = Mounted::new(&bench, &["-o", "page_cache=32M"]);
    let mount = bench.path("mnt");
    let place = text(&mount);
    assert_eq!(fs::read(mount.join("file")).expect("a read").len(), 1 << 20);
    let stats: Value = serde_json::from_str(&bench.ok(&["--json", "stats", place])).expect("JSON");
    let memory = &stats["sections"]["memory"];
    assert_eq!(memory["pages_max_bytes"], 32 << 20);
    assert!(memory["page_misses"].as_u64().is_some_and(|count| count > 0), "{memory}");
    assert!(memory["page_hits"].is_u64(), "{memory}");
    let shown = bench.ok(&["top", "--delay", "0.1", place]);
    let (_, line) = shown.split_once("page cache: ").expect("the line of hits");
    assert!(line.split('\n').next().is_some_and(|line| line.contains(" % of all")), "{shown}");
    mounted.end();
}

/// With `--json`, the error names `stats` instead. A wrong delay or place is an error before the
/// screen changes.
#[test]
fn top_refuses_what_it_cannot_do() {
    let bench = crate::bench();
    let refused = |args: &[&str], words: &str| {
        let output = bench.run(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(words), "{args:?}: {said}");
    };
    refused(&["--json", "top"], "stats --watch");
    refused(&["top", "--delay", "0"], "0.1 to 3600");
    refused(&["top", text(&bench.path("none"))], "none");
}
