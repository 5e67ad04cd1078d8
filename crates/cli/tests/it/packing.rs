//! Compression and sharing from the command line.

use crate::checker::check;
use crate::{Bench, text};

/// Bytes in use of the volume of the test.
fn used(bench: &Bench) -> u64 {
    used_of(bench, "v.img")
}

fn used_of(bench: &Bench, image: &str) -> u64 {
    let shown = bench.ok(&["--json", "df", image]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    shown["used"].as_u64().unwrap_or_else(|| panic!("{shown}"))
}

/// A property is set, shown, obeyed, inherited and removed.
#[test]
fn properties() {
    let bench = crate::bench();
    bench.volume("v.img", "256M");
    bench.ok(&["mkdir", "v.img:/dir"]);
    assert_eq!(bench.ok(&["property", "get", "v.img:/dir"]), "");
    bench.ok(&["property", "set", "v.img:/dir", "compression", "zstd:5"]);
    assert_eq!(bench.ok(&["property", "get", "v.img:/dir", "compression"]), "compression=zstd:5\n");
    std::fs::write(bench.path("words"), "words ".repeat(1_000_000)).expect("a file");
    let before = used(&bench);
    bench.ok(&["cp", "words", "v.img:/dir/words"]);
    assert!(used(&bench) < before + (1 << 20), "it is compressed");
    assert_eq!(bench.ok(&["property", "get", "v.img:/dir/words"]), "compression=zstd:5\n");
    bench.ok(&["property", "set", "v.img:/dir/words", "compression", ""]);
    assert_eq!(bench.ok(&["property", "get", "v.img:/dir/words"]), "");
    bench.fails(&["property", "set", "v.img:/dir", "compression", "gzip"], 2, &["zlib, lzo, zstd"]);
    bench.fails(&["property", "set", "v.img:/dir", "colour", "red"], 2, &["colour", "compression"]);
    assert_eq!(bench.ok(&["cat", "v.img:/dir/words"]), "words ".repeat(1_000_000));
    check(&bench.path("v.img"));
}

/// A copy within a volume shares its data. Defragmented files are compressed, and no longer share
/// their data.
#[test]
fn sharing_and_defragmenting() {
    let bench = crate::bench();
    bench.volume("v.img", "256M");
    let content = "much the same ".repeat(1_000_000);
    std::fs::write(bench.path("file"), &content).expect("a file");
    bench.ok(&["cp", "file", "v.img:/a"]);
    let before = used(&bench);
    bench.ok(&["cp", "--reflink=always", "v.img:/a", "v.img:/b"]);
    assert!(used(&bench) < before + (1 << 20), "it is shared");
    bench.ok(&["cp", "--reflink=never", "v.img:/a", "v.img:/c"]);
    assert!(used(&bench) > before + (10 << 20), "it is not shared");
    let report = bench.ok(&["--json", "filesystem", "defragment", "-r", "-c", "zstd", "v.img:/"]);
    assert!(report.contains("\"files\""), "{report}");
    assert!(used(&bench) < before, "all is compressed");
    for name in ["a", "b", "c"] {
        assert!(bench.ok(&["cat", &format!("v.img:/{name}")]) == content);
    }
    bench.fails(&["filesystem", "defragment", "v.img:/"], 2, &["--recursive"]);
    check(&bench.path("v.img"));
}

/// `mkfs --rootdir` compresses the files of the folder.
#[test]
fn a_packed_rootdir() {
    let bench = crate::bench();
    std::fs::create_dir(bench.path("dir")).expect("a folder");
    std::fs::write(bench.path("dir/words"), "words ".repeat(3_000_000)).expect("a file");
    bench.ok(&["mkfs", "plain.img", "--rootdir", text(&bench.path("dir"))]);
    bench.ok(&["mkfs", "v.img", "--rootdir", text(&bench.path("dir")), "--compress", "zstd:9"]);
    let (plain, packed) = (used_of(&bench, "plain.img"), used(&bench));
    assert!(packed + (10 << 20) < plain, "{packed} bytes for words, plain {plain}");
    assert_eq!(bench.ok(&["cat", "v.img:/words"]), "words ".repeat(3_000_000));
    check(&bench.path("v.img"));
}
