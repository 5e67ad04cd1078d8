//! Mending what is safe to mend.
//!
//! # Invariants
//!
//! - **M1** What is written follows from what was read and found right: sums from extents that are
//!   in order, a superblock from a good copy. Nothing is guessed. Nothing is written for a volume
//!   with damage of any other kind than those mended here, except copies of the superblock.
//! - **M2** A superblock is written by patching the bytes of a good copy. So fields that this
//!   program does not know stay as they are.
//! - **M3** Nodes are durable before the superblock.
//!
//! # Failure
//!
//! Sums of block groups are changed where they lie. A crash in the middle of that write can tear
//! the copies of one node; with nodes in two copies run `scrub` afterwards, and do not cut the
//! power.

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_base::AlignedBuf;
use buttress_block::Device;
use buttress_format::limits::{SUPER_OFFSETS, SUPER_SIZE};
use buttress_format::{
    BlockGroupItem, CompatRo, CsumType, Extent, Generation, Key, Kind, Logical, RootItem,
    Superblock, TreeId, header,
};
use buttress_tree::{Cursor, Geometry, Node, NodePtr, Store, boot};
use buttress_volume::{OpenOptions, Volume};
use serde::Serialize;

use crate::error::Result;
use crate::issue::{Issue, Severity};
use crate::report::Report;

/// What was done, and what was not, in sentences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Repairs {
    /// What was changed on the devices.
    pub done: Vec<String>,
    /// What is wrong and was left alone, and why.
    pub left: Vec<String>,
}

/// Where fields lie in a superblock.
const BYTENR_AT: usize = 48;
const LOG_ROOT_AT: usize = 96;
const LOG_LEVEL_AT: usize = 200;
const BYTES_USED_AT: usize = 120;
const COMPAT_RO_AT: usize = 180;

const CACHE_BYTES: u64 = 8 << 20;

/// Mends what `report` found on these devices, which must be open for writing, alone. Check again
/// afterwards.
///
/// # Errors
///
/// When a device fails or may not be written. What was written until then was right by itself.
pub fn repair(devices: &[Arc<dyn Device>], report: &Report) -> Result<Repairs> {
    let mut repairs = Repairs::default();
    let plan = Plan::of(report);
    if !plan.others.is_empty() {
        let codes = plan.others.join(", ");
        repairs.left.push(format!("{codes}: there is no safe repair; copy what is readable"));
    }
    if plan.others.is_empty() && !plan.groups.is_empty() {
        let written = write_groups(devices, &plan.groups)?;
        for (group, used) in &plan.groups {
            match written.contains(group) {
                true => repairs.done.push(format!("block group {group}: {used} bytes used")),
                false => repairs.left.push(format!("block group {group}: its item was not found")),
            }
        }
    }
    let is_trusted = plan.others.is_empty();
    let changes = plan.changes(is_trusted, &mut repairs);
    if plan.copies || !changes.is_empty() {
        for device in devices {
            write_superblocks(&**device, &changes)?;
        }
        if plan.copies {
            repairs.done.push("superblocks: every copy is as the newest".to_owned());
        }
    }
    Ok(repairs)
}

/// What there is to do.
#[derive(Default)]
struct Plan {
    copies: bool,
    log: bool,
    free_space: bool,
    groups: Vec<(Logical, u64)>,
    bytes_used: Option<u64>,
    /// Codes of what cannot be mended.
    others: Vec<&'static str>,
}

/// A change of a superblock: where, and the bytes.
type Change = (usize, Vec<u8>);

impl Plan {
    fn of(report: &Report) -> Self {
        let mut plan = Self::default();
        for issue in &report.issues {
            match issue {
                Issue::SuperCopyDamaged { .. }
                | Issue::SuperCopyMissing { .. }
                | Issue::SuperCopyStale { .. }
                | Issue::SuperCopyMismatch { .. } => plan.copies = true,
                Issue::LogDamaged { .. } => plan.log = true,
                Issue::FreeSpaceInfoMissing { .. }
                | Issue::FreeSpaceMismatch { .. }
                | Issue::FreeSpaceCount { .. } => plan.free_space = true,
                Issue::ItemMalformed { tree: TreeId::FREE_SPACE, .. } => plan.free_space = true,
                Issue::BlockGroupUsed { group, expected, .. } => {
                    plan.groups.push((*group, *expected));
                }
                Issue::SuperField { field: "bytes_used", expected, .. } => {
                    plan.bytes_used = Some(*expected);
                }
                other
                    if other.severity() == Severity::Error
                        && !plan.others.contains(&other.code()) =>
                {
                    plan.others.push(other.code());
                }
                _ => {}
            }
        }
        plan
    }

    /// What changes in the superblock; without trust in the extents only what does not rest on
    /// them.
    fn changes(&self, is_trusted: bool, repairs: &mut Repairs) -> Vec<Change> {
        let mut changes: Vec<Change> = Vec::new();
        if self.log {
            changes.push((LOG_ROOT_AT, vec![0; 8]));
            changes.push((LOG_LEVEL_AT, vec![0]));
            repairs
                .done
                .push("log: removed; what fsync wrote after the last commit is gone".into());
        }
        if let Some(used) = self.bytes_used.filter(|_| is_trusted) {
            changes.push((BYTES_USED_AT, used.to_le_bytes().to_vec()));
            repairs.done.push(format!("superblock: {used} bytes used"));
        }
        if self.free_space && is_trusted {
            changes.push((COMPAT_RO_AT, Vec::new()));
            let what = "free-space tree: marked invalid; the next mount for writing makes it anew";
            repairs.done.push(what.to_owned());
        }
        changes
    }
}

/// Writes every copy of a device's superblock from its newest good one, with changes (M2).
fn write_superblocks(device: &dyn Device, changes: &[Change]) -> Result<()> {
    let mut best: Option<(Generation, CsumType, Vec<u8>, u64)> = None;
    for (mirror, offset) in SUPER_OFFSETS.into_iter().enumerate() {
        let Ok(copy) = Volume::read_superblock_mirror(device, mirror) else { continue };
        if best.as_ref().is_none_or(|(generation, ..)| copy.generation > *generation) {
            let mut bytes = vec![0; SUPER_SIZE];
            device.read_at(offset, &mut bytes)?;
            let end = copy.dev_item.total_bytes.min(device.len());
            best = Some((copy.generation, copy.csum_type, bytes, end));
        }
    }
    // Opening the volume found one.
    let Some((_, csum, mut bytes, end)) = best else { return Ok(()) };
    for (at, new) in changes {
        if *at == COMPAT_RO_AT {
            let mut flags = [0; 8];
            flags.copy_from_slice(&bytes[*at..*at + 8]);
            let flags = CompatRo(u64::from_le_bytes(flags));
            let flags = flags.without(CompatRo::FREE_SPACE_TREE_VALID);
            bytes[*at..*at + 8].copy_from_slice(&flags.0.to_le_bytes());
        } else {
            bytes[*at..*at + new.len()].copy_from_slice(new);
        }
    }
    for (mirror, offset) in SUPER_OFFSETS.into_iter().enumerate() {
        if mirror > 0 && offset + SUPER_SIZE as u64 >= end {
            continue;
        }
        bytes[BYTENR_AT..BYTENR_AT + 8].copy_from_slice(&offset.to_le_bytes());
        let digest = csum.digest(&bytes[32..]);
        bytes[..32].copy_from_slice(&digest);
        device.write_at(offset, &bytes)?;
        // One after the other: a power cut tears one copy at the most.
        device.flush()?;
    }
    Ok(())
}

/// Writes what block groups use into their items; answers which it found.
fn write_groups(
    devices: &[Arc<dyn Device>],
    groups: &[(Logical, u64)],
) -> Result<BTreeSet<Logical>> {
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    let (volume, superblock) = Volume::open(devices.to_vec(), options)?;
    let volume = Arc::new(volume);
    let geometry = Geometry::of(&superblock);
    let store = Store::new(Arc::clone(&volume), geometry, CACHE_BYTES);
    boot::load_chunks(&store, &superblock)?;
    let (tree, root) = group_tree(&store, &superblock)?;
    let mut written = BTreeSet::new();
    for &(start, used) in groups {
        let Some(chunk) = volume.chunk_at(start) else { continue };
        let extent = Extent::new(start, chunk.len);
        let key = Key::new(extent.start.0, Kind::BLOCK_GROUP_ITEM, extent.len);
        // Several may lie in one leaf: what was written is read again.
        let fresh = Store::new(Arc::clone(&volume), geometry, 0);
        let found = Cursor::find(&fresh, tree, root, &key)?;
        let Some((node, slot)) = found else { continue };
        let Ok(item) = BlockGroupItem::parse(node.item(slot)) else { continue };
        let bytes = with_item(&node, slot, &BlockGroupItem { used, ..item }, geometry.csum);
        volume.write(node.logical(), &bytes)?;
        written.insert(start);
    }
    volume.flush()?;
    Ok(written)
}

fn group_tree(store: &Store, superblock: &Superblock) -> Result<(TreeId, NodePtr)> {
    let has_own = superblock.compat_ro.has(CompatRo::BLOCK_GROUP_TREE);
    let tree = if has_own { TreeId::BLOCK_GROUP } else { TreeId::EXTENT };
    let from = Key::new(tree.0, Kind::ROOT_ITEM, 0);
    let root = boot::root_tree_root(superblock);
    let cursor = Cursor::seek(store, TreeId::ROOT, root, &from)?;
    let item = cursor.item().and_then(|bytes| RootItem::parse(bytes).ok());
    let item = item.ok_or(buttress_tree::Error::NoTree(tree))?;
    let ptr = NodePtr { logical: item.bytenr, generation: item.generation, level: item.level };
    Ok((tree, ptr))
}

/// A leaf's bytes with one item of the same length exchanged, and their checksum.
fn with_item(node: &Node, slot: usize, item: &BlockGroupItem, csum: CsumType) -> AlignedBuf {
    let mut bytes = AlignedBuf::copy_of(node.bytes());
    let at = header::HEADER_LEN + slot * header::ITEM_LEN + 17;
    let mut offset = [0; 4];
    offset.copy_from_slice(&bytes[at..at + 4]);
    let start = header::HEADER_LEN + u32::from_le_bytes(offset) as usize;
    let new = item.to_bytes();
    bytes[start..start + new.len()].copy_from_slice(&new);
    let digest = csum.digest(&bytes[32..]);
    bytes[..32].copy_from_slice(&digest);
    bytes
}
