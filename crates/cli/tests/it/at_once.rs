//! Verbs on a mount right after a write. They see all acknowledged writes of programs, even if
//! neither a program nor the kernel has synced them.

use std::path::Path;

use crate::checker::check;
use crate::live::{Mounted, has};
use crate::{bench, text};

const LEN: usize = 4 << 20;

/// Writes a file with unique content, and leaves it in the kernel's cache.
fn write(path: &Path, seed: u8) {
    let byte = |index: usize| (index / 4096 + index * 31) as u8 ^ seed;
    std::fs::write(path, (0..LEN).map(byte).collect::<Vec<_>>()).expect("written");
}

/// The number with this name in a document.
fn number(document: &serde_json::Value, name: &str) -> u64 {
    document[name].as_u64().unwrap_or_else(|| panic!("no {name} in {document}"))
}

/// Each verb that reads or moves the whole volume begins with a commit of all written data.
#[test]
fn verbs_see_what_was_just_written() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) {
        return;
    }
    let bench = bench();
    bench.volume("image", "600M");
    let mounted = Mounted::new(&bench, &["-o", "commit=3000"]);
    let state = bench.path("");
    let json = |args: &[&str]| -> serde_json::Value {
        serde_json::from_str(&bench.ok(&[&["--json"], args].concat())).expect("JSON")
    };
    let scrubbed = |place: &str| {
        let told = json(&["scrub", "start", "--state", text(&state), place]);
        number(&told, "data_bytes_scrubbed")
    };
    for place in ["image", "mnt"] {
        let mut files = 0;
        let mut new = || {
            files += 1;
            write(&bench.path(&format!("mnt/{place}-{files}")), files);
        };

        let before = number(&json(&["df", place]), "used");
        new();
        let after = number(&json(&["df", place]), "used");
        assert!(after >= before + LEN as u64, "df {place}: {before}, then {after}");

        let before = scrubbed(place);
        new();
        let after = scrubbed(place);
        assert!(after >= before + LEN as u64, "scrub {place}: {before}, then {after}");

        new();
        let moved = json(&["balance", "start", "-d", "all", place]);
        assert!(number(&moved, "moved") >= 3 * LEN as u64, "balance {place}: {moved}");

        new();
        json(&["fstrim", place]);
        new();
        json(&["filesystem", "resize", "500M", place]);
        json(&["filesystem", "resize", "max", place]);
        new();
        bench.ok(&["subvolume", "snapshot", "mnt", &format!("mnt/snapshot of {place}")]);
        let copy = bench.path(&format!("mnt/snapshot of {place}/{place}-{files}"));
        assert_eq!(std::fs::metadata(copy).expect("it is there").len(), LEN as u64);
    }
    // The next verbs ignore the lock of the mount, and read the last commit.
    let bytes = || number(&json(&["info", "image"]), "bytes_used");
    let before = bytes();
    write(&bench.path("mnt/for info"), 100);
    assert!(bytes() >= before + LEN as u64, "info");
    write(&bench.path("mnt/for dump"), 101);
    assert!(bench.ok(&["dump", "image"]).contains("for dump"), "dump");
    mounted.end();
    check(&bench.path("image"));
}
