//! Files into a volume and out of it again.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use crate::checker::check;
use crate::text;

/// A folder with one object of each kind that needs no privileges.
fn zoo(at: &Path) {
    std::fs::create_dir_all(at.join("dir/deep/deeper")).expect("dirs");
    std::fs::write(at.join("empty"), b"").expect("file");
    std::fs::write(at.join("small"), b"a few bytes").expect("file");
    let large: Vec<u8> =
        (0..3_000_001_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(at.join("dir/large"), large).expect("file");
    let sparse = std::fs::File::create(at.join("sparse")).expect("file");
    sparse.write_all_at(b"middle", 5 << 20).expect("write");
    sparse.set_len(40 << 20).expect("length");
    std::fs::hard_link(at.join("small"), at.join("dir/deep/link")).expect("link");
    std::os::unix::fs::symlink("../nowhere/at all", at.join("dir/symlink")).expect("symlink");
    std::os::unix::fs::symlink("/etc/passwd", at.join("absolute")).expect("symlink");
    let fifo = Command::new("mkfifo").arg(at.join("fifo")).status().expect("mkfifo");
    assert!(fifo.success());
    std::fs::write(at.join("dir/deep/näme with \u{1f980} and spaces"), b"x").expect("file");
    for i in 0..300 {
        std::fs::write(at.join(format!("dir/deep/deeper/f{i:04}")), format!("{i}\n"))
            .expect("file");
    }
    let mode = |path: &str, mode| {
        std::fs::set_permissions(at.join(path), PermissionsExt::from_mode(mode)).expect("chmod");
    };
    mode("small", 0o4751);
    mode("dir/deep", 0o1770);
    mode("empty", 0o400);
    let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_001, 123_456_789);
    for path in ["small", "dir", "dir/deep/deeper"] {
        let file = std::fs::File::open(at.join(path)).expect("open");
        file.set_times(std::fs::FileTimes::new().set_modified(old).set_accessed(old))
            .expect("times");
    }
}

/// All properties of a tree that must survive, by path.
fn facts(root: &Path) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut inodes: BTreeMap<u64, String> = BTreeMap::new();
    let mut stack = vec![root.to_owned()];
    while let Some(path) = stack.pop() {
        let metadata = path.symlink_metadata().expect("metadata");
        let name = text(path.strip_prefix(root).expect("below the root")).to_owned();
        let kind = metadata.file_type();
        let content = if kind.is_file() {
            format!("{:?}", crc(&std::fs::read(&path).expect("read")))
        } else if kind.is_symlink() {
            format!("{:?}", std::fs::read_link(&path).expect("link"))
        } else {
            String::new()
        };
        let time = (metadata.mtime(), metadata.mtime_nsec());
        let first = inodes.entry(metadata.ino()).or_insert_with(|| name.clone()).clone();
        let len = if kind.is_dir() { 0 } else { metadata.len() };
        let links = if kind.is_dir() { 1 } else { metadata.nlink() };
        let fact = format!(
            "{:o} {}:{} {len} {time:?} links {links} first {first} {content}",
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
        );
        if kind.is_dir() {
            let mut below: Vec<_> =
                std::fs::read_dir(&path).expect("list").map(|e| e.expect("entry").path()).collect();
            below.sort();
            below.reverse();
            stack.extend(below);
        }
        facts.insert(name, fact);
    }
    // The `first` name of a hard link is the name that the walk meets first. The walk is sorted, so
    // equal trees have equal `first` names.
    facts
}

fn crc(bytes: &[u8]) -> (usize, u64) {
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    (bytes.len(), sum)
}

#[track_caller]
fn assert_same(left: &Path, right: &Path) {
    let (left, right) = (facts(left), facts(right));
    for (name, fact) in &left {
        assert_eq!(Some(fact), right.get(name), "{name}");
    }
    assert_eq!(left.len(), right.len());
}

/// A volume filled from a folder gives the same folder back, holes included.
#[test]
fn rootdir_and_back() {
    let bench = crate::bench();
    zoo(&bench.path("zoo"));
    bench.ok(&["mkfs", "x.img", "--rootdir", "zoo"]);
    check(&bench.path("x.img"));
    std::fs::create_dir(bench.path("out")).expect("dir");
    bench.ok(&["cp", "--archive", "x.img:/", "out"]);
    // The attributes of the root directory are on the volume's root, not on the folder that it was
    // copied to.
    let without_root = |name: &str| {
        let mut facts = facts(&bench.path(name));
        facts.remove("");
        facts
    };
    assert_eq!(without_root("zoo"), without_root("out"));
    let sparse = bench.path("out/sparse").metadata().expect("metadata");
    assert_eq!(sparse.len(), 40 << 20);
    assert!(sparse.blocks() * 512 < 1 << 20, "holes stay holes");
    let links = |name: &str| bench.path(name).metadata().expect("metadata").ino();
    assert_eq!(links("out/small"), links("out/dir/deep/link"));
}

/// `cp --archive` in both directions, into folders with content.
#[test]
fn copies_in_and_out() {
    let bench = crate::bench();
    zoo(&bench.path("zoo"));
    bench.volume("x.img", "512M");
    bench.ok(&["mkdir", "--parents", "x.img:/a/b/c"]);
    bench.ok(&["cp", "--archive", "zoo", "x.img:/a/b/c"]);
    bench.ok(&["cp", "--archive", "zoo", "x.img:/a/second"]);
    bench.ok(&["cp", "--archive", "x.img:/a/second", "x.img:/third"]);
    check(&bench.path("x.img"));
    bench.ok(&["cp", "--archive", "x.img:/a/b/c/zoo", "first"]);
    bench.ok(&["cp", "--archive", "x.img:/a/second", "second"]);
    assert_same(&bench.path("zoo"), &bench.path("first"));
    assert_same(&bench.path("zoo"), &bench.path("second"));
    bench.fails(&["cp", "zoo", "x.img:/fourth"], 1, &["zoo", "--recursive"]);

    // A second copy over the first has the same result, whatever was changed in between.
    std::fs::write(bench.path("first/dir/large"), b"changed").expect("file");
    std::fs::remove_file(bench.path("first/empty")).expect("remove");
    std::os::unix::fs::symlink("victim", bench.path("first/empty")).expect("symlink");
    bench.ok(&["cp", "--archive", "zoo/.", "x.img:/a/second"]);
    assert!(!bench.ok(&["ls", "x.img:/a/second"]).contains("zoo"));
    bench.fails(&["cp", "--archive", "x.img:/a", "x.img:/a/b"], 1, &["into itself"]);
    let over = |source: &str| bench.ok(&["cp", "--archive", source, "first"]);
    for name in ["dir", "empty", "small", "sparse", "absolute", "fifo"] {
        over(&format!("x.img:/a/second/{name}"));
    }
    assert_same(&bench.path("zoo/dir/deep/deeper"), &bench.path("first/dir/deep/deeper"));
    assert_eq!(crc(&std::fs::read(bench.path("first/dir/large")).expect("read")).0, 3_000_001);
    assert!(bench.path("first/empty").symlink_metadata().expect("file").is_file());
    assert!(!bench.path("first/victim").exists(), "nothing is written through a link");
    check(&bench.path("x.img"));

    let listed = bench.ok(&["ls", "x.img:/third/dir/deep/deeper"]);
    assert_eq!(listed.lines().count(), 300);
    assert_eq!(bench.ok(&["cat", "x.img:/third/small"]), "a few bytes");
}

/// The small verbs, and their results.
#[test]
fn verbs() {
    let bench = crate::bench();
    bench.volume("x.img", "256M");
    std::fs::write(bench.path("f"), b"content").expect("file");
    bench.ok(&["mkdir", "x.img:/d"]);
    bench.ok(&["cp", "f", "x.img:/d"]);
    bench.ok(&["ln", "x.img:/d/f", "x.img:/hard"]);
    bench.ok(&["ln", "--symbolic", "d/f", "x.img:/soft"]);
    bench.ok(&["mv", "x.img:/d/f", "x.img:/d/g"]);
    bench.ok(&["mv", "x.img:/hard", "x.img:/d"]);
    assert_eq!(bench.ok(&["ls", "x.img:/"]).lines().collect::<Vec<_>>(), ["d", "soft"]);
    assert_eq!(bench.ok(&["ls", "x.img:/d"]).lines().collect::<Vec<_>>(), ["g", "hard"]);
    assert_eq!(bench.ok(&["cat", "x.img:/d/hard"]), "content");
    let stat = bench.ok(&["stat", "x.img:/d/g"]);
    assert!(stat.contains("Links: 2") && stat.contains("regular file"), "{stat}");
    let long = bench.ok(&["ls", "--long", "x.img:/"]);
    assert!(long.contains("soft -> d/f") && long.starts_with("drwxr-xr-x"), "{long}");
    let tree = bench.ok(&["tree", "x.img"]);
    assert!(tree.contains("└── soft -> d/f") && tree.contains("│   ├── g"), "{tree}");
    assert!(bench.ok(&["df", "x.img"]).contains("256.00MiB"));
    bench.fails(&["rm", "x.img:/d"], 1, &["--recursive"]);
    bench.fails(&["mkdir", "x.img:/d"], 1, &["exists"]);
    bench.ok(&["rm", "--recursive", "x.img:/d"]);
    bench.ok(&["rm", "x.img:/soft"]);
    bench.ok(&["rm", "--force", "x.img:/soft"]);
    assert_eq!(bench.ok(&["ls", "x.img:/"]), "");
    check(&bench.path("x.img"));
}

/// If a folder is copied into an image that lies in it, the image is left out. Otherwise the image
/// would grow without end.
#[test]
fn a_volume_is_not_copied_into_itself() {
    let bench = crate::bench();
    std::fs::create_dir(bench.path("d")).expect("dir");
    std::fs::write(bench.path("d/f"), b"x").expect("file");
    bench.ok(&["mkfs", "d/x.img", "--rootdir", "d"]);
    bench.ok(&["cp", "--recursive", "d", "d/x.img:/"]);
    assert_eq!(bench.ok(&["ls", "d/x.img:/"]).lines().collect::<Vec<_>>(), ["d", "f"]);
    assert_eq!(bench.ok(&["ls", "d/x.img:/d"]), "f\n");
}
