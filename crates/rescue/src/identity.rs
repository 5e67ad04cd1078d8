//! Identifies the volume, from any good copy of a superblock or from nodes alone.

use std::sync::Arc;

use buttress_block::{Content, Device};
use buttress_format::{
    CompatRo, CsumType, DeviceId, DeviceItem, Generation, Incompat, Logical, RootBackup,
    Superblock, TreeId, limits,
};
use buttress_tree::Geometry;
use buttress_volume::Volume;

use crate::error::{Error, Result};
use crate::scan::{self, Scan};

/// Number of nodes with the same geometry that are enough evidence.
const ENOUGH: u32 = 3;

/// A device, and the newest superblock on it that is whole.
pub(crate) struct Part {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) superblock: Option<Superblock>,
}

impl Part {
    /// Reads all superblock copies of a device.
    pub(crate) fn read(device: Arc<dyn Device>) -> Self {
        let copies = 0..limits::SUPER_OFFSETS.len();
        let copies = copies.filter_map(|mirror| {
            let copy = Volume::read_superblock_mirror(&*device, mirror);
            copy.inspect_err(|error| tracing::debug!(%error, mirror, "no superblock")).ok()
        });
        // Of copies with the same generation the first is used.
        let superblock =
            copies.reduce(|best, next| if next.generation > best.generation { next } else { best });
        Self { device, superblock }
    }
}

/// The newest superblock of all. Of two with the same generation, the one with a log of fsync is
/// newer: a log is named only in the first copy of each device, and that copy may be lost on some.
///
/// # Errors
///
/// When two devices belong to different volumes.
pub(crate) fn newest(parts: &[Part]) -> Result<Option<Superblock>> {
    let mut newest: Option<&Superblock> = None;
    for part in parts {
        let Some(superblock) = &part.superblock else { continue };
        if let Some(best) = newest {
            if best.tree_fsid() != superblock.tree_fsid() {
                return Err(Error::Foreign { device: part.device.name() });
            }
            let age = |it: &Superblock| (it.generation, it.log_root != Logical(0));
            if age(best) >= age(superblock) {
                continue;
            }
        }
        newest = Some(superblock);
    }
    Ok(newest.cloned())
}

/// Finds the node size, the checksum type and the filesystem identifier from nodes on the devices.
pub(crate) fn geometry(devices: &[Arc<dyn Device>]) -> Result<Geometry> {
    let mut counts: Vec<(Geometry, u32)> = Vec::new();
    for device in devices {
        let mut window = vec![0; 1 << 20];
        let mut at = 0;
        while at < device.len() {
            let want = (window.len() as u64).min(device.len() - at);
            let next = device.extent_at(at, want);
            if let Ok(extent) = next
                && extent.content == Content::Hole
                && extent.len >= 4096
            {
                at += extent.len / 4096 * 4096;
                continue;
            }
            let bytes = &mut window[..want as usize];
            if device.read_at(at, bytes).is_ok() {
                for start in (0..bytes.len()).step_by(4096) {
                    let Some(found) = guess(&bytes[start..]) else { continue };
                    let same = |count: &&mut (Geometry, u32)| is_same(&count.0, &found);
                    match counts.iter_mut().find(same) {
                        Some((_, count)) => *count += 1,
                        None => counts.push((found, 1)),
                    }
                }
            }
            if let Some((found, _)) = counts.iter().find(|(_, count)| *count >= ENOUGH) {
                return Ok(*found);
            }
            // Windows overlap, so that each node lies completely within one window.
            at += want.max(limits::NODE_MAX.into()) - u64::from(limits::NODE_MAX) + 4096;
        }
    }
    let best = counts.into_iter().max_by_key(|(_, count)| *count);
    best.map(|(geometry, _)| geometry).ok_or(Error::NothingFound)
}

fn is_same(one: &Geometry, other: &Geometry) -> bool {
    (one.nodesize, one.csum, one.fsid) == (other.nodesize, other.csum, other.fsid)
}

/// The geometry with which the bytes are a valid node; `None` if no geometry fits.
fn guess(bytes: &[u8]) -> Option<Geometry> {
    let header = buttress_format::Header::parse(bytes).ok()?;
    let may_be = header.backref_rev == buttress_format::header::BACKREF_REV_MIXED
        && header.level < limits::MAX_LEVEL
        && header.bytenr.0.is_multiple_of(4096)
        && header.fsid != [0; 16];
    if !may_be {
        return None;
    }
    let csums = [CsumType::Crc32c, CsumType::Xxhash64, CsumType::Sha256, CsumType::Blake2b];
    for nodesize in [16 << 10, 4 << 10, 8 << 10, 32 << 10, 64 << 10] {
        let Some(node) = bytes.get(..nodesize as usize) else { continue };
        for csum in csums {
            let geometry = Geometry {
                nodesize,
                sectorsize: 4096,
                csum,
                fsid: header.fsid,
                seeds: buttress_volume::SeedIds::NONE,
                chunk_tree_uuid: header.chunk_tree_uuid,
            };
            if scan::inspect(node, &geometry).is_some() {
                return Some(geometry);
            }
        }
    }
    None
}

/// Makes a superblock from the facts in nodes. It has no system chunks and no label.
pub(crate) fn superblock_from_nodes(geometry: &Geometry, found: &Scan) -> Result<Superblock> {
    let any = Generation(u64::MAX);
    let root = found.newest_top(TreeId::ROOT, any);
    let chunk = found.newest_top(TreeId::CHUNK, any);
    let newest = found.nodes.iter().map(|node| node.generation).max();
    let generation = root.map(|root| root.generation).or(newest).ok_or(Error::NothingFound)?;
    Ok(Superblock {
        csum_type: geometry.csum,
        fsid: geometry.fsid,
        bytenr: limits::SUPER_OFFSETS[0],
        flags: 0,
        generation,
        root: root.map_or(Logical(0), |root| root.logical),
        chunk_root: chunk.map_or(Logical(0), |root| root.logical),
        log_root: Logical(0),
        log_root_transid: 0,
        total_bytes: 0,
        bytes_used: 0,
        root_dir_objectid: 6,
        num_devices: 1,
        sectorsize: geometry.sectorsize,
        nodesize: geometry.nodesize,
        stripesize: geometry.sectorsize,
        chunk_root_generation: chunk.map_or(Generation(0), |root| root.generation),
        compat: 0,
        compat_ro: CompatRo(0),
        incompat: Incompat(0),
        root_level: root.map_or(0, |root| root.level),
        chunk_root_level: chunk.map_or(0, |root| root.level),
        log_root_level: 0,
        dev_item: item(DeviceId(0), 0, [0; 16], geometry.fsid),
        label: [0; 256],
        cache_generation: 0,
        uuid_tree_generation: 0,
        metadata_uuid: geometry.fsid,
        nr_global_roots: 0,
        sys_chunks: Vec::new(),
        backups: [RootBackup::default(); 4],
    })
}

/// The item of a device without a superblock, with the known fields.
pub(crate) fn item(devid: DeviceId, len: u64, uuid: [u8; 16], fsid: [u8; 16]) -> DeviceItem {
    DeviceItem {
        devid,
        total_bytes: len,
        bytes_used: 0,
        io_align: 4096,
        io_width: 4096,
        sector_size: 4096,
        kind: 0,
        generation: Generation(0),
        start_offset: 0,
        dev_group: 0,
        seek_speed: 0,
        bandwidth: 0,
        uuid,
        fsid,
    }
}
