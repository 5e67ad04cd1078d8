//! The budget of memory of a mount.

use serde_json::Value;

use crate::live::{Mounted, has};

/// A budget bounds what a mount keeps, part by part, and `stats` shows the parts. A mount that is
/// given none has a bounded one, too.
#[test]
fn memory_bounds_what_a_mount_keeps() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.ok(&["mkfs", "image", "--size", "300M"]);
    let figure = |name: &str| {
        let text = bench.ok(&["--json", "stats", "mnt"]);
        let document: Value = serde_json::from_str(&text).expect("JSON");
        let found = document["sections"]["memory"][name].as_u64();
        found.unwrap_or_else(|| panic!("no {name} in {document}"))
    };
    let mounted = Mounted::new(&bench, &["-o", "memory=8M"]);
    for (part, bytes) in
        [("nodes", 2 << 20), ("dirty", 2 << 20), ("changes", 2 << 20), ("known_inodes", 2 << 20)]
    {
        assert_eq!(figure(&format!("{part}_max_bytes")), bytes, "{part}");
    }
    // Names so long that their nodes are more than the cache may have.
    for directory in 0..40 {
        std::fs::create_dir(bench.path(&format!("mnt/d{directory}"))).expect("a directory");
        for number in 0..100 {
            let name = format!("mnt/d{directory}/{number:0>200}");
            std::fs::write(bench.path(&name), b"content").expect("a file");
        }
        assert!(figure("changes_bytes") <= 3 << 20, "a commit comes at the limit");
    }
    assert!(figure("known_inodes") >= 1000, "the kernel was told of files");
    assert!(figure("known_inodes_bytes") <= 2 << 20);
    assert!(figure("nodes_bytes") <= 2 << 20);
    assert!(figure("resident_bytes") > 1 << 20);
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
