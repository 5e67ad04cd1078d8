//! Caches through the program: they are made, used by mkfs, shown, drained and removed.

/// A volume made through a cache is whole only together with the cache, until the cache is flushed.
#[test]
fn a_volume_lives_in_its_cache_until_it_is_flushed() {
    let bench = crate::bench();
    bench.ok(&["mkfs", "image", "--size", "300M"]);
    bench.ok(&["cache", "format", "cache", "--size", "24M", "--origin", "image"]);
    bench.fails(&["cache", "format", "cache", "--size", "24M"], 6, &["already holds", "--force"]);
    bench.ok(&["mkfs", "image", "--force", "--label", "new", "--cache", "cache"]);
    let status: serde_json::Value =
        serde_json::from_str(&bench.ok(&["--json", "cache", "status", "cache"])).expect("JSON");
    assert!(status["dirty"].as_u64().expect("a number") > 0, "{status}");
    let dump = bench.ok(&["cache", "dump", "cache"]);
    assert!(dump.starts_with("superblock: block_size 4096"), "{dump}");
    assert!(dump.contains("committed"), "{dump}");
    let info = bench.run(&["info", "image"]);
    assert!(
        !String::from_utf8_lossy(&info.stdout).contains("new"),
        "the origin knows nothing of it"
    );
    let check = bench.ok(&["cache", "check", "cache", "--origin", "image"]);
    assert!(check.contains("no faults found"), "{check}");

    bench.ok(&["cache", "flush", "cache", "--origin", "image"]);
    assert!(bench.ok(&["info", "image"]).contains("new"));
    let status = bench.ok(&["cache", "status", "cache", "--origin", "image"]);
    assert!(status.contains("everything is in it"), "{status}");

    bench.ok(&["cache", "detach", "cache", "--origin", "image"]);
    bench.fails(&["cache", "status", "cache"], 1, &["blank", "buttress cache format"]);
}

/// A wrong origin, a wrong option and a missing cache are refused, with advice.
#[test]
fn wrong_caches_are_refused() {
    let bench = crate::bench();
    bench.ok(&["mkfs", "one", "--size", "300M"]);
    bench.ok(&["mkfs", "two", "--size", "300M"]);
    bench.ok(&["cache", "format", "cache", "--size", "1M", "--origin", "one"]);
    bench.fails(&["cache", "flush", "cache", "--origin", "two"], 6, &["another origin", "--force"]);
    let other = ["mkfs", "two", "--force", "--cache", "cache"];
    bench.fails(&other, 6, &["another origin", "--force-cache"]);
    let serve = ["nbd", "two", "--cache", "cache", "--listen", "unix:socket"];
    bench.fails(&serve, 6, &["another origin", "--force-cache"]);
    bench.ok(&["mkfs", "two", "--force", "--cache", "cache", "--force-cache"]);
    bench.fails(&["cache", "flush", "cache", "--origin", "one"], 6, &["another origin"]);
    std::fs::write(bench.path("text"), "no cache at all ".repeat(1000)).expect("a file");
    bench.fails(&["cache", "flush", "text", "--origin", "two"], 3, &["not a dm-writecache cache"]);
    let wrong = ["cache", "flush", "cache", "--origin", "one", "--options", "speed=1"];
    bench.fails(&wrong, 2, &["speed=1", "high_watermark=PERCENT"]);
    bench.fails(&["cache", "format", "new", "--size", "1M", "-b", "3000"], 2, &["3000"]);
}
