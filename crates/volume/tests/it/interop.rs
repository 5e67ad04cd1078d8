//! Volumes that `mkfs.btrfs` made: every node of every tree is at the computed place, on every
//! copy. The tests are skipped if that program is not installed.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_format::header::{HEADER_LEN, ITEM_LEN, PTR_LEN};
use buttress_format::{Chunk, Header, Key, Kind, Logical, RootItem, Superblock};
use buttress_volume::Volume;

use crate::builders::{READ, WRITE};

/// Makes a volume of `count` devices; `None` if the program is missing or refuses.
fn made(dir: &tempfile::TempDir, profile: &str, count: u64) -> Option<Vec<Arc<dyn Device>>> {
    let paths: Vec<PathBuf> =
        (1..=count).map(|id| dir.path().join(format!("{profile}-{id}"))).collect();
    for path in &paths {
        drop(FileDevice::create(path, 300 << 20).expect("a new file"));
    }
    // Nodes are as large as a stripe unit, so that a few nodes are enough for all devices.
    let status = Command::new("mkfs.btrfs")
        .args(["--quiet", "--force", "--nodesize", "65536", "--metadata", profile])
        .args(&paths)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status();
    if !status.is_ok_and(|status| status.success()) {
        return None;
    }
    let open = |path| -> Arc<dyn Device> {
        Arc::new(FileDevice::open(path, OpenOptions::READ).expect("just made"))
    };
    Some(paths.iter().map(open).collect())
}

/// Reads a node from every copy, and calls `leaf` with each item of the leaves below the node.
fn walk(volume: &Volume, at: Logical, seen: &mut u64, leaf: &mut dyn FnMut(Key, &[u8])) {
    let mut node = vec![0; volume.nodesize() as usize];
    for mirror in 0..volume.mirrors(at) {
        volume.read_mirror(at, &mut node, mirror).expect("mapped");
        let csum = volume.csum_type();
        assert_eq!(csum.digest(&node[32..])[..csum.size()], node[..csum.size()], "{at}, {mirror}");
    }
    *seen += 1;
    let header = Header::parse(&node).expect("a node");
    assert_eq!(header.bytenr, at);
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize;
    for slot in 0..header.nritems as usize {
        if header.level == 0 {
            let item = &node[HEADER_LEN + slot * ITEM_LEN..][..ITEM_LEN];
            let key = Key::parse(&item[..17]).expect("a key");
            let (start, len) = (number(&item[17..21]), number(&item[21..25]));
            leaf(key, &node[HEADER_LEN + start..][..len]);
        } else {
            let child = &node[HEADER_LEN + slot * PTR_LEN..][17..25];
            let child = u64::from_le_bytes(child.try_into().expect("eight bytes"));
            walk(volume, Logical(child), seen, leaf);
        }
    }
}

fn check(volume: &Volume, superblock: &Superblock) -> u64 {
    let mut seen = 0;
    let mut chunks = Vec::new();
    walk(volume, superblock.chunk_root, &mut seen, &mut |key, item| {
        if key.kind == Kind::CHUNK_ITEM {
            chunks.push(Chunk::parse(&key, item).expect("a chunk"));
        }
    });
    chunks.retain(|chunk| volume.chunk_at(chunk.logical).is_none());
    volume.add_chunks(chunks).expect("chunks of a good volume");
    let mut roots = Vec::new();
    walk(volume, superblock.root, &mut seen, &mut |key, item| {
        if key.kind == Kind::ROOT_ITEM {
            roots.push(RootItem::parse(item).expect("a root").bytenr);
        }
    });
    for root in roots {
        walk(volume, root, &mut seen, &mut |_, _| ());
    }
    seen
}

/// Every profile that the reference program makes is read to the last node.
#[test]
fn reads_what_mkfs_made() {
    let dir = tempfile::tempdir().expect("a directory for the test");
    for (profile, count) in [
        ("single", 1),
        ("dup", 1),
        ("raid0", 3),
        ("raid1", 2),
        ("raid1c3", 3),
        ("raid1c4", 4),
        ("raid10", 4),
        ("raid5", 3),
        ("raid5", 4),
        ("raid6", 3),
        ("raid6", 4),
    ] {
        let Some(devices) = made(&dir, profile, count) else {
            eprintln!("skipped: mkfs.btrfs made no {profile}");
            continue;
        };
        let (volume, superblock) = Volume::open(devices.clone(), READ).expect("just made");
        let nodes = check(&volume, &superblock);
        assert!(nodes >= 8, "{profile}: {nodes} nodes");
        let system = superblock.sys_chunks[0].1.flags.profile_name();
        assert_eq!(system, profile, "the profile that was asked for");

        drop(volume);
        if profile.starts_with("raid5") || profile.starts_with("raid6") {
            let (volume, _) = Volume::open(devices, WRITE).expect("just made");
            assert!(volume.read_only_reason().is_some());
        }
    }
}
