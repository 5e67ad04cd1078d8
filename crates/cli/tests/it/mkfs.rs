//! Volumes that `mkfs` makes, and its refusals.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::checker::check;
use crate::live::{has, run};
use crate::text;

/// With every combination of options, btrfs-progs finds no fault in the new volume.
#[test]
fn every_kind_of_volume_is_clean() {
    let bench = crate::bench();
    let sizes = ["64M", "128M", "780M", "4G", "1T"];
    let mut kinds: Vec<Vec<&str>> = sizes.iter().map(|size| vec!["--size", size]).collect();
    for nodesize in ["4k", "8k", "32k", "64k"] {
        kinds.push(vec!["--size", "1G", "--nodesize", nodesize]);
    }
    for sectorsize in ["8k", "16k", "32k", "64k"] {
        kinds.push(vec!["--size", "1G", "--sectorsize", sectorsize]);
        kinds.push(vec!["--size", "1G", "--sectorsize", sectorsize, "--mixed"]);
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

/// If a file has content already, `mkfs` names and keeps it unless `--force` is given.
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

/// For a wrong command line, the message names the right form, and no file is made.
#[test]
fn wrong_options_make_no_file() {
    let bench = crate::bench();
    bench.fails(&["mkfs", "x.img"], 2, &["--size"]);
    bench.fails(&["mkfs", "x.img", "--size", "1M"], 1, &["too few"]);
    let small_nodes = ["--size", "1G", "--sectorsize", "64k", "--nodesize", "16k"];
    let args = [&["mkfs", "x.img"][..], &small_nodes].concat();
    bench.fails(&args, 1, &["smaller than sectors"]);
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

/// With `--json`, the output is a JSON document that describes the new volume.
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

/// If `mkfs` is refused, it changes no device and makes no file longer. An option that names
/// something that the source does not have is refused in the same way. A file that did not exist
/// does not exist afterwards.
#[test]
fn a_refused_mkfs_changes_nothing() {
    let bench = crate::bench();
    std::fs::create_dir_all(bench.path("tree/var/db")).expect("a folder");
    std::fs::write(bench.path("tree/file"), b"x").expect("a file");
    std::os::unix::fs::symlink("var", bench.path("tree/link")).expect("a link");
    let tar = std::process::Command::new("tar")
        .args(["-C", "tree", "-cf", "tree.tar", "."])
        .current_dir(bench.folder())
        .status();
    assert!(tar.expect("tar runs").success());
    bench.volume("old.img", "256M");
    let old = std::fs::read(bench.path("old.img")).expect("a file");
    let sources = [["--rootdir", "tree"], ["--from-tar", "tree.tar"]];
    let words = [
        ["--subvol", "none"],
        ["--subvol", "file"],
        ["--subvol", "link/db"],
        ["--inode-flags", "nodatacow:var/none"],
        ["--inode-flags", "nodatasum:link"],
    ];
    for (source, word) in sources.iter().flat_map(|source| words.map(|word| (source, word))) {
        for image in ["old.img", "new.img"] {
            let all = [&["mkfs", "--force", image], &source[..], &word[..]].concat();
            bench.fails(&all, 2, &["nothing there"]);
        }
    }
    let twice = ["--subvol", "default:var", "--subvol", "default:var/db"];
    let all = [&["mkfs", "--force", "old.img", "--rootdir", "tree"], &twice[..]].concat();
    bench.fails(&all, 2, &["only one"]);
    bench.fails(&["mkfs", "old.img", "--size", "512M"], 6, &["--force"]);
    bench.fails(&["mkfs", "old.img@1MiB"], 6, &["btrfs", "--force"]);
    assert!(std::fs::read(bench.path("old.img")).expect("a file") == old, "it was changed");
    assert!(!bench.path("new.img").exists());
    let good = ["--subvol", "var/db", "--inode-flags", "nodatacow:var", "--rootdir", "tree"];
    bench.ok(&[&["mkfs", "--force", "old.img"], &good[..]].concat());
    bench.ok(&["check", "old.img"]);
}

/// A folder with flags gives them to all objects below it, even to subvolumes. A hard link of an
/// archive across a subvolume becomes a copy. More links from the same subvolume are links to the
/// copy.
#[test]
fn flags_and_links_cross_subvolumes() {
    let bench = crate::bench();
    std::fs::create_dir_all(bench.path("tree/var/db")).expect("a folder");
    let content = vec![b'x'; 9000];
    std::fs::write(bench.path("tree/a"), &content).expect("a file");
    for link in ["var/db/b", "var/db/c", "var/d"] {
        let link = bench.path("tree").join(link);
        std::fs::hard_link(bench.path("tree/a"), link).expect("a link");
    }
    let tar = std::process::Command::new("tar")
        .args(["-C", "tree", "-cf", "tree.tar", "./a", "./var"])
        .current_dir(bench.folder())
        .status();
    assert!(tar.expect("tar runs").success());
    for source in [["--rootdir", "tree"], ["--from-tar", "tree.tar"]] {
        let words = ["--subvol", "var/db", "--inode-flags", "nodatacow:var"];
        let all =
            [&["mkfs", "--force", "image", "--size", "256M"], &source[..], &words[..]].concat();
        bench.ok(&all);
        bench.ok(&["check", "--check-data-csum", "image"]);
        for name in ["a", "var/db/b", "var/db/c", "var/d"] {
            assert_eq!(bench.ok(&["cat", &format!("image:/{name}")]).as_bytes(), content, "{name}");
        }
        let tree = bench.ok(&["dump", "image"]);
        let roots = tree.lines().filter(|line| line.contains("NODATACOW")).count();
        assert!(roots >= 2, "the folder, and the subvolume below it: {roots}");
        let links =
            |count: usize| tree.lines().filter(|l| l.contains(&format!("links {count} "))).count();
        assert!(links(2) >= 2, "two names in each subvolume");
    }
}

/// Bytes in use on the file system at `top`, after all of it was written.
fn used(top: &Path) -> u64 {
    run("sync", &["--file-system", text(top)]);
    let all = rustix::fs::statvfs(top).expect("a mount");
    (all.f_blocks - all.f_bfree) * all.f_frsize
}

/// With `--reflink` an image shares the data of the files on the same file system. Linux reads the
/// files in the image, also after their sources have changed. An image on another file system is
/// refused, and the message names the image.
#[test]
fn an_image_shares_the_data_of_its_files() {
    let needed = ["mkfs.btrfs", "mount", "umount", "losetup", "diff", "cp"];
    if !has(&needed, None) || !crate::live::is_root() {
        return;
    }
    let bench = crate::bench();
    let (host, top) = (bench.path("host"), bench.path("top"));
    std::fs::File::create(&host).expect("a file").set_len(1 << 30).expect("a size");
    run("mkfs.btrfs", &["-q", text(&host)]);
    std::fs::create_dir(&top).expect("a folder");
    run("mount", &["-o", "loop", text(&host), text(&top)]);
    let source = top.join("source");
    std::fs::create_dir_all(source.join("dir")).expect("folders");
    let random = |len: usize| {
        let mut rng = buttress_base::Rng::new(len as u64);
        (0..len).map(|_| rng.next_u64() as u8).collect::<Vec<_>>()
    };
    std::fs::write(source.join("large"), random((64 << 20) + 1234)).expect("written");
    std::fs::write(source.join("dir/small"), random(100)).expect("written");
    std::fs::write(source.join("dir/tail"), random(5000)).expect("written");
    let holes = std::fs::File::create(source.join("holes")).expect("a file");
    holes.write_all_at(&random(8192), 10 << 20).expect("written");
    holes.set_len(20 << 20).expect("a hole");
    drop(holes);
    let before = used(&top);
    bench.ok(&["mkfs", "top/image", "--rootdir", "top/source", "--reflink"]);
    let more = used(&top) - before;
    assert!(more < 8 << 20, "the image takes {more} bytes");
    check(&top.join("image"));
    run("cp", &["-a", "--reflink=never", text(&source), text(&bench.path("copy"))]);
    let changed = std::fs::OpenOptions::new().write(true).open(source.join("large"));
    changed.expect("a file").write_all_at(&[7; 1 << 20], 8 << 20).expect("written");
    std::fs::create_dir(bench.path("lx")).expect("a folder");
    run("mount", &["-o", "loop,ro", text(&top.join("image")), text(&bench.path("lx"))]);
    run("diff", &["--recursive", text(&bench.path("lx")), text(&bench.path("copy"))]);
    let found = bench.path("lx/holes").metadata().expect("a file");
    assert!(found.blocks() * 512 < 1 << 20, "holes stay");
    run("umount", &[text(&bench.path("lx"))]);
    let refused = &["mkfs", "elsewhere", "--rootdir", "top/source", "--reflink"];
    bench.fails(refused, 1, &["cannot share", "--reflink"]);
    assert!(!bench.path("elsewhere").exists(), "no half of an image stays");
    run("umount", &[text(&top)]);
}

/// A volume that cannot be described on standard output stays.
#[test]
fn a_lost_output_loses_no_volume() {
    let bench = crate::bench();
    for (is_full, code) in [(true, 1), (false, 0)] {
        let _ = std::fs::remove_file(bench.path("x.img"));
        let mut command = bench.command(&["mkfs", "--size", "256M", "x.img"]);
        if is_full {
            let full = std::fs::File::options().write(true).open("/dev/full");
            command.stdout(full.expect("Linux has it"));
        } else {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            drop(reader);
            command.stdout(writer);
        }
        let said = command.output().expect("it starts");
        assert_eq!(said.status.code(), Some(code), "{said:?}");
        check(&bench.path("x.img"));
    }
}

/// All devices and the label are looked at before one file is made or grown.
#[test]
fn a_refusal_changes_no_other_device() {
    let bench = crate::bench();
    let file = |name: &str, len| {
        let file = std::fs::File::create(bench.path(name)).expect("a file");
        file.set_len(len).expect("a size");
    };
    file("short", 5 << 20);
    file("empty", 0);
    file("busy", 300 << 20);
    file("brief", 4096);
    bench.volume("volume", "128M");
    let lock = |name: &str| {
        let options = buttress_block::OpenOptions::WRITE;
        buttress_block::FileDevice::open(bench.path(name), options).expect("it is free")
    };
    let held = [lock("busy"), lock("brief")];
    let before = || ["short", "empty"].map(|name| std::fs::read(bench.path(name)).expect("a file"));
    let first = before();
    for (last, code, text) in
        [("busy", 1, "in use"), ("brief", 1, "in use"), ("volume", 6, "btrfs")]
    {
        bench.fails(&["mkfs", "--size", "300M", "new", "short", "empty", last], code, &[text]);
        assert!(before() == first && !bench.path("new").exists(), "{last}");
    }
    let long = "x".repeat(256);
    for label in ["two\nlines", &long] {
        bench.fails(&["mkfs", "--size", "300M", "--label", label, "short"], 1, &["label"]);
        assert!(before() == first, "{label}");
    }
    drop(held);
    bench.ok(&["mkfs", "--size", "300M", "--force", "new", "short", "empty", "busy", "brief"]);
    let others = ["short", "empty", "busy", "brief"].into_iter();
    let words = ["check", "new"].into_iter().chain(others.flat_map(|other| ["--device", other]));
    bench.ok(&words.collect::<Vec<_>>());
}
