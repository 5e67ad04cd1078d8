//! Reads new volumes back with the parsers. The tests in `crates/cli/tests/it` check new volumes
//! with btrfs-progs.

use buttress_block::MemoryDevice;
use buttress_format::{Header, Superblock};

use buttress_format::Timespec;

use super::*;

fn made(size: u64, options: &MakeOptions) -> (MemoryDevice, MakeReport) {
    let device = MemoryDevice::new(size);
    let report = make(&device, options).expect("a volume");
    (device, report)
}

fn superblock(device: &MemoryDevice, offset: u64) -> Superblock {
    let mut bytes = vec![0; limits::SUPER_SIZE];
    device.read_at(offset, &mut bytes).expect("read");
    Superblock::parse(&bytes, offset).expect("superblock")
}

/// Every superblock copy that fits can be parsed, and has the features that mkfs.btrfs 6.19 sets.
#[test]
fn superblocks_have_todays_features() {
    let (device, report) = made(1 << 30, &MakeOptions::default());
    for offset in [64 << 10, 64 << 20] {
        let superblock = superblock(&device, offset);
        assert_eq!(superblock.incompat.0, 0x361);
        assert_eq!(superblock.compat_ro.0, 0xb);
        assert_eq!(superblock.total_bytes, 1 << 30);
        assert_eq!(superblock.bytes_used, report.bytes_used);
    }
}

/// K1: both copies of the chunk tree's root have right checksums.
#[test]
fn both_copies_of_the_chunk_root_are_whole() {
    for nodesize in [4096, 16384, 65536] {
        let options = MakeOptions { nodesize, ..MakeOptions::default() };
        let (device, _) = made(512 << 20, &options);
        let superblock = superblock(&device, 64 << 10);
        let (_, chunk) = &superblock.sys_chunks[0];
        assert_eq!(chunk.stripes.len(), 2);
        for stripe in &chunk.stripes {
            let mut node = vec![0; nodesize as usize];
            let within = superblock.chunk_root.0 - chunk.logical.0;
            device.read_at(stripe.offset + within, &mut node).expect("read");
            let header = Header::parse(&node).expect("header");
            assert_eq!(header.bytenr, superblock.chunk_root);
            assert_eq!(options.csum.digest(&node[32..]), header.csum);
        }
    }
}

/// K2: in a chunk that begins at the second superblock, nodes leave the superblock's range free.
#[test]
fn nodes_give_way_to_superblocks() {
    // The second metadata copy begins at 64 MiB for this size.
    let size = 780 << 20;
    let options = MakeOptions::default();
    let layout = Layout::plan(&[size], &[[0; 16]], &options).expect("layout");
    assert_eq!(layout.metadata.chunk.stripes[1].offset, 64 << 20);
    let first = layout.metadata.node_addresses(options.nodesize, 1)[0];
    assert_eq!(first.0, layout.metadata.chunk.logical.0 + limits::STRIPE_LEN);
    let (device, _) = made(size, &options);
    superblock(&device, 64 << 20);
}

/// The same seed and time make the same bytes.
#[test]
fn a_seed_makes_the_same_volume() {
    let options = MakeOptions {
        seed: Some(7),
        time: Some(Timespec { sec: 1, nsec: 2 }),
        ..MakeOptions::default()
    };
    let bytes = || {
        let (device, _) = made(128 << 20, &options);
        let mut bytes = vec![0; 32 << 20];
        device.read_at(0, &mut bytes).expect("read");
        bytes
    };
    assert!(bytes() == bytes());
}

/// Impossible options are refused before the device is changed.
#[test]
fn refusals_touch_nothing() {
    let refused = [
        (1 << 20, MakeOptions::default()),
        (1 << 30, MakeOptions { nodesize: 12345, ..MakeOptions::default() }),
        (1 << 30, MakeOptions { data: Some(Profile::Raid1), ..MakeOptions::default() }),
        (1 << 30, MakeOptions { size: Some(2 << 30), ..MakeOptions::default() }),
        (1 << 30, MakeOptions { label: vec![b'x'; 256], ..MakeOptions::default() }),
    ];
    for (len, options) in refused {
        let device = MemoryDevice::new(len);
        device.write_at(64 << 10, b"precious").expect("write");
        assert!(make(&device, &options).is_err(), "{options:?}");
        let mut kept = [0; 8];
        device.read_at(64 << 10, &mut kept).expect("read");
        assert_eq!(&kept, b"precious");
    }
}

/// Features have the names of btrfs-progs. A feature that needs another feature is refused without
/// that feature.
#[test]
fn feature_lists() {
    let features = Features::parse("^block-group-tree, no-holes").expect("list");
    assert!(!features.block_group_tree && features.no_holes);
    let unknown = Features::parse("quota").expect_err("unknown").to_string();
    assert!(unknown.contains("block-group-tree"), "{unknown}");
    assert!(Features::parse("^free-space-tree").is_err());
    assert!(!Features::default().raid_stripe_tree);
    let striped = Features::parse("raid-stripe-tree").expect("list");
    let parts: Vec<_> = (0..3).map(|_| MemoryDevice::new(256 << 20)).collect();
    let parts: Vec<_> = parts.iter().map(|device| device as &dyn Device).collect();
    let data = Some(Profile::Raid5);
    let options = MakeOptions { data, features: striped, ..MakeOptions::default() };
    let refused = make_on(&parts, &options).expect_err("parity").to_string();
    assert!(refused.contains("raid-stripe-tree"), "{refused}");
}
