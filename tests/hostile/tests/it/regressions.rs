//! Faults that were found once and must not come back.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::{Kind, Superblock, TreeId};
use buttress_fs::{Filesystem, Inode, MountOptions, SetAttr};
use buttress_hostile::checker;
use buttress_hostile::exercise::exercise_as;
use buttress_hostile::image::{Image, Place, SUPERBLOCK_LEN, SUPERBLOCKS};
use buttress_hostile::mutate::{damaged, edited};
use buttress_hostile::targets;

use crate::{case, choices, sample};

/// The offset of the kind in a file extent item.
const EXTENT_TYPE: usize = 20;
/// The places of the address and of the length on disk in a file extent item.
const DISK_BYTENR: std::ops::Range<usize> = 21..29;
const DISK_NUM_BYTES: usize = 29;
const DISK_LEN: usize = 29;

fn both_ways(what: &str, device: MemoryDevice) {
    for (writes, behind) in [(false, false), (true, false), (false, true), (true, true)] {
        let copy = device.fork();
        let found = case(what, move || {
            let _ = exercise_as(copy, writes, behind);
        });
        assert_eq!(found, None);
    }
}

/// Each leaf was in order but the tree was not. A commit relied on the order, and its builder
/// panicked. All keys of a node must lie before the keys of the next node.
#[test]
fn keys_of_two_leaves_overlap() {
    let mut changed = 0;
    let device = edited(&sample::ours(), |owner, items| {
        if let Some(last) = items.last_mut().filter(|_| owner == TreeId(5)) {
            last.key.objectid = 1 << 40;
            changed += 1;
        }
    });
    assert!(changed > 1, "the tree has several leaves");
    both_ways("overlapping leaves", device);
}

/// An extent that was no whole number of sectors long had more checksums than sectors. The last
/// checksum was written behind the end.
#[test]
fn an_extent_ends_within_a_sector() {
    for less in [1, 100, 4095] {
        let device = edited(&sample::ours(), |_, items| {
            let extents = items.iter_mut().filter(|item| item.key.kind == Kind::EXTENT_DATA);
            for item in extents.filter(|item| item.payload.len() == 53) {
                let field = &mut item.payload[DISK_LEN..DISK_LEN + 8];
                let len = u64::from_le_bytes(field.try_into().expect("eight bytes"));
                field.copy_from_slice(&len.saturating_sub(less).to_le_bytes());
            }
        });
        both_ways("extents that end within a sector", device);
    }
}

/// A scrub relied on the extent tree for the boundaries of sectors and nodes.
#[test]
fn extents_in_use_lie_between_sectors() {
    for kind in [Kind::EXTENT_ITEM, Kind::METADATA_ITEM] {
        for (aside, less) in [(0, 100), (0, 4096), (512, 0)] {
            let device = edited(&sample::ours(), |_, items| {
                for item in items.iter_mut().filter(|item| item.key.kind == kind) {
                    item.key.objectid += aside;
                    if kind == Kind::EXTENT_ITEM {
                        item.key.offset = item.key.offset.saturating_sub(less);
                    }
                }
            });
            both_ways("extents between sectors", device);
        }
    }
}

/// A checksum item began within a sector.
#[test]
fn checksums_begin_within_a_sector() {
    let mut rng = Rng::new(9);
    let device = edited(&sample::ours(), |_, items| {
        for item in items.iter_mut().filter(|item| item.key.kind == Kind::EXTENT_CSUM) {
            item.key.offset += rng.below(4096);
        }
    });
    both_ways("checksums between sectors", device);
}

/// A file was truncated, but its extents could not be read. The file kept the new length in memory
/// and the old length on disk, and the next change of the file panicked.
#[test]
fn a_cut_that_fails_leaves_the_length() {
    let device = edited(&sample::ours(), |_, items| {
        for item in items.iter_mut().filter(|item| item.key.kind == Kind::EXTENT_DATA) {
            item.payload[EXTENT_TYPE] = 9;
        }
    });
    let found = case("a cut that fails", move || {
        let options = MountOptions::parse("noatime").expect("a known option");
        let filesystem =
            Filesystem::open(vec![Arc::new(device)], options).expect("not damaged here");
        let folder = filesystem.resolve("folder 1").expect("not damaged");
        let mut failed = 0;
        for number in 0..30 {
            let name = format!("file {number} with a name that is not the shortest");
            let file: Inode = folder.lookup(name.as_bytes()).expect("not damaged");
            let size = file.attr().size;
            let cut = SetAttr { size: Some(size / 3), ..SetAttr::default() };
            if file.set_attr(&cut).is_err() {
                failed += 1;
                assert_eq!(file.attr().size, size, "nothing was cut");
            }
            let change = SetAttr { uid: Some(7), ..SetAttr::default() };
            file.set_attr(&change).expect("that is not damaged");
        }
        assert!(failed > 10, "{failed}");
        filesystem.close().expect("what could not be done was told");
    });
    assert_eq!(found, None);
}

/// A folder used the last possible index, and the number after that was used for the next name.
#[test]
fn no_index_is_left_in_a_folder() {
    for last in [u64::MAX, u64::MAX - 1] {
        let device = edited(&sample::ours(), |_, items| {
            for at in 1..items.len() {
                let (before, after) = items.split_at_mut(at);
                let (item, next) = (&mut before[at - 1], &after[0]);
                let is_last = item.key.objectid != next.key.objectid;
                if item.key.kind == Kind::DIR_INDEX && is_last {
                    item.key.offset = last;
                }
            }
        });
        both_ways("the last index", device.fork());
        let filesystem =
            Filesystem::open(vec![Arc::new(device)], MountOptions::default()).expect("a volume");
        let mut refused = 0;
        for folder in (0..4).map(|number| format!("folder {number}")) {
            let folder = filesystem.resolve(&folder).expect("not damaged");
            for name in ["one", "two"] {
                refused += usize::from(folder.mkdir(name.as_bytes(), 0o755, 0, 0).is_err());
            }
        }
        assert!(refused > 0, "no name takes an index that another has");
        filesystem.close().expect("what could not be done was told");
    }
}

/// Earlier damage had changed the number of pointers of a node, and further damage went beyond the
/// end of the node. This was a fault of the fuzzer itself.
#[test]
fn damage_stays_within_a_node() {
    let image = &sample::small()[0];
    let is_inner = |place: &Place| place.bytes[100] > 0;
    let at = image.nodes.iter().position(is_inner).expect("a tree has several leaves") as u16;
    // The damage has two places: the number in the header, and then the last pointer according to
    // that number.
    let choices = [1_u16, 1, at, 0, 4, 16, 1, at, 1, 60_000, 1, at, 3, 0];
    let choices: Vec<u8> = choices.iter().flat_map(|choice| choice.to_le_bytes()).collect();
    drop(damaged(image, &choices));
}

/// Two files of one transaction had different lengths for one extent. The second file made the
/// program panic.
#[test]
fn two_files_dispute_the_length_of_an_extent() {
    let mut seen = Vec::new();
    let device = edited(&sample::ours(), |_, items| {
        for item in items.iter_mut().filter(|item| item.key.kind == Kind::EXTENT_DATA) {
            if item.payload.get(EXTENT_TYPE) != Some(&1) {
                continue;
            }
            // Every second item uses the extent of the previous item, with a greater length.
            match seen.pop() {
                None => seen.push(item.payload[DISK_BYTENR].to_vec()),
                Some(other) => {
                    item.payload[DISK_BYTENR].copy_from_slice(&other);
                    item.payload[DISK_NUM_BYTES + 4] = 1;
                }
            }
        }
    });
    both_ways("disputed lengths", device.fork());
    let found = case("all of them are cut", move || {
        let options = MountOptions::parse("noatime").expect("a known option");
        let filesystem = Filesystem::open(vec![Arc::new(device)], options).expect("it opens");
        for folder in (0..4).map(|number| format!("folder {number}")) {
            let folder = filesystem.resolve(&folder).expect("not damaged");
            for number in 0..30 {
                let name = format!("file {number} with a name that is not the shortest");
                let Ok(file) = folder.lookup(name.as_bytes()) else { continue };
                let cut = SetAttr { size: Some(0), ..SetAttr::default() };
                drop(file.set_attr(&cut));
            }
        }
        filesystem.sync().expect_err("nothing of it is committed");
        drop(filesystem.close());
    });
    assert_eq!(found, None);
}

/// The places of the offsets of a chunk's first and second stripe.
const FIRST_STRIPE: std::ops::Range<usize> = 56..64;
const SECOND_STRIPE: std::ops::Range<usize> = 88..96;

/// Checks that a volume is readable and refuses writes with the reason: at once, or as soon as its
/// block groups are known.
fn is_only_read(what: &'static str, device: MemoryDevice, expected: &'static str) {
    both_ways(what, device.fork());
    for groups in ["first", "behind"] {
        is_only_read_with(what, device.fork(), expected, groups);
    }
}

fn is_only_read_with(
    what: &'static str,
    device: MemoryDevice,
    expected: &'static str,
    groups: &'static str,
) {
    let found = case(what, move || {
        let options = format!("rw,noatime,bg_read={groups}");
        let options = MountOptions::parse(&options).expect("known options");
        let filesystem = Filesystem::open(vec![Arc::new(device)], options).expect("it is read");
        if groups == "behind" {
            filesystem.root().mkdir(b"new", 0o755, 0, 0).expect_err("nothing is written");
        }
        let why = filesystem.read_only_reason().expect("it is not written");
        assert!(why.contains(expected), "{why}");
        filesystem.root().mkdir(b"new", 0o755, 0, 0).expect_err("nothing is written");
        let folder = filesystem.resolve("folder 1").expect("not damaged");
        folder.lookup(b"away").expect("not damaged");
        filesystem.close().expect("there is nothing to write");
    });
    assert_eq!(found, None);
}

/// The offset on the device of the first chunk with one copy.
fn first_data(image: &Image) -> u64 {
    let mut data = None;
    drop(edited(image, |_, items| {
        let chunks = items.iter().filter(|item| item.key.kind == Kind::CHUNK_ITEM);
        let mut single = chunks.filter(|item| item.payload.len() < SECOND_STRIPE.end);
        data = data.take().or(single.next().map(|item| item.payload[FIRST_STRIPE].to_vec()));
    }));
    let data = data.expect("data has one copy");
    u64::from_le_bytes(data.try_into().expect("eight bytes"))
}

/// Both copies of a chunk were at one place of a device, so a batch had two writes for the same
/// bytes.
#[test]
fn copies_lie_at_one_place() {
    let mut changed = 0;
    let device = edited(&sample::ours(), |_, items| {
        let chunks = items.iter_mut().filter(|item| item.key.kind == Kind::CHUNK_ITEM);
        for item in chunks.filter(|item| item.payload.len() >= SECOND_STRIPE.end) {
            let first = item.payload[FIRST_STRIPE].to_vec();
            item.payload[SECOND_STRIPE].copy_from_slice(&first);
            changed += 1;
        }
    });
    assert!(changed > 0, "nodes have two copies");
    is_only_read("copies at one place", device, "claim the same bytes");
}

/// A copy of one chunk lay over another chunk, so writes and repairs of the first chunk overwrote
/// the second chunk.
#[test]
fn a_copy_lies_over_another_chunk() {
    let data = first_data(&sample::ours()).to_le_bytes();
    let device = edited(&sample::ours(), |_, items| {
        let chunks = items.iter_mut().filter(|item| item.key.kind == Kind::CHUNK_ITEM);
        for item in chunks.filter(|item| item.payload.len() >= SECOND_STRIPE.end) {
            item.payload[SECOND_STRIPE].copy_from_slice(&data);
        }
    });
    is_only_read("a copy over another chunk", device, "claim the same bytes");
}

/// The superblock placed a copy of the chunk tree's own chunk over another chunk. Before the chunk
/// tree was read, the content there looked like a bad copy, and was "repaired".
#[test]
fn a_copy_of_the_superblock_lies_over_another_chunk() {
    for stripe in 0..2 {
        let image = sample::ours();
        let (device, data) = (edited(&image, |_, _| {}), first_data(&image));
        let mut bytes = vec![0; SUPERBLOCK_LEN];
        let mut len = 0;
        for offset in SUPERBLOCKS.into_iter().filter(|offset| *offset < device.len()) {
            device.read_at(offset, &mut bytes).expect("within the device");
            let mut superblock = Superblock::parse(&bytes, offset).expect("a good superblock");
            let (_, chunk) = superblock.sys_chunks.first_mut().expect("there is one");
            chunk.stripes[stripe].offset = data;
            len = usize::try_from(chunk.len).expect("a few MiB");
            device.write_at(offset, &superblock.to_bytes(offset)).expect("within the device");
        }
        is_only_read("a copy over another chunk", device.fork(), "claim the same bytes");
        let device = Arc::new(device);
        let content = || {
            let mut content = vec![0; len];
            device.read_at(data, &mut content).expect("within the device");
            content
        };
        let before = content();
        let options = MountOptions::parse("rw,noatime").expect("known options");
        let filesystem = Filesystem::open(vec![Arc::clone(&device) as Arc<dyn Device>], options);
        filesystem.expect("it is read").close().expect("there is nothing to write");
        assert!(before == content(), "copy {stripe}: nothing is written over another chunk");
    }
}

/// The device tree lacked a chunk, so the next new chunk could be placed over it.
#[test]
fn a_chunk_lies_in_unallocated_space() {
    let device = edited(&sample::ours(), |_, items| {
        items.retain(|item| item.key.kind != Kind::DEV_EXTENT);
    });
    is_only_read("unallocated chunks", device, "where the device tree knows of none");
}

/// Findings of the fuzzer, as it found them. Several groups claim more used bytes than there can
/// be, and a scrub added these bytes up. A tree's node lies in space that is recorded as free. A
/// commit put a new node there, and then mistook it for the old node. Both copies of a chunk lie at
/// one place, where a log was written twice.
#[test]
fn inputs_of_the_fuzzer() {
    let bases = buttress_hostile::sample::small_bases();
    for input in INPUTS {
        targets::image_as(&bases, input, false);
        targets::image_as(&bases, input, true);
    }
}

/// A finding from seeds: a tree has one leaf in two places. The counter of a commit's nodes added
/// the leaf at one place, and subtracted it at the other. So a sum fell below zero.
#[test]
fn inputs_from_seeds() {
    let images = sample::small();
    for seed in [9_000_002_758, 9_000_005_485, 9_000_017_467, 9_000_019_354, 9_000_020_224] {
        for behind in [false, true] {
            let (images, bytes) = (Arc::clone(&images), choices(seed, 96));
            let one = move || targets::image_as(&images, &bytes, behind);
            assert_eq!(case(&format!("seed {seed}"), one), None);
        }
    }
}

const INPUTS: &[&[u8]] = &[
    b"\x22\x7b\xcc\x4a\x85\x85\x85\x85\x85\xd0\xaf\x30\xff\xbf\x85\x10\x70\x69\xff\xff\xff\x10\xbd\xb6\x28\x36\x72\xea\x04\xff\xff\xff\xff\xff\xff\xff\x71\xd7\x0f\x00\x00\x00\x1e\x00\x19\xb0\xd3\x28\xc9\x44",
    b"\x15\x2e\xff\x7c\x1b\x56\x50\x2e\xed\x53\x0c\xa3\x45\x19\x2e\xff\xff\xff\x18\xcd\x9a\xae\xbb\xec\xf7\xa7\xc4\xca\x14\x00\x00\x00\xd2\x9a\x05\xae\xbb\xb3\x02\x6b\x07\x7d\xa6\x04\x09\x88",
    b"\xb7\x17\xb9\xa8\xa8\xa8\xb9\xb9\xb9\xb9\xb9\xb9\x5a\x5a\x5a\x5a\x5a\x5a\xb9\xb9\xb9\xb9\xb9\x7e\xf7\x23\x41\x00\x00\x6f\x49\xac\x17\xb9\xb9\xb9\xb9\x90\x90\x90\x90\x90\x90\xb9\xb9\xb9\xb9\xb2\x09\x00\x00\x00\x00\x00\x00\x00\xc4\xde\x15\x2e\xf9\xa2\x1b\x56\x50\x2e\xed\x53\x0c\xa1\x80\x3e\x14",
    b"\xa5\xaa\x88\x9a\xe0\x03\xff\xff\xff\x10\xed\x8b\x0a\x41\x5d\x00\x00\x17\x6b\xe7\xaa\x07\x2f\x1b\x91\x0a\x00\x5c\xed\x2d\xa6\x00\xe0\xe6\x1f\xad\x40\x80\x80\x80\x49\x80\x64\x7d\x2a\xff\x4a\x54\x34\x55\xa8\xff\xff\xff\x04\xfb\xfd\xff\x7a\x7a\x7a\x7a\x7a\x41\xbe\x27\x85\xb9\x30\x34\x23\xd6\xd3\xff\x86\x85\xff\x7a\x7a\x7a\x7a\xa9\x7a",
];

/// The checker accepted a chunk item with another object number, which no other code accepts. So
/// the checker found nothing wrong, and reported the repair of a block group that no other code
/// could find.
#[test]
fn the_checker_knows_the_same_chunks() {
    let input =
        b"\xa5\xaa\x88\x9a\x88\x9a\xe0\x03\xef\x33\x00\x00\x00\x61\x2d\x23\x6e\x21\x65\x15\xfb\x07\
        \xff\xdb\xa5\xaa\x87\xde\x88\xfe\x2f\x70\x38\x59\x96\xdc\x14\x2c\xc8\xdc\x55\x30\x5f\xbc\
        \x53\x93\x1e\xde\x20\xd2\x49\x51\x29";
    let images = sample::small();
    assert_eq!(case("checker", move || checker::checker(&images, input)), None);
}

/// While a volume has a log, its trees may have items of the next generation. A damaged log was
/// removed and everything was reported as repaired, but these items were errors from then on.
#[test]
fn only_logs_are_of_the_next_generation() {
    let input = b"\xff\x01\x00\x00\x0f\x41\xff\xa5\xaa\x88\x15\x00\x00\x00\x9a\x00\x9a\x9f\x98\xf7\xcb\x03\x65\x00\x98\xf7\xcb\x03\x65";
    let images = sample::small();
    assert_eq!(case("checker", move || checker::checker(&images, input)), None);
}

/// A chunk had two block groups of different lengths. The checker looked at one of them and
/// repaired the item of the other.
#[test]
fn a_chunk_has_one_block_group() {
    let input = b"\x0a\x0a\x76\x24\x00\x97\xff\x31\xff\xff\x20\x32\x00\xf7\xff\xff\xff\xff\xff\xff\x7f\xf4\x04\x10\x00\x00\x75\xff\x75\x13\xff\x2c\x2c\x2c\x2c\x2c\x2c\x2c\x75\x75\x00\x00\x00\x01\x2a\x99\x2c";
    let images = sample::small();
    assert_eq!(case("checker", move || checker::checker(&images, input)), None);
}
