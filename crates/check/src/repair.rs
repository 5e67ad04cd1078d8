//! Repairs problems that are safe to repair.
//!
//! # Invariants
//!
//! - **M1** Every written value follows from verified data: sums over extents without damage, or a
//!   good copy of the superblock. No value is a guess. If the volume has any other damage, the
//!   repair only writes copies of the superblock and removes a damaged log.
//! - **M2** A superblock is written by patching the bytes of a good copy. So fields that this
//!   program does not know stay as they are.
//! - **M3** Nodes are durable before the superblock.
//!
//! # Failure
//!
//! The repair overwrites the sums of block groups in place. A power cut during such a write can
//! damage one node, in one or more copies. So the power must not fail. If metadata has two copies,
//! a `scrub` afterwards mends a damaged one.

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

/// The changes that were made, and the problems that remain, as sentences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Repairs {
    /// What was changed on the devices.
    pub done: Vec<String>,
    /// Problems that were left alone, with the reason.
    pub left: Vec<String>,
}

/// Where fields lie in a superblock.
const BYTENR_AT: usize = 48;
const LOG_ROOT_AT: usize = 96;
const LOG_LEVEL_AT: usize = 200;
const BYTES_USED_AT: usize = 120;
const COMPAT_RO_AT: usize = 180;

const CACHE_BYTES: u64 = 8 << 20;

/// Repairs what `report` found on these devices. They must be open for writing, exclusively. Check
/// the volume again afterwards.
///
/// # Errors
///
/// When a device fails or cannot be written. All writes before the failure were correct on their
/// own.
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

/// The repairs to make.
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

/// A change of a superblock: its offset and the new bytes.
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

    /// The changes of the superblock. Without trust in the extents, changes that depend on them are
    /// left out.
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

/// Writes every copy of a device's superblock: the newest good copy, with changes (M2).
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
    // There is a good copy, because the volume was opened.
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
        // Flushes after each copy, so a power cut tears at most one.
        device.flush()?;
    }
    Ok(())
}

/// Writes the used bytes of block groups into their items; returns the groups with an item.
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
        // Several items may lie in one leaf, so the leaf is read again after each write.
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

/// Returns the bytes of a leaf with one item replaced by one of the same length, and with a new
/// checksum.
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
