//! Damaged volumes that the words of `rescue=` open, compared with Linux.

use std::os::unix::fs::FileExt;

use buttress_block::FileDevice;
use buttress_fs::{Filesystem, MountOptions};
use buttress_interop::linux::{Images, has_linux_btrfs, run, try_run, unmount};
use buttress_volume::Volume;

use crate::open::{close, open_with};

/// With `rescue=usebackuproot`, Linux and we go back to the same older root. Without this option,
/// both refuse the volume.
#[test]
fn an_older_root_is_read_where_linux_reads_it() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 600 << 20);
    images.mkfs(&[]);
    let mount = images.mount("");
    for file in 1..5 {
        mount.shell(&format!("echo {file} > f{file}; sync -f ."));
    }
    mount.unmount();
    let device = FileDevice::open(images.path(), buttress_block::OpenOptions::READ).expect("opens");
    let superblock = Volume::read_superblock(&device).expect("a superblock");
    drop(device);
    // Damages both copies of the root, which are the only nodes with its address.
    let file = std::fs::File::options().read(true).write(true).open(images.path()).expect("opens");
    let mut damaged = 0;
    for at in (0..file.metadata().expect("metadata").len()).step_by(4096) {
        let mut bytenr = [0; 8];
        file.read_exact_at(&mut bytenr, at + 48).expect("read");
        if u64::from_le_bytes(bytenr) == superblock.root.0 {
            file.write_all_at(&[0; 4096], at).expect("written");
            damaged += 1;
        }
    }
    assert!(damaged >= 1, "the root was found");
    let ours = |options: &str| {
        let device = FileDevice::open(images.path(), buttress_block::OpenOptions::READ);
        let device = std::sync::Arc::new(device.expect("opens"));
        Filesystem::open(vec![device], MountOptions::parse(options).expect("options"))
    };
    let path = images.path().display().to_string();
    let point = images.scratch().join("point");
    std::fs::create_dir(&point).expect("a folder");
    let point = point.display().to_string();
    try_run("mount", ["-t", "btrfs", "-o", "loop,ro", &path, &point]).expect_err("Linux refuses");
    ours("ro").expect_err("we refuse");
    let text = ours("usebackuproot").expect_err("with ro only").to_string();
    assert!(text.contains("ro"), "{text}");
    let options = "loop,ro,rescue=usebackuproot";
    try_run("mount", ["-t", "btrfs", "-o", options, &path, &point]).expect("Linux goes back");
    let mut linux: Vec<_> = std::fs::read_dir(&point)
        .expect("a list")
        .map(|entry| entry.expect("an entry").file_name().into_encoded_bytes())
        .collect();
    linux.sort();
    unmount(&point);
    for options in ["ro,usebackuproot", "ro,rescue=usebackuproot", "ro,rescue=all"] {
        let filesystem = open_with(images.paths(), options);
        let mut names = Vec::new();
        let list = filesystem.root().read_dir(0, |entry| {
            names.push(entry.name.to_vec());
            std::ops::ControlFlow::Continue(())
        });
        list.expect("a list");
        names.sort();
        assert_eq!(names, linux, "{options}");
        close(filesystem);
    }
}

/// Every place on a device with a node that has this logical address.
fn places(images: &Images, logical: u64) -> Vec<u64> {
    let file = std::fs::File::open(images.path()).expect("opens");
    let len = file.metadata().expect("metadata").len();
    let is_here = |at: &u64| {
        let mut bytenr = [0; 8];
        file.read_exact_at(&mut bytenr, at + 48).expect("read");
        u64::from_le_bytes(bytenr) == logical
    };
    (0..len).step_by(4096).filter(is_here).collect()
}

/// Flips one byte.
fn flip(images: &Images, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(images.path()).expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 0xFF], at).expect("written");
}

/// The root of a tree that the root tree lists.
fn root_of(images: &Images, tree: &str) -> u64 {
    let path = images.path().display().to_string();
    let dump = run("btrfs", ["inspect-internal", "dump-tree", "-t", "root", &path]);
    let mut lines = dump.lines().skip_while(|line| !line.contains(&format!("({tree} ROOT_ITEM")));
    let at = lines.find_map(|line| line.trim().split_once("bytenr ")).expect("a root");
    at.1.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}

/// The content of the only file through Linux, and through us, with the same options.
fn both(images: &Images, options: &str) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let path = images.path().display().to_string();
    let point = images.scratch().join("point");
    std::fs::create_dir_all(&point).expect("a folder");
    let name = point.display().to_string();
    let linux = try_run("mount", ["-t", "btrfs", "-o", &format!("loop,{options}"), &path, &name]);
    let linux = linux.ok().and_then(|_| {
        let read = std::fs::read(point.join("file")).ok();
        unmount(&point);
        read
    });
    let device = FileDevice::open(images.path(), buttress_block::OpenOptions::READ);
    let devices: Vec<std::sync::Arc<dyn buttress_block::Device>> =
        vec![std::sync::Arc::new(device.expect("opens"))];
    let ours = Filesystem::open(devices, MountOptions::parse(options).expect("options")).ok();
    let ours = ours.and_then(|filesystem| {
        let inode = filesystem.resolve("/file").ok()?;
        let mut content = vec![0; inode.attr().size as usize];
        inode.read_at(0, &mut content).ok().map(|_| content)
    });
    (linux, ours)
}

/// Each word of `rescue=` opens the same volumes for us as for Linux. Without the word, both refuse
/// these volumes.
#[test]
fn words_of_rescue_open_what_linux_opens() {
    if !has_linux_btrfs() {
        return;
    }
    let content: Vec<u8> = (0..200_000_u32).map(|at| (at / 7) as u8).collect();
    type Damage = fn(&Images);
    let kinds: [(&str, Damage); 4] = [
        ("ignorebadroots", |images| {
            for at in places(images, root_of(images, "EXTENT_TREE")) {
                flip(images, at + 200);
            }
        }),
        ("ignorebadroots", |images| {
            for at in places(images, root_of(images, "CSUM_TREE")) {
                flip(images, at + 200);
            }
        }),
        ("ignoredatacsums", |images| {
            // The checksum is damaged, and not the data, so the bytes that are read are right.
            for at in places(images, root_of(images, "CSUM_TREE")) {
                reseal(images, at, |node| {
                    let end = node.len();
                    node[end - 1] ^= 0xFF;
                });
            }
        }),
        ("ignoremetacsums", |images| {
            for at in places(images, root_of(images, "FS_TREE")) {
                flip(images, at);
            }
        }),
    ];
    for (word, damage) in kinds {
        let images = Images::new(1, 300 << 20);
        images.mkfs(&[]);
        let mount = images.mount("");
        std::fs::write(mount.path().join("file"), &content).expect("written");
        mount.unmount();
        damage(&images);
        let (linux, ours) = both(&images, "ro");
        assert_eq!((linux.is_some(), ours.is_some()), (false, false), "{word}: without");
        let (linux, ours) = both(&images, &format!("ro,rescue={word}"));
        let is_right = |read: Option<Vec<u8>>| read.is_some_and(|read| read == content);
        assert!(is_right(linux) && is_right(ours), "{word}: with it both read the file");
        let (linux, ours) = both(&images, "ro,rescue=all");
        assert!(is_right(linux) && is_right(ours), "all opens what {word} opens");
    }
}

/// Changes a node of 16 KiB, and gives it the right checksum.
fn reseal(images: &Images, at: u64, change: impl FnOnce(&mut [u8])) {
    let file = std::fs::File::options().read(true).write(true).open(images.path()).expect("opens");
    let mut node = vec![0; 16 << 10];
    file.read_exact_at(&mut node, at).expect("read");
    change(&mut node);
    let digest = buttress_format::CsumType::Crc32c.digest(&node[32..]);
    node[..32].copy_from_slice(&digest);
    file.write_all_at(&node, at).expect("written");
}
