//! Tests of damage to descriptors and Merkle trees, with right checksums everywhere. The checker
//! names the fault, and no read returns a byte that the tree does not prove.

use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_format::{HashKind, InodeFlags, InodeItem, Key, Kind, TreeId, VerityDescriptor, ids};
use buttress_fs::{ErrorKind, Filesystem, MakeOptions, MountOptions, NewInode, VerityOptions};

use crate::patch::Patch;
use crate::victim::Overlay;

const FS: TreeId = TreeId::FS;
/// A length with two levels of hashes, by blocks of 1 KiB and SHA-512.
const LEN: usize = 300 * 1024 + 7;

fn content() -> Vec<u8> {
    (0..LEN as u32).map(|at| (at * 31 + at / 997) as u8).collect()
}

/// A volume with one file, which has a Merkle tree, and the number of the file's inode.
fn made() -> (Arc<Overlay>, u64) {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    Filesystem::make(&*device, &MakeOptions::default()).expect("a volume");
    let fs = Filesystem::open(vec![Arc::clone(&device)], MountOptions::default()).expect("it");
    let file = fs.root().create(b"file", NewInode::file(0o644)).expect("a file");
    file.write_at(0, &content()).expect("a write");
    let salt = b"salt".to_vec();
    let (hash, signature) = (HashKind::Sha512, vec![5; 3000]);
    let options = VerityOptions { hash, block_size: 1024, salt, signature };
    file.enable_verity(&options).expect("it is enabled");
    let ino = file.id().ino.0;
    drop(file);
    fs.close().expect("a close");
    (Arc::new(Overlay::new(device)), ino)
}

/// Reads the file of a damaged volume. `None` if the read fails as it must.
fn read(patch: &Patch) -> Option<Vec<u8>> {
    let device = Arc::clone(&patch.device) as Arc<dyn Device>;
    let options = MountOptions::parse("ro").expect("options");
    let fs = Filesystem::open(vec![device], options).expect("a mount");
    let file = fs.root().lookup(b"file").expect("a file");
    let mut bytes = vec![0; LEN];
    match file.read_at(0, &mut bytes) {
        Ok(len) => Some(bytes[..len].to_vec()),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            None
        }
    }
}

fn of(ino: u64, kind: Kind, offset: u64) -> impl Fn(&Key, &[u8]) -> bool {
    move |key, _| *key == Key::new(ino, kind, offset)
}

/// The offsets of the items of a kind, and their lengths.
fn pieces(patch: &Patch, ino: u64, kind: Kind) -> Vec<(u64, usize)> {
    let mut found = Vec::new();
    for leaf in patch.leaves(FS) {
        for slot in 0..leaf.len() {
            let key = leaf.key(slot);
            if (key.objectid, key.kind) == (ino, kind) {
                found.push((key.offset, leaf.item(slot).len()));
            }
        }
    }
    found
}

#[test]
fn sound_trees_are_sound() {
    let (device, ino) = made();
    let patch = Patch::new(device);
    patch.finds(&[]);
    assert_eq!(read(&patch), Some(content()));
    let tree = pieces(&patch, ino, Kind::VERITY_MERKLE_ITEM);
    // 301 blocks of data, 19 blocks with their hashes, 2 with the hashes of those, and the top.
    assert_eq!(tree.iter().map(|(_, len)| len).sum::<usize>(), 22 * 1024);
    assert_eq!(pieces(&patch, ino, Kind::VERITY_DESC_ITEM).len(), 3, "the signature is long");
}

/// Each byte of the tree counts: the check finds it, and so does a read. A byte of the descriptor
/// is found, too, unless it is one of the signature, which only Linux verifies.
#[test]
fn every_changed_byte_is_found() {
    let (device, ino) = made();
    let base = device.blocks();
    let merkle = pieces(&Patch::new(Arc::clone(&device)), ino, Kind::VERITY_MERKLE_ITEM);
    let mut places = Vec::new();
    for (offset, len) in merkle {
        // All bytes of one item of the top, and some of each other.
        let step = if offset == 0 { 16 } else { 509 };
        places.extend((0..len).step_by(step).map(|at| (Kind::VERITY_MERKLE_ITEM, offset, at)));
    }
    // Byte 3 is the length of the salt. Zeros after a salt change no hash, only the digest.
    let descriptor = (0..VerityDescriptor::LEN).filter(|at| *at != 3);
    places.extend(descriptor.map(|at| (Kind::VERITY_DESC_ITEM, 1, at)));
    places.extend((0..25).map(|at| (Kind::VERITY_DESC_ITEM, 0, at)));
    for (kind, offset, at) in places {
        let is_reserved = (kind, offset) == (Kind::VERITY_DESC_ITEM, 0) && (8..24).contains(&at);
        let patch = Patch::new(device.cut());
        patch.edit(FS, of(ino, kind, offset), |bytes| bytes[at] ^= 0x10);
        let expected: &[&str] = if is_reserved { &[] } else { &["verity-damaged"] };
        let codes = patch.report();
        let found: Vec<_> = codes.issues.iter().map(buttress_check::Issue::code).collect();
        assert_eq!(found, expected, "{kind:?} {offset} {at}");
        // The padding of a hash block is proved by its own hash, and read with it.
        assert_eq!(read(&patch).is_some(), is_reserved, "{kind:?} {offset} {at}");
    }
    device.expect_blocks(&base);
}

/// Missing items, items in the wrong place and items too many are found.
#[test]
fn missing_and_odd_items_are_found() {
    let (device, ino) = made();
    let merkle = Kind::VERITY_MERKLE_ITEM;
    let all = pieces(&Patch::new(Arc::clone(&device)), ino, merkle);
    // A node's parent names its first item.
    let is_first = |offset: u64| {
        let leaves = Patch::new(Arc::clone(&device)).leaves(FS);
        leaves.iter().any(|leaf| leaf.key(0) == Key::new(ino, merkle, offset))
    };
    for (offset, _) in all.iter().filter(|(offset, _)| !is_first(*offset)) {
        let patch = Patch::new(device.cut());
        patch.remove_at(FS, &Key::new(ino, merkle, *offset));
        patch.finds(&["verity-damaged"]);
        assert_eq!(read(&patch), None, "{offset}");
    }
    for offset in [0, 1, 2049] {
        let patch = Patch::new(device.cut());
        patch.remove_at(FS, &Key::new(ino, Kind::VERITY_DESC_ITEM, offset));
        patch.finds(&["verity-damaged"]);
        assert_eq!(read(&patch), None, "descriptor {offset}");
    }
    let patch = Patch::new(device.cut());
    patch.insert(FS, Key::new(ino, merkle, 22 * 1024), vec![1; 16]);
    patch.finds(&["verity-damaged"]);
    let patch = Patch::new(device.cut());
    patch.edit_key(FS, of(ino, merkle, all[5].0), |key| key.offset += 1);
    patch.finds(&["verity-damaged"]);
    assert_eq!(read(&patch), None);
    let patch = Patch::new(device.cut());
    patch.edit_supers(&[0, 1], |bytes| bytes[0xb4] &= !4);
    patch.finds(&["verity-damaged"]);
}

/// A tree without the flag is what a crash leaves: nothing is said while an orphan item makes the
/// next mount remove it.
#[test]
fn parts_without_the_flag_need_an_orphan_item() {
    let (device, ino) = made();
    let patch = Patch::new(device);
    patch.edit(FS, of(ino, Kind::INODE_ITEM, 0), |bytes| {
        let mut item = InodeItem::parse(bytes).expect("an inode");
        item.flags &= !InodeFlags::RO_VERITY;
        *bytes = item.to_bytes();
    });
    let report = patch.report();
    assert!(report.has("verity-left") && report.issues.len() == 1, "{}", report.to_text());
    assert_eq!(read(&patch), Some(content()), "it is an ordinary file");
    patch.insert(FS, Key::new(ids::ORPHAN, Kind::ORPHAN_ITEM, ino), Vec::new());
    assert!(patch.report().issues.is_empty(), "{}", patch.report().to_text());
    let device = Arc::clone(&patch.device) as Arc<dyn Device>;
    let fs = Filesystem::open(vec![device], MountOptions::default()).expect("a mount");
    fs.close().expect("a close");
    let patch = Patch::new(Arc::clone(&patch.device));
    assert_eq!(pieces(&patch, ino, Kind::VERITY_MERKLE_ITEM), []);
    assert_eq!(pieces(&patch, ino, Kind::VERITY_DESC_ITEM), []);
    patch.finds(&[]);
}
