//! Damage all over trees of several levels, and items that go into leaves without room.

use buttress_base::Rng;
use buttress_format::header::ITEM_LEN;
use buttress_format::{DirEntry, FileKind, Generation, Key, Kind, name_hash};
use buttress_tree::Node;

use crate::mend::{FS, mends};
use crate::patch::{Items, Patch, add64};
use crate::victim::{deep_victim, flat_victim};

/// The three kinds of items of a name. A repair restores an item from the other two kinds, or from
/// the items of the inode.
const NAMES: [Kind; 3] = [Kind::DIR_INDEX, Kind::DIR_ITEM, Kind::INODE_REF];

fn is_name(key: &Key) -> bool {
    NAMES.contains(&key.kind) && key.objectid > 256
}

/// An extended attribute that takes this many bytes of a leaf.
fn filler(ino: u64, len: usize) -> Option<(Key, Vec<u8>)> {
    let name = b"user.filler".to_vec();
    let entry = |data| DirEntry {
        location: Key::MIN,
        transid: Generation(0),
        kind: FileKind::Xattr,
        name: name.clone(),
        data,
    };
    let more = len.checked_sub(ITEM_LEN + entry(Vec::new()).to_bytes().len())?;
    let key = Key::new(ino, Kind::XATTR_ITEM, name_hash(&name));
    Some((key, entry(vec![b'x'; more]).to_bytes()))
}

/// Fills the room of a leaf with an attribute of an inode. The neighbours of the attribute are in
/// this leaf, too. Returns whether the leaf is full afterwards.
fn fill(items: &mut Items, room: usize) -> bool {
    let used: usize = items.iter().map(|(_, item)| ITEM_LEN + item.len()).sum();
    let Some(at) = items.iter().position(|(key, _)| key.kind == Kind::INODE_ITEM) else {
        return false;
    };
    let ino = items[at].0.objectid;
    let Some((key, item)) = filler(ino, room - used).filter(|(_, item)| item.len() < 3500) else {
        return false;
    };
    let at = items.partition_point(|(other, _)| *other < key);
    // Behind the last item, the attribute might belong to the next leaf.
    if at == items.len() {
        return false;
    }
    items.insert(at, (key, item));
    true
}

fn room_of(leaf: &Node) -> usize {
    leaf.bytes().len() - buttress_format::header::HEADER_LEN
}

#[test]
fn repair_mends_items_all_over_deep_trees() {
    for seed in 0..4 {
        let patch = Patch::new(deep_victim());
        assert!(patch.root(FS).level >= 2, "three levels");
        mends(&format!("seed {seed}"), &patch, true, |patch| {
            let mut rng = Rng::new(seed);
            for leaf in patch.leaves(FS) {
                if leaf.len() < 2 || !rng.chance(1, 12) {
                    continue;
                }
                // The first key of a leaf stays, since its parent names it.
                let slot = rng.range(1..leaf.len() as u64) as usize;
                let key = leaf.key(slot);
                if is_name(&key) {
                    patch.remove_at(FS, &key);
                } else if key.kind == Kind::INODE_ITEM && key.objectid > 256 {
                    patch.edit_leaf(FS, &key, |items| {
                        let found = items.iter_mut().find(|(other, _)| *other == key);
                        add64(&mut found.expect("it").1, 40, 3);
                    });
                }
            }
        });
    }
}

/// Each mended item finds its leaf full: leaves are split, and their parents where needed.
#[test]
fn repair_puts_items_into_full_leaves() {
    let patch = Patch::new(deep_victim());
    let before = patch.leaves(FS).len();
    mends("full leaves", &patch, true, |patch| {
        let mut filled = 0;
        for (number, leaf) in patch.leaves(FS).into_iter().enumerate() {
            let slots = (1..leaf.len()).map(|slot| leaf.key(slot));
            let is_wanted = |key: &Key| key.kind == Kind::INODE_REF && is_name(key);
            let keys: Vec<Key> = slots.filter(is_wanted).take(2).collect();
            if let Some(key) = keys.first().filter(|_| number % 3 == 0) {
                patch.edit_leaf(FS, key, |items| {
                    let whole = items.clone();
                    items.retain(|(other, _)| !keys.contains(other));
                    match fill(items, room_of(&leaf)) {
                        true => filled += 1,
                        false => *items = whole,
                    }
                });
            }
        }
        assert!(filled > 50, "{filled} of {before} leaves");
    });
}

/// A tree that is one leaf gets a root above it.
#[test]
fn repair_puts_a_root_above_a_full_leaf() {
    let patch = Patch::new(flat_victim());
    assert_eq!(patch.root(FS).level, 0);
    mends("a full root", &patch, true, |patch| {
        let leaf = &patch.leaves(FS)[0];
        let mut keys = (1..leaf.len()).map(|slot| leaf.key(slot));
        let key = keys.find(|key| key.kind == Kind::INODE_REF && is_name(key)).expect("a name");
        patch.edit_leaf(FS, &key, |items| {
            items.retain(|(other, _)| *other != key);
            assert!(fill(items, room_of(leaf)));
        });
    });
}
