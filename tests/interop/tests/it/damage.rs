//! If one copy of two is bad, reads must still be right, and a writer repairs the copies that it
//! reads.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use buttress_interop::linux::{Images, has_linux_btrfs, run};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::sample::{Folder, Scale, fill, noise};

use crate::open::{close, manifest, open};

/// One copy of a chunk on one device.
#[derive(Clone, Debug)]
struct Copy {
    kind: String,
    number: usize,
    device: usize,
    offset: u64,
    len: u64,
}

/// Reads the places of the copies of all chunks from the output of Linux's tool.
fn copies(images: &Images) -> Vec<Copy> {
    let arguments = ["inspect-internal", "dump-tree", "-t", "chunk"];
    let image = images.path().to_str().expect("an ASCII path");
    let text = run("btrfs", arguments.into_iter().chain([image]));
    let mut found = Vec::new();
    let (mut kind, mut len) = (String::new(), 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["length", bytes, "owner", _, "stripe_len", _, "type", flags] => {
                len = bytes.parse().expect("a length");
                kind = flags.to_owned();
            }
            ["stripe", number, "devid", device, "offset", offset] => found.push(Copy {
                kind: kind.clone(),
                number: number.parse().expect("a number"),
                device: device.parse().expect("a device"),
                offset: offset.parse().expect("an offset"),
                len,
            }),
            _ => {}
        }
    }
    assert!(!found.is_empty(), "no chunks in {text}");
    found
}

/// Overwrites copy `number` of all chunks of these kinds, where it is not empty.
fn damage(images: &Images, copies: &[Copy], kinds: &[&str], number: usize) {
    let wanted = |copy: &&Copy| kinds.contains(&copy.kind.as_str()) && copy.number == number;
    let mut hit = 0;
    for copy in copies.iter().filter(wanted) {
        let path: &PathBuf = &images.paths()[copy.device - 1];
        let file = OpenOptions::new().read(true).write(true).open(path).expect("an image");
        let mut block = vec![0; 4096];
        for at in (copy.offset..copy.offset + copy.len).step_by(block.len()) {
            file.read_exact_at(&mut block, at).expect("a block");
            // Superblocks lie within chunks, but belong to no chunk.
            if buttress_interop::holds_data(&block) && !matches!(at, 0x1_0000 | 0x400_0000) {
                file.write_all_at(&noise(at, block.len()), at).expect("damage");
                hit += 1;
            }
        }
    }
    assert!(hit > 100, "only {hit} blocks were damaged: {copies:?}");
}

#[track_caller]
fn survives(devices: usize, mkfs: &[&str], kinds: &[&str]) {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(devices, 512 << 20);
    images.mkfs(mkfs);
    let mount = images.mount("");
    fill(&Folder::new(mount.path()), &Scale::default());
    mount.unmount();
    let mount = images.mount("ro");
    let linux = Manifest::of_folder(mount.path());
    mount.unmount();
    let whole: Vec<Vec<u8>> =
        images.paths().iter().map(|path| std::fs::read(path).expect("an image")).collect();
    let copies = copies(&images);

    for number in [1, 0] {
        for (path, whole) in images.paths().iter().zip(&whole) {
            std::fs::write(path, whole).expect("the image as it was");
        }
        damage(&images, &copies, kinds, number);
        let ours = manifest(images.paths());
        linux.assert_same("Linux, before the damage", &ours, "damaged copy", Depth::Volume);
    }

    // On one device, readers try copy 0 first. So a writer that reads everything repairs copy 0,
    // and the volume no longer needs copy 1. On several devices, readers alternate between copies,
    // and only a scrub reads all copies.
    let filesystem = open(images.paths(), true);
    let writable = filesystem.read_only_reason().is_none() && devices == 1;
    let ours = Manifest::of_library(&filesystem);
    linux.assert_same("Linux, before the damage", &ours, "while mending", Depth::Volume);
    close(filesystem);
    if writable {
        damage(&images, &copies, kinds, 1);
        let ours = manifest(images.paths());
        linux.assert_same("Linux, before the damage", &ours, "mended copy", Depth::Volume);
    }
}

/// One copy of the trees on a single device is bad.
#[test]
fn one_copy_of_dup_metadata() {
    survives(1, &[], &["METADATA|DUP"]);
}

/// One copy of data and trees on a single device is bad.
#[test]
fn one_copy_of_all() {
    survives(1, &["-d", "dup"], &["METADATA|DUP", "DATA|DUP"]);
}

/// All copies on one of two devices are bad.
#[test]
fn one_device_of_raid1() {
    let kinds = ["METADATA|RAID1", "DATA|RAID1", "SYSTEM|RAID1"];
    survives(2, &["-m", "raid1", "-d", "raid1"], &kinds);
}

/// Data with only one copy: reads of damaged files give errors, never wrong bytes.
#[test]
fn the_only_copy() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 512 << 20);
    images.mkfs(&[]);
    let mount = images.mount("");
    fill(&Folder::new(mount.path()), &Scale::default());
    let linux = Manifest::of_folder(mount.path());
    mount.unmount();
    damage(&images, &copies(&images), &["DATA|single"], 0);
    let ours = manifest(images.paths());
    assert!(!ours.errors.is_empty(), "nothing was said of damaged data");
    for (path, entry) in &ours.entries {
        let there = &linux.entries[path];
        assert_eq!(entry.content, there.content, "{}: wrong bytes", path.escape_ascii());
    }
}

/// If a device is missing, the error names its number. The volume opens only with the option
/// `degraded`.
#[test]
fn a_missing_device() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(2, 512 << 20);
    images.mkfs(&["-m", "raid1", "-d", "raid1"]);
    let mount = images.mount("");
    fill(&Folder::new(mount.path()), &Scale::default());
    mount.unmount();
    let error = crate::open::try_open(&images.paths()[..1], false).expect_err("half a volume");
    assert!(error.to_string().contains('2'), "{error} does not name device 2");
}
