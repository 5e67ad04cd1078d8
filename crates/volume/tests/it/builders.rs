//! Builders of superblocks, chunks and volumes that are small enough to read in a test.

use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_format::limits::{STRIPE_LEN, SUPER_OFFSETS};
use buttress_format::{
    BlockGroupFlags, Chunk, CompatRo, CsumType, DeviceId, DeviceItem, Generation, Incompat, Key,
    Kind, Logical, RootBackup, Stripe, Superblock, ids,
};
use buttress_volume::{Error, OpenOptions, Parity, Volume};

pub(crate) const DEVICE_LEN: u64 = 80 << 20;
pub(crate) const CHUNK_AT: Logical = Logical(1 << 30);
pub(crate) const FSID: [u8; 16] = *b"0123456789abcdef";
pub(crate) const WRITE: OpenOptions = OpenOptions { writable: true, ..READ };
pub(crate) const READ: OpenOptions = OpenOptions {
    writable: false,
    degraded: false,
    may_begin_writing: false,
    parity: Parity::Rows,
    repairs: false,
};

pub(crate) fn uuid(id: u64) -> [u8; 16] {
    [id as u8; 16]
}

/// A chunk of a profile over devices; a device named twice gets two stripes.
pub(crate) fn chunk(profile: BlockGroupFlags, at: Logical, len: u64, ids: &[u64]) -> Chunk {
    let stripes = ids.iter().enumerate().map(|(index, &id)| Stripe {
        device: DeviceId(id),
        offset: (2 << 20) + index as u64 * (16 << 20),
        dev_uuid: uuid(id),
    });
    Chunk {
        logical: at,
        len,
        owner: 2,
        stripe_len: STRIPE_LEN,
        flags: BlockGroupFlags::SYSTEM.with(profile),
        io_align: 65536,
        io_width: 65536,
        sector_size: 4096,
        sub_stripes: if profile == BlockGroupFlags::RAID10 { 2 } else { 1 },
        stripes: stripes.collect(),
    }
}

/// The superblock of device `id` of `count`, with the given chunks in its array.
pub(crate) fn superblock(id: u64, count: u64, chunks: &[Chunk]) -> Superblock {
    let key = |chunk: &Chunk| Key::new(ids::FIRST_CHUNK_TREE, Kind::CHUNK_ITEM, chunk.logical.0);
    Superblock {
        csum_type: CsumType::Crc32c,
        fsid: FSID,
        bytenr: SUPER_OFFSETS[0],
        flags: 1,
        generation: Generation(7),
        root: CHUNK_AT,
        chunk_root: CHUNK_AT,
        log_root: Logical(0),
        log_root_transid: 0,
        total_bytes: DEVICE_LEN * count,
        bytes_used: 0,
        root_dir_objectid: 6,
        num_devices: count,
        sectorsize: 4096,
        nodesize: 16384,
        stripesize: 4096,
        chunk_root_generation: Generation(7),
        compat: 0,
        compat_ro: CompatRo(0),
        incompat: Incompat::MIXED_BACKREF,
        root_level: 0,
        chunk_root_level: 0,
        log_root_level: 0,
        dev_item: DeviceItem {
            devid: DeviceId(id),
            total_bytes: DEVICE_LEN,
            bytes_used: 0,
            io_align: 4096,
            io_width: 4096,
            sector_size: 4096,
            uuid: uuid(id),
            fsid: FSID,
            ..DeviceItem::default()
        },
        label: [0; 256],
        cache_generation: 0,
        uuid_tree_generation: 0,
        metadata_uuid: [0; 16],
        nr_global_roots: 0,
        sys_chunks: chunks.iter().map(|chunk| (key(chunk), chunk.clone())).collect(),
        backups: [RootBackup::default(); 4],
    }
}

/// Writes the first copy of a superblock, as the tool that makes a device does.
pub(crate) fn plant(device: &MemoryDevice, superblock: &Superblock) {
    let bytes = superblock.to_bytes(SUPER_OFFSETS[0]);
    device.write_at(SUPER_OFFSETS[0], &bytes).expect("memory");
}

/// Devices 1 to `count`, each with a superblock that names `chunks`.
pub(crate) fn devices(count: u64, chunks: &[Chunk]) -> Vec<Arc<MemoryDevice>> {
    let make = |id| {
        let device = MemoryDevice::named(&format!("device-{id}"), DEVICE_LEN);
        plant(&device, &superblock(id, count, chunks));
        Arc::new(device)
    };
    (1..=count).map(make).collect()
}

/// Opens devices as a volume.
pub(crate) fn open(
    devices: &[Arc<MemoryDevice>],
    options: OpenOptions,
) -> Result<(Volume, Superblock), Error> {
    let devices = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    Volume::open(devices, options)
}

/// A writable volume of one chunk, and the devices below it.
pub(crate) fn volume(profile: BlockGroupFlags, ids: &[u64]) -> (Volume, Vec<Arc<MemoryDevice>>) {
    let count = ids.iter().max().copied().expect("at least one device");
    let devices = devices(count, &[chunk(profile, CHUNK_AT, 6 << 20, ids)]);
    let (volume, _) = open(&devices, WRITE).expect("a good volume");
    volume.has_all_chunks();
    (volume, devices)
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    buttress_base::Rng::new(seed).fill(&mut bytes);
    bytes
}
