//! Files that verbs write their results to.

use std::fs;

use crate::live::{Mounted, has};

/// A result replaces an older result. It replaces no volume, whether the volume is mounted or not.
#[test]
fn results_overwrite_no_volume() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    for name in ["image", "other", "other.svg"] {
        bench.volume(name, "200M");
    }
    bench.ok(&["subvolume", "create", "image:/sub"]);
    bench.ok(&["subvolume", "snapshot", "-r", "image:/sub", "image:/snapshot"]);
    let lines = |to: &str| {
        [
            vec!["map", "image", "--output", "other.svg"],
            vec!["top", "--delay", "0.1", "--output", to],
            vec!["send", "image:/snapshot", "-f", to],
        ]
        .map(|line| line.into_iter().map(str::to_owned).collect::<Vec<_>>())
    };
    let before = fs::read(bench.path("other.svg")).expect("a volume");
    for line in lines("other.svg") {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        bench.fails(&line, 6, &["other.svg", "holds btrfs"]);
    }
    assert!(fs::read(bench.path("other.svg")).expect("a volume") == before);
    let mounted = Mounted::of(&bench, "other", &[]);
    for line in &lines("other")[1..] {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        bench.fails(&line, 1, &["other", "in use"]);
    }
    mounted.end();
    bench.ok(&["check", "other"]);
    for content in [&b""[..], b"x", &[b'x'; 600]] {
        fs::write(bench.path("short"), content).expect("a short file");
        bench.ok(&["send", "image:/snapshot", "-f", "short"]);
    }
    for _ in 0..2 {
        bench.ok(&["map", "image", "--output", "new.svg"]);
        bench.ok(&["top", "--delay", "0.1", "--output", "new.txt"]);
        bench.ok(&["send", "image:/snapshot", "-f", "new.stream"]);
    }
    bench.ok(&["send", "image:/snapshot", "-f", "/dev/null"]);
    let written = fs::read(bench.path("new.svg")).expect("a drawing");
    assert!(written.ends_with(b"</svg>\n") || written.ends_with(b"</svg>"));
}
