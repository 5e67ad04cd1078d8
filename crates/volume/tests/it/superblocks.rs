//! Superblocks of a whole volume: each device has its own, in every copy that fits.

use std::sync::Arc;

use buttress_block::MemoryDevice;
use buttress_format::limits::SUPER_OFFSETS;
use buttress_format::{BlockGroupFlags, DeviceItem, Generation};
use buttress_volume::{Error, Volume};

use crate::builders::{CHUNK_AT, READ, WRITE, chunk, devices, open, plant, superblock};

/// Every device gets the new superblock with its own item, in every copy that fits.
#[test]
fn each_device_carries_its_own_item() {
    let chunks = [chunk(BlockGroupFlags::RAID1, CHUNK_AT, 6 << 20, &[1, 2])];
    let devices = devices(2, &chunks);
    let (volume, mut superblock) = open(&devices, WRITE).expect("a good volume");
    superblock.generation = Generation(8);
    superblock.dev_item.bytes_used = 1 << 20;
    let author = superblock.dev_item.devid;
    let here = volume.devices();
    let other = here.iter().find(|device| device.id != author).expect("two devices");
    volume.update_device(DeviceItem { bytes_used: 2 << 20, ..other.item });
    volume.write_superblocks(&superblock).expect("writable");

    for (id, device) in (1..).zip(&devices) {
        for (index, offset) in SUPER_OFFSETS.into_iter().enumerate().take(2) {
            let found = Volume::read_superblock_mirror(&**device, index).expect("written");
            assert_eq!((found.bytenr, found.generation), (offset, Generation(8)));
            assert_eq!(found.dev_item.devid.0, id);
            assert_eq!(found.dev_item.uuid, [id as u8; 16]);
            let expected = if found.dev_item.devid == author { 1 << 20 } else { 2 << 20 };
            assert_eq!(found.dev_item.bytes_used, expected, "device {id}");
        }
    }
    assert_eq!(volume.stats().flushes, 2);
}

/// The third copy is written only if both the device and its item are long enough.
#[test]
fn the_third_copy_needs_a_long_device() {
    let chunks = [chunk(BlockGroupFlags(0), CHUNK_AT, 6 << 20, &[1])];
    for (total, copies) in [(300 << 30, 3), (256 << 30, 2), ((64 << 20) + 4096, 1)] {
        let device = Arc::new(MemoryDevice::new(300 << 30));
        let mut superblock = superblock(1, 1, &chunks);
        superblock.dev_item.total_bytes = total;
        plant(&device, &superblock);
        let (volume, superblock) =
            open(std::slice::from_ref(&device), WRITE).expect("a good volume");
        volume.write_superblocks(&superblock).expect("writable");
        let found =
            (0..3).filter(|&copy| Volume::read_superblock_mirror(&*device, copy).is_ok()).count();
        assert_eq!(found, copies, "{total} bytes");
    }
}

/// A read-only volume writes no superblock.
#[test]
fn a_read_only_volume_writes_none() {
    let devices = devices(1, &[chunk(BlockGroupFlags(0), CHUNK_AT, 6 << 20, &[1])]);
    let (volume, superblock) = open(&devices, READ).expect("a good volume");
    let error = volume.write_superblocks(&superblock).expect_err("read-only");
    assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
}

/// Writing the superblock of another filesystem is a bug of the caller, and panics before any
/// write.
#[test]
#[should_panic(expected = "another filesystem")]
fn a_foreign_superblock_panics() {
    let devices = devices(1, &[chunk(BlockGroupFlags(0), CHUNK_AT, 6 << 20, &[1])]);
    let (volume, mut superblock) = open(&devices, WRITE).expect("a good volume");
    superblock.fsid[0] ^= 1;
    let _ = volume.write_superblocks(&superblock);
}
