//! Damage that leaves something twice: directories with several names, names for several inodes,
//! entries and references again, and checksum items that overlap.

use buttress_base::Rng;
use buttress_check::repair;
use buttress_format::{
    DirEntry, FileKind, Generation, InodeRef, InodeRefs, Key, Kind, TreeId, ids, name_hash,
};

use crate::mend::{FS, devices, ino, is_entry, is_item, mends};
use crate::patch::{Patch, add64};
use crate::victim::{nested_victim, victim};

pub(crate) const TOP: u64 = 256;
/// An index that no directory of the victims has.
const INDEX: u64 = 7000;

/// Bytes of a sector of the victims.
const SECTOR: u64 = 4096;

/// The inode of a name of a directory.
fn inside(patch: &Patch, dir: u64, name: &[u8]) -> u64 {
    let key = Key::new(dir, Kind::DIR_ITEM, name_hash(name));
    let (_, bytes) = patch.find(FS, |other, _| *other == key).expect("a name");
    DirEntry::parse_all(&bytes).expect("an entry")[0].location.objectid
}

/// Adds bytes to an item, or adds the item.
fn append(patch: &Patch, key: Key, more: &[u8]) {
    match patch.find(FS, |other, _| *other == key) {
        Some(_) => patch.edit(FS, |other, _| *other == key, |bytes| bytes.extend(more)),
        None => patch.insert(FS, key, more.to_vec()),
    }
}

/// Where a name is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name<'n> {
    dir: u64,
    index: u64,
    name: &'n [u8],
    /// The age of its entries.
    since: u64,
}

impl Name<'_> {
    fn entry(&self, ino: u64, kind: FileKind) -> Vec<u8> {
        DirEntry {
            location: Key::new(ino, Kind::INODE_ITEM, 0),
            transid: Generation(self.since),
            kind,
            name: self.name.to_vec(),
            data: Vec::new(),
        }
        .to_bytes()
    }

    /// The directory lists the name, and finds it.
    fn list(&self, patch: &Patch, ino: u64, kind: FileKind) {
        let entry = self.entry(ino, kind);
        patch.insert(FS, Key::new(self.dir, Kind::DIR_INDEX, self.index), entry.clone());
        append(patch, Key::new(self.dir, Kind::DIR_ITEM, name_hash(self.name)), &entry);
    }

    /// The inode states the name.
    fn state(&self, patch: &Patch, ino: u64) {
        let one = InodeRef { index: self.index, name: self.name.to_vec() };
        append(patch, Key::new(ino, Kind::INODE_REF, self.dir), &InodeRefs::encode(&[one]));
    }
}

/// A name in a directory that is newer than all others.
fn name(dir: u64, name: &[u8]) -> Name<'_> {
    Name { dir, index: INDEX, name, since: 1 << 20 }
}

/// The directories of the nested victim, each in the one before, and one beside them.
struct Nested {
    a: u64,
    b: u64,
    c: u64,
    z: u64,
}

impl Nested {
    fn of(patch: &Patch) -> Self {
        let a = ino(patch, "a");
        let b = inside(patch, a, b"b");
        Self { a, b, c: inside(patch, b, b"c"), z: ino(patch, "z") }
    }
}

const DIR: FileKind = FileKind::Directory;

#[test]
fn repair_leaves_a_directory_one_name() {
    let same = |what: &str, damage: &dyn Fn(&Patch, Nested)| {
        mends(what, &Patch::new(nested_victim()), true, |patch| damage(patch, Nested::of(patch)))
    };
    same("another name in its directory, which it does not state", &|patch, at| {
        name(at.a, b"again").list(patch, at.b, DIR);
    });
    same("another name in another directory, which it does not state", &|patch, at| {
        Name { since: 0, ..name(at.z, b"again") }.list(patch, at.b, DIR);
    });
    same("another name that it states", &|patch, at| {
        for dir in [at.a, at.z] {
            name(dir, b"again").list(patch, at.b, DIR);
            name(dir, b"again").state(patch, at.b);
        }
    });
    same("another name that it states, and two links", &|patch, at| {
        name(at.z, b"again").list(patch, at.b, DIR);
        name(at.z, b"again").state(patch, at.b);
        patch.edit(FS, is_item(at.b, Kind::INODE_ITEM), |bytes| bytes[40] = 2);
    });
    same("another name that it states, without a lookup or without an index", &|patch, at| {
        for (kind, dir) in [(Kind::DIR_ITEM, at.z), (Kind::DIR_INDEX, at.a)] {
            name(dir, b"again").list(patch, at.b, DIR);
            name(dir, b"again").state(patch, at.b);
            patch.remove(FS, |key, bytes| {
                let is_it = || DirEntry::parse_all(bytes).is_ok_and(|all| all[0].name == b"again");
                key.objectid == dir && key.kind == kind && is_it()
            });
        }
    });
    same("an old name below itself", &|patch, at| {
        let looped = Name { since: 0, ..name(at.c, b"loop") };
        looped.list(patch, at.b, DIR);
        looped.state(patch, at.b);
    });
    same("the only name that it states is below itself", &|patch, at| {
        name(at.c, b"loop").list(patch, at.b, DIR);
        patch.remove(FS, is_item(at.b, Kind::INODE_REF));
        name(at.c, b"loop").state(patch, at.b);
    });
    same("the name that it states is nowhere", &|patch, at| {
        patch.remove(FS, is_item(at.b, Kind::INODE_REF));
        name(at.z, b"elsewhere").state(patch, at.b);
    });
    let after = mends("an older name", &Patch::new(nested_victim()), false, |patch| {
        let at = Nested::of(patch);
        let old = Name { since: 0, ..name(at.z, b"older") };
        old.list(patch, at.b, DIR);
        old.state(patch, at.b);
    });
    assert!(after.contains_key("/z/older/c/in c") && !after.contains_key("/a/b"), "{after:?}");
}

/// What would be lost is not given up: a directory keeps all names if its only sure one is below
/// itself.
#[test]
fn repair_cuts_off_no_directory() {
    let patch = Patch::new(nested_victim());
    let at = Nested::of(&patch);
    patch.remove(FS, is_item(at.b, Kind::INODE_REF));
    patch.remove(FS, |key, bytes| {
        let is_b = || DirEntry::parse_all(bytes).is_ok_and(|all| all[0].name == b"b");
        key.objectid == at.a && key.kind == Kind::DIR_ITEM && is_b()
    });
    name(at.c, b"loop").list(&patch, at.b, DIR);
    name(at.c, b"loop").state(&patch, at.b);
    let repairs = repair(&devices(&patch), &patch.report()).expect("a repair");
    assert!(!repairs.left.is_empty(), "{repairs:?}");
    let still = patch.find(FS, |key, bytes| {
        let is_b = |all: Vec<DirEntry>| all.iter().any(|one| one.location.objectid == at.b);
        key.objectid == at.a && DirEntry::parse_all(bytes).is_ok_and(is_b)
    });
    assert!(still.is_some(), "{repairs:?}");
}

#[test]
fn repair_mends_items_that_are_there_twice() {
    let same = |what: &str, damage: &dyn Fn(&Patch)| {
        mends(what, &Patch::new(victim()), true, damage);
    };
    for file in ["big", "dir", "link"] {
        same("a lookup that finds a name twice", &|patch| {
            patch.edit(FS, is_entry(file, Kind::DIR_ITEM), |bytes| bytes.extend(bytes.clone()));
        });
        for more in [0, 1000] {
            same("a reference twice", &|patch| state_again(patch, ino(patch, file), more));
        }
    }
}

/// An inode states its names once more, with indexes that are `more` higher.
fn state_again(patch: &Patch, ino: u64, more: u64) {
    patch.edit(FS, is_item(ino, Kind::INODE_REF), |bytes| {
        let mut again = bytes.clone();
        add64(&mut again, 0, more);
        bytes.extend(again);
    });
}

/// Gives an inode the name of another one, in all three places or in all but the lookup.
fn rename(patch: &Patch, old: &'static str, new: &'static str, with_lookup: bool) {
    let ino = ino(patch, old);
    let (key, bytes) = patch.find(FS, is_entry(old, Kind::DIR_INDEX)).expect("an index");
    let entry = DirEntry::parse_all(&bytes).expect("an entry").remove(0);
    let renamed = DirEntry { name: new.as_bytes().to_vec(), ..entry };
    patch.remove(FS, is_entry(old, Kind::DIR_ITEM));
    patch.edit(FS, |other, _| *other == key, |bytes| *bytes = renamed.to_bytes());
    if with_lookup {
        let at = Key::new(TOP, Kind::DIR_ITEM, name_hash(new.as_bytes()));
        append(patch, at, &renamed.to_bytes());
    }
    let one = InodeRef { index: key.offset, name: new.as_bytes().to_vec() };
    let names = is_item(ino, Kind::INODE_REF);
    patch.edit(FS, names, |bytes| *bytes = InodeRefs::encode(&[one]));
}

#[test]
fn repair_gives_the_second_inode_of_a_name_another_name() {
    for (old, new, with_lookup) in [
        ("ahead", "big", true),
        ("ahead", "big", false),
        ("big", "ahead", true),
        ("big", "ahead", false),
        ("dir", "sparse", true),
        ("sparse", "dir", false),
    ] {
        let what = format!("{old} is {new}, too ({with_lookup})");
        let patch = Patch::new(victim());
        let mut inos = [ino(&patch, old), ino(&patch, new)];
        let before = crate::mend::contents(&patch);
        let after = mends(&what, &patch, false, |patch| rename(patch, old, new, with_lookup));
        // The inode with the lower number is the older one: the victim is made in one transaction.
        let keeps = if inos[0] < inos[1] { old } else { new };
        let other = if keeps == old { new } else { old };
        inos.sort_unstable();
        let again = format!("/{new}.{}", inos[1]);
        assert!(after[&format!("/{new}")] == before[&format!("/{keeps}")], "{what}");
        assert!(after[&again] == before[&format!("/{other}")], "{what}");
        assert_eq!(after.len(), before.len(), "{what}");
    }
}

/// The checksum item with the most checksums: its first address and its bytes.
fn sums(patch: &Patch) -> (u64, Vec<u8>) {
    let leaves = patch.leaves(TreeId::CSUM);
    let items = leaves.iter().flat_map(|leaf| {
        (0..leaf.len()).map(|slot| (leaf.key(slot).offset, leaf.item(slot).to_vec()))
    });
    items.max_by_key(|(_, bytes)| bytes.len()).expect("checksums")
}

fn sum_key(at: u64) -> Key {
    Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, at)
}

/// Bytes of a checksum of the victims.
const SIZE: usize = 4;

/// Adds an item for some of the sectors of the longest item. With `wrong`, a checksum of the new
/// item is wrong. With `first_wrong` it is the one of the old item.
fn overlap(patch: &Patch, sectors: std::ops::Range<usize>, wrong: bool, first_wrong: bool) {
    let (at, bytes) = sums(patch);
    let mut again = bytes[sectors.start * SIZE..sectors.end * SIZE].to_vec();
    if wrong {
        again[SIZE] ^= 1;
    }
    if first_wrong {
        let place = (sectors.start + 1) * SIZE;
        patch.edit(TreeId::CSUM, |key, _| *key == sum_key(at), |bytes| bytes[place] ^= 1);
    }
    patch.insert(TreeId::CSUM, sum_key(at + sectors.start as u64 * SECTOR), again);
}

#[test]
fn repair_mends_checksums_that_overlap() {
    let same = |what: &str, damage: &dyn Fn(&Patch, usize)| {
        mends(what, &Patch::new(victim()), true, |patch| {
            let (_, bytes) = sums(patch);
            damage(patch, bytes.len() / SIZE);
        });
    };
    same("the end of an item again", &|patch, all| overlap(patch, 8..all, false, false));
    same("a part of an item again", &|patch, _| overlap(patch, 8..12, false, false));
    same("a part again, and wrong", &|patch, _| overlap(patch, 8..12, true, false));
    same("a part again, and the first is wrong", &|patch, _| overlap(patch, 8..12, false, true));
    same("three items for some sectors", &|patch, all| {
        overlap(patch, 4..30, true, false);
        overlap(patch, 8..12, false, false);
        overlap(patch, 20..all, false, true);
    });
}

/// If the data matches neither of two checksums, neither is taken.
#[test]
fn repair_leaves_checksums_that_no_data_matches() {
    let patch = Patch::new(victim());
    let (at, _) = sums(&patch);
    overlap(&patch, 8..12, true, true);
    let place = 9 * SIZE + 1;
    patch.edit(TreeId::CSUM, |key, _| *key == sum_key(at), |bytes| bytes[place] ^= 1);
    patch.finds_among_others(&["csum-overlap"]);
    let before = patch.device.blocks();
    let repairs = repair(&devices(&patch), &patch.report()).expect("a repair");
    assert!(repairs.done.is_empty() && !repairs.left.is_empty(), "{repairs:?}");
    patch.device.expect_blocks(&before);
}

/// Leaves some things twice, by chance.
pub(crate) fn double(patch: &Patch, rng: &mut Rng) {
    let at = Nested::of(patch);
    let dirs = [at.b, at.c, at.z];
    let mut used = false;
    for number in 0..rng.range(1..4) {
        let dir = dirs[rng.below(3) as usize];
        let below = [TOP, at.a, at.b, at.c, at.z][rng.below(5) as usize];
        let text = format!("double {number}");
        let since = rng.below(100);
        let one = Name { dir: below, index: INDEX + number, name: text.as_bytes(), since };
        match rng.below(6) {
            0 | 1 if dir != below => {
                one.list(patch, dir, DIR);
                if rng.chance(1, 2) {
                    one.state(patch, dir);
                }
            }
            2 => state_again(patch, dir, rng.below(2) * 1000),
            3 => patch.edit(
                FS,
                |key, bytes| {
                    let is_it =
                        |all: Vec<DirEntry>| all.iter().any(|one| one.location.objectid == dir);
                    key.kind == Kind::DIR_ITEM && DirEntry::parse_all(bytes).is_ok_and(is_it)
                },
                |bytes| bytes.extend(bytes.clone()),
            ),
            4 if !std::mem::replace(&mut used, true) => {
                let (_, bytes) = sums(patch);
                let last = bytes.len() / SIZE - 2;
                let from = 1 + rng.below(last as u64 - 2) as usize;
                overlap(patch, from..from + 2, rng.chance(1, 2), false);
            }
            _ => {
                let inode = Name { dir: TOP, index: INDEX + number, name: b"one", since };
                let two = ino(patch, "two");
                if inside(patch, TOP, b"one") != two {
                    inode.list(patch, two, FileKind::Regular);
                    inode.state(patch, two);
                }
            }
        }
    }
}
