//! Writes a new volume to its devices. The order of the writes never leaves a partial volume that
//! looks valid.

use buttress_block::Device;
use buttress_format::limits::{DEVICE_RESERVED, SUPER_OFFSETS, SUPER_SIZE};
use buttress_format::{BlockGroupFlags, Logical, RootBackup, Superblock, TreeId};
use buttress_volume::new_rows;

use super::error::MakeError;
use super::layout::Layout;
use super::nodes::{Stamp, encode};
use super::options::{FIRST, Identity, MakeOptions};
use super::trees::{self, ROOT_DIR, Tree};

/// Superblock flag: this copy has been written.
const WRITTEN: u64 = 1;

/// Removes the former content: discards the device if asked to, and overwrites the ranges by which
/// programs recognize content. These ranges are both ends of the device, and superblock copies of
/// another volume.
pub(super) fn wipe(device: &dyn Device, size: u64, discards: bool) -> Result<(), MakeError> {
    if discards {
        device.discard(0, device.len())?;
    }
    let zeros = vec![0_u8; DEVICE_RESERVED as usize];
    device.write_at(0, &zeros)?;
    let tail = device.len().saturating_sub(DEVICE_RESERVED).max(DEVICE_RESERVED);
    if tail < device.len() {
        let len = usize::try_from(device.len() - tail).expect("at most a mebibyte");
        device.write_at(tail, &zeros[..len])?;
    }
    for offset in super_offsets(size.max(device.len())) {
        device.write_at(offset, &zeros[..SUPER_SIZE])?;
    }
    Ok(device.flush()?)
}

/// Writes nodes, then superblocks; returns the bytes in use.
pub(super) fn volume(
    devices: &[&dyn Device],
    layout: &Layout,
    identity: &Identity,
    options: &MakeOptions,
    trees: &[Tree],
) -> Result<u64, MakeError> {
    let nodesize = options.nodesize;
    let mut bytes_used = 0;
    let mut with_parity: [Vec<(Logical, Vec<u8>)>; 2] = [Vec::new(), Vec::new()];
    for tree in trees {
        let stamp = Stamp { identity, csum: options.csum, nodesize, owner: tree.id };
        for (bytenr, node) in encode(&stamp, &tree.items, &tree.shape, &tree.addresses) {
            bytes_used += u64::from(nodesize);
            let placed = if tree.id == TreeId::CHUNK { &layout.system } else { &layout.metadata };
            if placed.has_parity() {
                with_parity[usize::from(tree.id == TreeId::CHUNK)].push((bytenr, node));
                continue;
            }
            for (device, offset) in placed.places(bytenr) {
                devices[device.0 as usize - 1].write_at(offset, &node)?;
            }
        }
    }
    for (placed, nodes) in [&layout.metadata, &layout.system].into_iter().zip(with_parity) {
        let rows =
            if nodes.is_empty() { Some(Vec::new()) } else { new_rows(&placed.chunk, &nodes) };
        for (device, offset, unit) in rows.expect("make::K1: the first chunk holds the first nodes")
        {
            devices[device.0 as usize - 1].write_at(offset, &unit)?;
        }
    }
    flush(devices)?;
    let superblock = superblock(bytes_used, layout, identity, options, trees);
    // Write the first copies last, because programs recognise a volume by its first copy.
    for first in [false, true] {
        for (index, device) in devices.iter().enumerate() {
            let mut own = superblock.clone();
            own.dev_item = trees::device_item(layout, identity, index);
            for offset in super_offsets(layout.sizes[index]) {
                if (offset == SUPER_OFFSETS[0]) == first {
                    device.write_at(offset, &own.to_bytes(offset))?;
                }
            }
        }
        flush(devices)?;
    }
    Ok(bytes_used)
}

fn flush(devices: &[&dyn Device]) -> Result<(), MakeError> {
    devices.iter().try_for_each(|device| Ok(device.flush()?))
}

/// Offsets of the superblock copies that fit on `size` bytes.
fn super_offsets(size: u64) -> impl Iterator<Item = u64> {
    SUPER_OFFSETS.into_iter().filter(move |offset| offset + SUPER_SIZE as u64 <= size)
}

fn superblock(
    bytes_used: u64,
    layout: &Layout,
    identity: &Identity,
    options: &MakeOptions,
    trees: &[Tree],
) -> Superblock {
    let tree =
        |id: TreeId| trees.iter().find(|tree| tree.id == id).expect("every volume has this tree");
    let size = layout.sizes.iter().sum();
    let profiles = layout.chunks().into_iter().map(|placed| placed.chunk.flags.0);
    let profiles = BlockGroupFlags(profiles.fold(0, |all, flags| all | flags));
    let devices = layout.sizes.len() as u64;
    let (root, chunk_root) = (tree(TreeId::ROOT), tree(TreeId::CHUNK));
    let mut label = [0_u8; 256];
    label[..options.label.len()].copy_from_slice(&options.label);
    Superblock {
        csum_type: options.csum,
        fsid: identity.fsid,
        bytenr: SUPER_OFFSETS[0],
        flags: WRITTEN,
        generation: FIRST,
        root: root.root(),
        chunk_root: chunk_root.root(),
        log_root: Logical(0),
        log_root_transid: 0,
        total_bytes: size,
        bytes_used,
        root_dir_objectid: ROOT_DIR,
        num_devices: devices,
        sectorsize: options.sectorsize,
        nodesize: options.nodesize,
        stripesize: options.sectorsize,
        chunk_root_generation: FIRST,
        compat: 0,
        compat_ro: options.features.compat_ro(),
        incompat: options.features.incompat(options.nodesize, options.mixed, profiles),
        root_level: root.shape.level(),
        chunk_root_level: chunk_root.shape.level(),
        log_root_level: 0,
        dev_item: trees::device_item(layout, identity, 0),
        label,
        // The volume has no v1 space cache. The UUID tree is valid as of this generation.
        cache_generation: 0,
        uuid_tree_generation: FIRST.0,
        metadata_uuid: [0; 16],
        nr_global_roots: 0,
        sys_chunks: vec![(trees::chunk_key(&layout.system), layout.system.chunk.clone())],
        backups: [
            backup(size, bytes_used, devices, &tree),
            RootBackup::default(),
            RootBackup::default(),
            RootBackup::default(),
        ],
    }
}

/// The backup of the roots, for recovery tools.
fn backup<'a>(
    size: u64,
    bytes_used: u64,
    num_devices: u64,
    tree: &impl Fn(TreeId) -> &'a Tree,
) -> RootBackup {
    let [root, chunk, extent, fs, dev, csum] =
        [TreeId::ROOT, TreeId::CHUNK, TreeId::EXTENT, TreeId::FS, TreeId::DEV, TreeId::CSUM]
            .map(tree);
    RootBackup {
        tree_root: root.root(),
        tree_root_gen: FIRST,
        chunk_root: chunk.root(),
        chunk_root_gen: FIRST,
        extent_root: extent.root(),
        extent_root_gen: FIRST,
        fs_root: fs.root(),
        fs_root_gen: FIRST,
        dev_root: dev.root(),
        dev_root_gen: FIRST,
        csum_root: csum.root(),
        csum_root_gen: FIRST,
        total_bytes: size,
        bytes_used,
        num_devices,
        tree_root_level: root.shape.level(),
        chunk_root_level: chunk.shape.level(),
        extent_root_level: extent.shape.level(),
        fs_root_level: fs.shape.level(),
        dev_root_level: dev.shape.level(),
        csum_root_level: csum.shape.level(),
    }
}
