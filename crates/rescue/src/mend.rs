//! Repairs that make a volume usable again. Each write is listed before it is made.
//!
//! # Invariants
//!
//! - **ME1** The written bytes follow from bytes that were read and found right. Nothing is
//!   guessed.
//! - **ME2** A superblock is written by patching the bytes of a good copy. So fields that this
//!   program does not know stay as they are.
//! - **ME3** Nodes are durable before superblocks, and superblocks are written one after the other:
//!   a power cut tears at most one superblock.

use std::sync::Arc;

use buttress_base::AlignedBuf;
use buttress_block::Device;
use buttress_format::limits::{SUPER_OFFSETS, SUPER_SIZE};
use buttress_format::{Chunk, CompatRo, DeviceItem, Kind, Logical, Superblock, TreeId, header};
use buttress_tree::{Node, boot};
use buttress_volume::Volume;

use crate::chunk_recover::chunk_recover;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::salvage::{Salvage, SalvageOptions};
use crate::tree::Leaves;

/// Offsets of fields in a superblock.
const BYTENR_AT: usize = 48;
const LOG_ROOT_AT: usize = 96;
const TOTAL_BYTES_AT: usize = 112;
const COMPAT_RO_AT: usize = 180;
const LOG_LEVEL_AT: usize = 200;
const DEV_ITEM_AT: usize = 201;
const CACHE_GENERATION_AT: usize = 555;
/// The offset of the size in a device item.
const DEV_SIZE_AT: usize = 8;

/// The repair to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mend {
    /// Rewrites damaged and old copies of superblocks from the newest good copy of the same device.
    SuperRecover,
    /// Removes the log of fsync. Data that was synced after the last commit is lost.
    ZeroLog,
    /// Rounds sizes of devices down to whole sectors, limits them to the real size of the device,
    /// and corrects their sum.
    FixDeviceSize,
    /// Makes mounts ignore the free-space cache of version 1, which lies in files.
    ClearSpaceCacheV1,
    /// Marks the free-space tree (version 2) as invalid. The next mount for writing rebuilds it.
    ClearSpaceCacheV2,
    /// Rewrites the chunk tree from nodes that a scan finds.
    ChunkRecover,
}

/// One change of the devices, which has not been made yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// A description of the change, in one line.
    pub what: String,
    /// The index of the device, the offset in bytes, and the bytes to write.
    pub(crate) writes: Vec<(usize, u64, Vec<u8>)>,
}

/// A good copy of a superblock.
pub(crate) struct Copy {
    pub(crate) superblock: Superblock,
    bytes: Vec<u8>,
}

/// Lists the repairs that are needed. Writes nothing. Reports progress where the devices are
/// scanned. A volume that has to be assembled is opened with `options`.
///
/// # Errors
///
/// When the devices hold no volume, or `mend` cannot repair the damage, or `progress` does not go
/// on.
pub fn plan(
    devices: &[Arc<dyn Device>],
    mend: Mend,
    options: SalvageOptions,
    progress: Arc<dyn Progress + Send>,
) -> Result<Vec<Fix>> {
    let fixes = match mend {
        Mend::SuperRecover => Ok(super_recover(devices)),
        Mend::ZeroLog => {
            let has_log = |superblock: &Superblock| superblock.log_root.0 != 0;
            let what = "the log of fsync is removed";
            Ok(patch_all(devices, what, has_log, &|bytes| {
                bytes[LOG_ROOT_AT..LOG_ROOT_AT + 8].fill(0);
                bytes[LOG_LEVEL_AT] = 0;
            }))
        }
        Mend::ClearSpaceCacheV1 => {
            let has_files = |superblock: &Superblock| {
                let in_tree = superblock.compat_ro.has(CompatRo::FREE_SPACE_TREE);
                !in_tree && superblock.cache_generation != 0
            };
            let what = "free space in files is not used any more";
            Ok(patch_all(devices, what, has_files, &|bytes| {
                bytes[CACHE_GENERATION_AT..CACHE_GENERATION_AT + 8].fill(0);
            }))
        }
        Mend::ClearSpaceCacheV2 => {
            let is_valid =
                |superblock: &Superblock| superblock.compat_ro.has(CompatRo::FREE_SPACE_TREE_VALID);
            let what = "the free-space tree is marked invalid, and made anew by the next mount";
            Ok(patch_all(devices, what, is_valid, &|bytes| {
                let flags = CompatRo(number(bytes, COMPAT_RO_AT));
                let flags = flags.without(CompatRo::FREE_SPACE_TREE_VALID);
                bytes[COMPAT_RO_AT..COMPAT_RO_AT + 8].copy_from_slice(&flags.0.to_le_bytes());
            }))
        }
        Mend::FixDeviceSize => fix_device_size(devices, options, Arc::clone(&progress)),
        Mend::ChunkRecover => chunk_recover(devices, options, Arc::clone(&progress)),
    };
    // A scan that was stopped found only a part of the nodes.
    if !progress.goes_on() {
        return Err(Error::NotRepairable("stopped before the end, and nothing was written"));
    }
    fixes
}

/// Makes changes that [`plan`] listed.
///
/// # Errors
///
/// When a device cannot be written.
pub fn apply(devices: &[Arc<dyn Device>], fixes: &[Fix]) -> Result<()> {
    for (index, offset, bytes) in fixes.iter().flat_map(|fix| &fix.writes) {
        let Some(device) = devices.get(*index) else { continue };
        let written = device.write_at(*offset, bytes).and_then(|()| device.flush());
        written.map_err(|source| Error::Device { device: device.name(), source })?;
    }
    Ok(())
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// The good copies of a device, by their number.
pub(crate) fn copies(device: &dyn Device) -> Vec<(usize, Copy)> {
    let read = |mirror: usize| {
        let superblock = Volume::read_superblock_mirror(device, mirror).ok()?;
        let mut bytes = vec![0; SUPER_SIZE];
        device.read_at(SUPER_OFFSETS[mirror], &mut bytes).ok()?;
        Some((mirror, Copy { superblock, bytes }))
    };
    (0..SUPER_OFFSETS.len()).filter_map(read).collect()
}

/// Returns the bytes of a superblock for copy `mirror`, with a change.
fn patched(copy: &Copy, mirror: usize, change: &dyn Fn(&mut [u8])) -> Vec<u8> {
    let mut bytes = copy.bytes.clone();
    change(&mut bytes);
    bytes[BYTENR_AT..BYTENR_AT + 8].copy_from_slice(&SUPER_OFFSETS[mirror].to_le_bytes());
    let digest = copy.superblock.csum_type.digest(&bytes[32..]);
    bytes[..32].copy_from_slice(&digest);
    bytes
}

/// Changes every copy that needs the change.
fn patch_all(
    devices: &[Arc<dyn Device>],
    what: &str,
    needs: impl Fn(&Superblock) -> bool,
    change: &dyn Fn(&mut [u8]),
) -> Vec<Fix> {
    let mut fixes = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        for (mirror, copy) in copies(&**device) {
            if needs(&copy.superblock) {
                let offset = SUPER_OFFSETS[mirror];
                let what = format!("{}: superblock at {offset}: {what}", device.name());
                let writes = vec![(index, offset, patched(&copy, mirror, change))];
                fixes.push(Fix { what, writes });
            }
        }
    }
    fixes
}

fn super_recover(devices: &[Arc<dyn Device>]) -> Vec<Fix> {
    let mut fixes = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let found = copies(&**device);
        let best = found
            .iter()
            .max_by_key(|(mirror, copy)| (copy.superblock.generation, std::cmp::Reverse(*mirror)));
        let Some((from, best)) = best else { continue };
        let end = best.superblock.dev_item.total_bytes.min(device.len());
        for (mirror, offset) in SUPER_OFFSETS.into_iter().enumerate() {
            if mirror > 0 && offset + SUPER_SIZE as u64 >= end {
                continue;
            }
            let there = found.iter().find(|(number, _)| *number == mirror);
            let wrong = match there {
                None => "damaged".to_owned(),
                Some((_, copy)) if copy.superblock.generation < best.superblock.generation => {
                    format!("of generation {}", copy.superblock.generation)
                }
                Some(_) => continue,
            };
            let what = format!(
                "{}: superblock at {offset} is {wrong}: it is written as the one at {}, of \
                 generation {}",
                device.name(),
                SUPER_OFFSETS[*from],
                best.superblock.generation
            );
            let writes = vec![(index, offset, patched(best, mirror, &|_| {}))];
            fixes.push(Fix { what, writes });
        }
    }
    fixes
}

/// Returns where the copies of a node lie: the index of the device and the offset on it. Returns
/// `None` if the chunk is striped or one of its devices is missing.
pub(crate) fn places(
    devices: &[Arc<dyn Device>],
    chunk: &Chunk,
    at: Logical,
) -> Option<Vec<(usize, u64)>> {
    if chunk.data_stripes() != 1 {
        return None;
    }
    let within = at.distance(chunk.logical);
    let mut places = Vec::new();
    for stripe in &chunk.stripes {
        let is_it = |device: &&Arc<dyn Device>| {
            let copies = copies(&***device);
            copies.iter().any(|(_, copy)| copy.superblock.dev_item.devid == stripe.device)
        };
        let index = devices.iter().position(|device| is_it(&device))?;
        places.push((index, stripe.offset + within));
    }
    Some(places)
}

fn fix_device_size(
    devices: &[Arc<dyn Device>],
    options: SalvageOptions,
    progress: Arc<dyn Progress + Send>,
) -> Result<Vec<Fix>> {
    let salvage = Salvage::open(devices.to_vec(), options, progress)?;
    let superblock = salvage.superblock();
    let sector = u64::from(superblock.sectorsize);
    let chunk_root = boot::chunk_root(superblock);
    let tree = Leaves::walk(&salvage, TreeId::CHUNK, chunk_root, None);
    let mut ends: Vec<(u64, u64)> = Vec::new();
    let gaps = tree.all(&salvage, &mut |key, bytes| {
        if key.kind == Kind::CHUNK_ITEM
            && let Ok(chunk) = Chunk::parse(&key, bytes)
        {
            let len = chunk.stripe_bytes();
            ends.extend(chunk.stripes.iter().map(|at| (at.device.0, at.offset + len)));
        }
    });
    if !gaps.is_empty() {
        return Err(Error::NotRepairable(
            "a part of the chunk tree is lost: chunk-recover goes first",
        ));
    }
    let len_of = |id: u64| {
        let is_it = |device: &&Arc<dyn Device>| {
            copies(&***device).iter().any(|(_, copy)| copy.superblock.dev_item.devid.0 == id)
        };
        devices.iter().find(is_it).map(|device| device.len())
    };
    let (mut fixes, mut sum, mut sizes) = (Vec::new(), 0_u64, Vec::new());
    for leaf in tree.leaves() {
        let node = tree.read(&salvage, leaf).map_err(|_| Error::NothingFound)?;
        let mut bytes = AlignedBuf::copy_of(node.bytes());
        let mut lines = Vec::new();
        for slot in (0..node.len()).filter(|slot| node.key(*slot).kind == Kind::DEV_ITEM) {
            let Ok(item) = DeviceItem::parse(node.item(slot)) else { continue };
            let id = item.devid.0;
            let room = len_of(id).unwrap_or(item.total_bytes).min(item.total_bytes);
            let right = room / sector * sector;
            let least = ends.iter().filter(|(device, _)| *device == id).map(|(_, end)| *end).max();
            if least.is_some_and(|end| end > right) {
                return Err(Error::NotRepairable("a device is shorter than what lies on it"));
            }
            sum = sum.saturating_add(right);
            sizes.push((id, right));
            if right != item.total_bytes {
                let at = item_at(&node, slot) + DEV_SIZE_AT;
                bytes[at..at + 8].copy_from_slice(&right.to_le_bytes());
                lines.push(format!("device {id} has {right} bytes, not {}", item.total_bytes));
            }
        }
        if lines.is_empty() {
            continue;
        }
        let digest = salvage.geometry.csum.digest(&bytes[32..]);
        bytes[..32].copy_from_slice(&digest);
        let at = node.logical();
        let chunk = salvage.volume.chunk_at(at).ok_or(Error::NothingFound)?;
        let places = places(devices, &chunk, at);
        let places = places.ok_or(Error::NotRepairable(
            "the chunk tree is striped, or on a device that is missing",
        ))?;
        let writes = places.into_iter().map(|(index, at)| (index, at, bytes.to_vec()));
        fixes.push(Fix { what: lines.join("; "), writes: writes.collect() });
    }
    let own = |superblock: &Superblock| {
        let id = superblock.dev_item.devid.0;
        sizes.iter().find(|(device, _)| *device == id).map(|(_, size)| *size)
    };
    let is_wrong = |superblock: &Superblock| {
        superblock.total_bytes != sum
            || own(superblock).is_some_and(|size| size != superblock.dev_item.total_bytes)
    };
    for (index, device) in devices.iter().enumerate() {
        for (mirror, copy) in copies(&**device) {
            if !is_wrong(&copy.superblock) {
                continue;
            }
            let size = own(&copy.superblock);
            let bytes = patched(&copy, mirror, &|bytes| {
                bytes[TOTAL_BYTES_AT..TOTAL_BYTES_AT + 8].copy_from_slice(&sum.to_le_bytes());
                if let Some(size) = size {
                    let at = DEV_ITEM_AT + DEV_SIZE_AT;
                    bytes[at..at + 8].copy_from_slice(&size.to_le_bytes());
                }
            });
            let offset = SUPER_OFFSETS[mirror];
            let what = format!("{}: superblock at {offset}: {sum} bytes in all", device.name());
            fixes.push(Fix { what, writes: vec![(index, offset, bytes)] });
        }
    }
    Ok(fixes)
}

fn item_at(node: &Node, slot: usize) -> usize {
    let at = header::HEADER_LEN + slot * header::ITEM_LEN + 17;
    let mut offset = [0; 4];
    offset.copy_from_slice(&node.bytes()[at..at + 4]);
    header::HEADER_LEN + u32::from_le_bytes(offset) as usize
}
