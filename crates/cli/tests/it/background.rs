//! Work that goes on after its program has ended.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bench;
use crate::checker::check;
use crate::live::{Mounted, has};

/// How long work in the background may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A scrub and a balance go on in the background, and their status reports the end. If the work
/// fails early, the program that began the work reports the failure.
#[test]
fn work_goes_on_in_the_background() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) {
        return;
    }
    let bench = bench();
    bench.volume("image", "600M");
    let mounted = Mounted::new(&bench, &[]);
    std::fs::write(bench.path("mnt/file"), vec![7; 8 << 20]).expect("written");
    let json = |args: &[&str]| -> Value {
        serde_json::from_str(&bench.ok(&[&["--json"], args].concat())).expect("JSON")
    };
    let wait = |args: &[&str], end: &str| {
        let begun = Instant::now();
        while json(args)["status"] != end {
            assert!(begun.elapsed() < TIMEOUT, "{args:?}: {}", json(args));
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let state = bench.path("state");
    let state = crate::text(&state);
    let begun = json(&["scrub", "start", "--background", "--state", state, "mnt"]);
    assert!(begun["pid"].as_u64().is_some(), "{begun}");
    wait(&["scrub", "status", "--state", state, "mnt"], "finished");
    let begun = json(&["balance", "start", "--background", "-d", "all", "mnt"]);
    assert!(begun["pid"].as_u64().is_some(), "{begun}");
    wait(&["balance", "status", "mnt"], "none");
    bench.fails(&["scrub", "start", "--background", "nowhere"], 1, &["nowhere"]);
    bench.fails(&["scrub", "cancel", "mnt"], 2, &["not running"]);
    let no_balance = |place: &str| {
        for verb in ["pause", "cancel", "resume"] {
            bench.fails(&["balance", verb, place], 2, &["no balance", place]);
        }
    };
    no_balance("mnt");
    mounted.end();
    no_balance("image");
    check(&bench.path("image"));
}
