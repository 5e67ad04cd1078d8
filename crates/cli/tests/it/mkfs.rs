//! What `mkfs` makes, and what it refuses to.

use crate::checker::check;
use crate::text;

/// Every combination that is offered is a volume that btrfs-progs finds nothing wrong with.
#[test]
fn every_kind_of_volume_is_clean() {
    let bench = crate::bench();
    let sizes = ["64M", "128M", "780M", "4G", "1T"];
    let mut kinds: Vec<Vec<&str>> = sizes.iter().map(|size| vec!["--size", size]).collect();
    for nodesize in ["4k", "8k", "32k", "64k"] {
        kinds.push(vec!["--size", "1G", "--nodesize", nodesize]);
    }
    for csum in ["xxhash", "sha256", "blake2"] {
        kinds.push(vec!["--size", "1G", "--csum", csum]);
    }
    for features in ["^block-group-tree", "^skinny-metadata", "^no-holes,^block-group-tree"] {
        kinds.push(vec!["--size", "1G", "--features", features]);
    }
    kinds.push(vec!["--size", "1G", "--metadata", "single"]);
    for kind in kinds {
        let image = bench.path("x.img");
        let _ = std::fs::remove_file(&image);
        let mut args = vec!["mkfs", "x.img"];
        args.extend(&kind);
        bench.ok(&args);
        check(&image);
    }
}

/// What is there is named, and kept, unless `--force` is given.
#[test]
fn mkfs_keeps_a_volume_without_force() {
    let bench = crate::bench();
    bench.volume("x.img", "128M");
    let before = std::fs::read(bench.path("x.img")).expect("image");
    bench.fails(&["mkfs", "x.img"], 6, &["x.img", "btrfs", "--force"]);
    assert!(before == std::fs::read(bench.path("x.img")).expect("image"), "nothing was written");
    bench.ok(&["mkfs", "x.img", "--force", "--label", "again"]);
    assert!(bench.ok(&["info", "x.img"]).contains("again"));

    // A partition table: the two bytes at the end of the first sector and one entry.
    let mut disk = vec![0_u8; 128 << 20];
    disk[446 + 4] = 0x83;
    disk[446 + 8] = 1;
    disk[446 + 12] = 100;
    disk[510] = 0x55;
    disk[511] = 0xaa;
    std::fs::write(bench.path("disk"), &disk).expect("disk");
    bench.fails(&["mkfs", "disk"], 6, &["disk", "--force"]);
}

/// Wrong command lines say what would be right, and make no file.
#[test]
fn wrong_options_make_no_file() {
    let bench = crate::bench();
    bench.fails(&["mkfs", "x.img"], 2, &["--size"]);
    bench.fails(&["mkfs", "x.img", "--size", "1M"], 1, &["too few"]);
    bench.fails(
        &["mkfs", "x.img", "--size", "1G", "--features", "magic"],
        2,
        &["magic", "no-holes"],
    );
    bench.fails(&["mkfs", "x.img", "--size", "1G", "--data", "raid10"], 1, &["devices"]);
    let label = "x".repeat(256);
    bench.fails(&["mkfs", "x.img", "--size", "1G", "--label", &label], 1, &["label"]);
    assert!(!bench.path("x.img").exists());
}

/// The image is sparse: a terabyte takes next to nothing.
#[test]
fn images_are_sparse() {
    use std::os::unix::fs::MetadataExt;
    let bench = crate::bench();
    bench.volume("x.img", "1T");
    let metadata = bench.path("x.img").metadata().expect("image");
    assert_eq!(metadata.len(), 1 << 40);
    assert!(metadata.blocks() * 512 < 16 << 20, "{} blocks", metadata.blocks());
    assert!(text(&bench.path("x.img")).ends_with("x.img"));
}

/// `--json` is JSON, and says what was made.
#[test]
fn json_says_what_was_made() {
    let bench = crate::bench();
    let made = bench.ok(&["--json", "mkfs", "x.img", "--size", "1G", "--label", "l"]);
    let made: serde_json::Value = serde_json::from_str(&made).expect("json");
    let info = bench.ok(&["--json", "info", "x.img"]);
    let info: serde_json::Value = serde_json::from_str(&info).expect("json");
    assert_eq!(made["uuid"], info["uuid"]);
    assert_eq!(info["label"], "l");
    assert_eq!(info["total_bytes"], 1_u64 << 30);
    assert!(bench.ok(&["mkfs", "--features", "list-all", "y"]).contains("block-group-tree"));
}
