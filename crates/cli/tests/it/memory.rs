//! The budget of memory of a mount.

use serde_json::Value;

use crate::live::{Mounted, has};

/// A budget bounds each part of a mount's memory, and `stats` shows the parts. A mount without the
/// option has a bounded budget, too.
#[test]
fn memory_bounds_what_a_mount_keeps() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.ok(&["mkfs", "image", "--size", "300M"]);
    let document = || {
        let text = bench.ok(&["--json", "stats", "mnt"]);
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    let figures =
        || document()["sections"]["memory"].as_object().expect("figures of memory").clone();
    let figure = |name: &str| {
        let all = figures();
        let found = all.get(name).and_then(Value::as_u64);
        found.unwrap_or_else(|| panic!("no {name} in {all:?}"))
    };
    let mounted = Mounted::new(&bench, &["-o", "memory=8M"]);
    for (part, bytes) in [
        ("nodes", 2 << 20),
        ("dirty", 2 << 20),
        ("changes", 2 << 20),
        ("known_inodes", 1 << 20),
        ("requests", 512 << 10),
    ] {
        assert_eq!(figure(&format!("{part}_max_bytes")), bytes, "{part}");
    }
    // The names are so long that their nodes exceed the budget of the node cache.
    for directory in 0..40 {
        std::fs::create_dir(bench.path(&format!("mnt/d{directory}"))).expect("a directory");
        for number in 0..100 {
            let name = format!("mnt/d{directory}/{number:0>200}");
            std::fs::write(bench.path(&name), b"content").expect("a file");
        }
        assert!(figure("changes_bytes") <= 3 << 20, "a commit comes at the limit");
    }
    assert!(figure("known_inodes") >= 1000, "the kernel was told of files");
    assert!(figure("inode_handles") > 0 && figure("inode_handles") <= figure("known_inodes"));
    assert!(figure("known_inodes_bytes") + figure("inode_handles_bytes") <= 1 << 20);
    assert!(figure("nodes_bytes") <= 2 << 20);
    let all = figures();
    let parts = all.iter().filter(|(name, _)| {
        name.ends_with("_bytes") && !name.ends_with("_max_bytes") && *name != "resident_bytes"
    });
    let sum: u64 = parts.filter_map(|(_, bytes)| bytes.as_u64()).sum();
    let resident = all["resident_bytes"].as_u64().expect("a number");
    assert!(resident > 1 << 20);
    assert_eq!(sum, resident, "all memory is in some part: {all:?}");
    let status = format!("/proc/{}/status", document()["pid"]);
    let status = std::fs::read_to_string(status).expect("the server's status");
    let huge = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
    assert!(huge.is_none_or(|enabled| enabled.trim() == "0"), "M3: {huge:?}");
    mounted.end();

    let mounted = Mounted::new(&bench, &["--memory", "16M", "-o", "ro"]);
    assert_eq!(figure("nodes_max_bytes"), 4 << 20);
    mounted.end();
    let mounted = Mounted::new(&bench, &["-o", "ro"]);
    assert!(figure("nodes_max_bytes") <= 256 << 20);
    mounted.end();
    bench.ok(&["check", "image", "--memory", "8M"]);
    bench.ok(&["ls", "image:/d1", "--memory", "8M"]);
}

/// The verbs that open a volume in a way of their own take a budget, too.
#[test]
fn memory_bounds_the_rescue_of_a_volume() {
    let bench = crate::bench();
    bench.ok(&["mkfs", "image", "--size", "300M"]);
    std::fs::write(bench.path("one"), b"content").expect("a file");
    bench.ok(&["cp", "one", "image:/one"]);
    let least = ["--memory", "8M"];
    bench.ok(&[&["restore", "image", "out"][..], &least].concat());
    assert_eq!(std::fs::read(bench.path("out/one")).expect("restored"), b"content");
    let repairs: [&[&str]; 6] = [
        &["super-recover"],
        &["zero-log"],
        &["fix-device-size"],
        &["clear-space-cache", "v2"],
        &["chunk-recover"],
        &["clear-uuid-tree"],
    ];
    for repair in repairs {
        bench.ok(&[&["rescue"], repair, &["image", "--yes"], &least].concat());
    }
    bench.ok(&["check", "image"]);
}
