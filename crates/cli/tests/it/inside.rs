//! Volumes inside disk images: for every verb, the place inside an image can stand for the volume.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::live::Mounted;
use crate::unmounting::can_mount;
use crate::{Bench, bench};

const MIB: u64 = 1 << 20;

/// A disk with two partitions for Linux, and a file to copy into them.
fn disk() -> Bench {
    let bench = bench();
    let file = File::create(bench.path("disk.img")).expect("a disk");
    file.set_len(600 * MIB).expect("a sparse file");
    let mut table = [0; 512];
    for (slot, start, len) in [(0, 1, 1), (1, 2, 500)] {
        let entry = &mut table[446 + 16 * slot..][..16];
        entry[4] = if slot == 0 { 0xef } else { 0x83 };
        entry[8..12].copy_from_slice(&u32::to_le_bytes(start * 2048));
        entry[12..].copy_from_slice(&u32::to_le_bytes(len * 2048));
    }
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    file.write_all_at(&table, 0).expect("a table");
    std::fs::write(bench.path("file"), "hello").expect("a file");
    bench
}

/// Every verb without a mount, one after the other, on a partition that is found by its type.
#[test]
fn every_verb_takes_a_place_inside_a_disk() {
    let bench = disk();
    let at = "disk.img#type=linux";
    let inner = |path: &str| format!("{at}:{path}");
    bench.fails(&["mkfs", "disk.img"], 6, &["disk.img", "--force"]);
    bench.ok(&["mkfs", at, "--label", "inside"]);
    bench.fails(&["mkfs", at], 6, &["btrfs", "--force"]);
    bench.ok(&["mkdir", &inner("/dir")]);
    bench.ok(&["subvolume", "create", &inner("/sub")]);
    bench.ok(&["cp", "file", &inner("/dir/file")]);
    bench.ok(&["cp", &inner("/dir/file"), "out"]);
    assert_eq!(std::fs::read(bench.path("out")).expect("read"), b"hello");
    assert_eq!(bench.ok(&["cat", "disk.img#2:/dir/file"]), "hello");
    assert_eq!(bench.ok(&["cat", "disk.img@2MiB:/dir/file"]), "hello");
    bench.ok(&["mv", &inner("/dir/file"), &inner("/dir/moved")]);
    bench.ok(&["subvolume", "snapshot", "-r", &inner("/sub"), &inner("/snap")]);
    for verb in [
        &["ls", "--long", at][..],
        &["tree", at],
        &["stat", &inner("/dir/moved")],
        &["info", at],
        &["df", at],
        &["du", at],
        &["compsize", at],
        &["dump", at],
        &["subvolume", "list", at],
        &["filesystem", "label", at, "other"],
        &["device", "stats", at],
        &["scrub", "start", at],
        &["balance", "start", "--full-balance", at],
        &["fstrim", at],
        &["rm", &inner("/dir/moved")],
        &["check", "--check-data-csum", at],
    ] {
        bench.ok(verb);
    }
    bench.fails(&["ls", "disk.img#7"], 2, &["#7", "#1, #2"]);
    bench.fails(&["ls", "disk.img#nonsense"], 1, &["disk.img#nonsense"]);
    // A file with exactly this name has precedence.
    std::fs::write(bench.path("disk.img#2"), "").expect("a file");
    bench.volume("disk.img#2", "128M");
    assert!(!bench.ok(&["info", "disk.img#2"]).contains("other"));
    assert!(bench.ok(&["info", at]).contains("other"));
}

/// A mount is found by every name of its partition, and its disk is locked meanwhile.
#[test]
fn a_mounted_partition_is_found_by_its_names() {
    if !can_mount() {
        return;
    }
    let bench = disk();
    bench.ok(&["mkfs", "disk.img#2"]);
    let mounted = Mounted::of(&bench, "disk.img#2", &[]);
    std::fs::write(bench.path("mnt/file"), b"hello").expect("written");
    for name in ["disk.img#2", "disk.img#type=83", "disk.img@2M", "mnt"] {
        let stats = bench.ok(&["--json", "stats", name]);
        assert!(stats.contains("disk.img#2"), "{name}: {stats}");
    }
    bench.ok(&["subvolume", "create", "mnt/sub"]);
    bench.ok(&["check", "disk.img@2MiB"]);
    bench.fails(&["mkfs", "disk.img#1", "--mixed"], 1, &["in use"]);
    mounted.end();
    assert_eq!(bench.ok(&["cat", "disk.img#2:/file"]), "hello");
    bench.ok(&["mount", "disk.img@2MiB", "mnt"]);
    bench.ok(&["umount", "disk.img#2"]);
    bench.ok(&["check", "--check-data-csum", "disk.img#2"]);
}
