//! Repairs problems that are safe to repair.
//!
//! # Invariants
//!
//! - **M1** Every written value follows from verified data: undamaged extents, the trees that refer
//!   to extents, or a good copy of the superblock. No value is a guess, except owner, times and
//!   access of an inode item that is made anew. Damage of other kinds stays, and nothing is written
//!   that depends on it.
//! - **M2** Repairs of items come first (`mend`), since later repairs depend on the items.
//! - **M3** Nodes are durable before the superblock.
//! - **M4** A new extent tree is used only if a check of the volume with this tree finds no error.
//!   Errors of kinds that the report has and a new extent tree cannot mend are allowed. New nodes
//!   lie in free space. So without a new superblock the volume is unchanged.
//!
//! # Failure
//!
//! If only the used bytes of block groups are wrong, the repair overwrites them in place. A power
//! cut during such a write can damage one node, in one or more copies. So the power must not fail.
//! If metadata has two copies, a `scrub` afterwards repairs a damaged copy.

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_base::AlignedBuf;
use buttress_block::{Device, Trial};
use buttress_format::limits::SUPER_OFFSETS;
use buttress_format::{
    BlockGroupItem, CompatRo, CsumType, Extent, Key, Kind, Logical, RootItem, Superblock, TreeId,
    header,
};
use buttress_tree::{Cursor, Geometry, Node, NodePtr, Store, boot};
use buttress_volume::patch::{BYTES_USED_AT, COMPAT_RO_AT, Change, write_superblocks};
use buttress_volume::{OpenOptions, Volume};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::kinds::{is_of_extents, is_of_sums};
use crate::mend::mend;
use crate::options::{NoProgress, Options};
use crate::rebuild::rebuild;
use crate::report::Report;
use crate::run::check_devices;
use buttress_issue::{Issue, Severity};

/// The changes that were made, and the problems that remain, as sentences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Repairs {
    /// The changes on the devices.
    pub done: Vec<String>,
    /// Problems that were not repaired, with the reason.
    pub left: Vec<String>,
}

/// What to repair.
#[derive(Clone, Debug, Default)]
pub struct RepairOptions {
    /// Memory and threads of the walk that a rebuild makes.
    pub check: Options,
    /// Whether the extent tree is written anew even if it has no fault. In that case a log of fsync
    /// is removed.
    pub init_extent_tree: bool,
    /// Whether the checksum tree is written anew from the data, with the extent tree. After that,
    /// damaged data cannot be told from good data any more.
    pub init_csum_tree: bool,
}

impl RepairOptions {
    fn is_asked(&self) -> bool {
        self.init_extent_tree || self.init_csum_tree
    }
}

/// Where fields lie in a superblock.
const GENERATION_AT: usize = 72;
const ROOT_AT: usize = 80;
const ROOT_LEVEL_AT: usize = 198;
const UUID_GENERATION_AT: usize = 563;
const BACKUPS_AT: usize = 2859;
const BACKUPS_LEN: usize = 4 * 168;
const LOG_ROOT_AT: usize = 96;
const LOG_LEVEL_AT: usize = 200;

const CACHE_BYTES: u64 = 8 << 20;

/// Repairs the issues that `report` has for these devices. The devices must be open for writing,
/// exclusively. Check the volume again afterwards.
///
/// # Errors
///
/// When a device fails or cannot be written. Each write before the failure is correct without the
/// later writes.
pub fn repair(devices: &[Arc<dyn Device>], report: &Report) -> Result<Repairs> {
    repair_with(devices, report, &RepairOptions::default(), &mut |_| {})
}

/// Repairs as [`repair`] does, with options. `announce` is called with a sentence for each repair
/// before the first write of the repair.
///
/// # Errors
///
/// The errors of [`repair`].
pub fn repair_with(
    devices: &[Arc<dyn Device>],
    report: &Report,
    options: &RepairOptions,
    announce: &mut dyn FnMut(&str),
) -> Result<Repairs> {
    let mut repairs = Repairs::default();
    let mended = mend(devices, report, &options.check, announce)?;
    let report = mended.as_ref().map_or(report, |mended| &mended.report);
    repairs.done.extend(mended.iter().flat_map(|mended| mended.done.iter().cloned()));
    let mut plan = Plan::of(report, options.init_csum_tree);
    if options.is_asked() || !plan.extents.is_empty() || plan.cleans_space() {
        if rebuild_extents(devices, &mut plan, options, announce, &mut repairs)? {
            // The rebuild has also corrected all sums and written every copy of the superblock.
            plan = Plan { others: std::mem::take(&mut plan.others), ..Plan::default() };
        } else {
            plan.others.append(&mut plan.extents);
        }
    }
    if !plan.others.is_empty() {
        let codes = plan.others.join(", ");
        repairs.left.push(format!("{codes}: there is no safe repair; copy what is readable"));
    }
    if plan.others.is_empty() && !plan.groups.is_empty() {
        for (group, used) in &plan.groups {
            announce(&format!("block group {group}: {used} bytes used"));
        }
        let written = write_groups(devices, &plan.groups)?;
        for (group, used) in &plan.groups {
            match written.contains(group) {
                true => repairs.done.push(format!("block group {group}: {used} bytes used")),
                false => {
                    repairs.left.push(format!("block group {group}: its item cannot be written"));
                }
            }
        }
    }
    let is_trusted = plan.others.is_empty();
    let before = repairs.done.len();
    let changes = plan.changes(is_trusted, &mut repairs);
    if plan.copies || !changes.is_empty() {
        if plan.copies {
            repairs.done.push("superblocks: every copy is as the newest".to_owned());
        }
        repairs.done[before..].iter().for_each(|line| announce(line));
        for device in devices {
            write_superblocks(&**device, &changes)?;
        }
    }
    Ok(repairs)
}

/// Writes the extent tree anew, then the superblocks. Returns whether this was possible.
fn rebuild_extents(
    devices: &[Arc<dyn Device>],
    plan: &mut Plan,
    options: &RepairOptions,
    announce: &mut dyn FnMut(&str),
    repairs: &mut Repairs,
) -> Result<bool> {
    if plan.has_log && !plan.log && !options.is_asked() {
        let why = "extent tree: the log of fsync would be lost; --init-extent-tree accepts that";
        repairs.left.push(why.to_owned());
        return Ok(false);
    }
    if plan.may_free_data() && !options.is_asked() {
        let why = "extent tree: files with gaps may have lost data that is still recorded; \
                   --init-extent-tree frees it";
        repairs.left.push(why.to_owned());
        return Ok(false);
    }
    let removes = "log: removed; what fsync wrote after the last commit is gone";
    let mut is_first = plan.has_log;
    let mut announce = |line: &str| {
        if std::mem::take(&mut is_first) {
            announce(removes);
        }
        announce(line);
    };
    let rebuilt = match rebuild(devices, &options.check, options.init_csum_tree, &mut announce) {
        Ok(rebuilt) => rebuilt,
        Err(Error::Rebuild(why)) => {
            repairs.left.push(format!("extent tree: it cannot be written anew: {why}"));
            return Ok(false);
        }
        Err(error) => return Err(error),
    };
    let changes = changes_of(&rebuilt.superblock);
    // This check reads as much as the check that made the report, because the issues of both checks
    // are compared.
    let reading = Options { check_data_csum: plan.with_data, ..options.check.clone() };
    let mut remaining = remaining(devices, &changes, &reading)?;
    remaining.retain(|issue| match issue {
        // Data that cannot be read has no checksum.
        Issue::CsumMissing { at, .. } => !rebuilt.unreadable.contains(at.0),
        Issue::ParityMismatch { .. } => false,
        _ => true,
    });
    let is_new = |issue: &&Issue| !plan.others.contains(&issue.code());
    if let Some(issue) = remaining.iter().find(is_new) {
        let code = issue.code();
        let why = format!("extent tree: it was not written anew: {code} would be left");
        repairs.left.push(why);
        return Ok(false);
    }
    let is_left = |code: &&str| remaining.iter().any(|issue| issue.code() == *code);
    plan.others.retain(is_left);
    for device in devices {
        write_superblocks(&**device, &changes)?;
    }
    if plan.has_log {
        repairs.done.push(removes.to_owned());
    }
    repairs.done.extend(rebuilt.done);
    Ok(true)
}

/// Checks the volume with changed superblocks, which are only in memory (M4). Returns the errors
/// that would remain.
fn remaining(
    devices: &[Arc<dyn Device>],
    changes: &[Change],
    options: &Options,
) -> Result<Vec<Issue>> {
    let mut tried: Vec<Arc<dyn Device>> = Vec::new();
    for device in devices {
        let trial = Trial::new(device);
        write_superblocks(&trial, changes)?;
        tried.push(Arc::new(trial));
    }
    let mut issues = check_devices(tried, options, &NoProgress)?.issues;
    issues.retain(|issue| issue.severity() == Severity::Error);
    Ok(issues)
}

/// The fields of a superblock that a rebuild changes.
fn changes_of(new: &Superblock) -> Vec<Change> {
    let bytes = new.to_bytes(SUPER_OFFSETS[0]);
    let fields = [
        (GENERATION_AT, 8),
        (ROOT_AT, 8),
        (ROOT_LEVEL_AT, 1),
        (LOG_ROOT_AT, 8),
        (LOG_LEVEL_AT, 1),
        (BYTES_USED_AT, 8),
        (COMPAT_RO_AT, 8),
        (UUID_GENERATION_AT, 8),
        (BACKUPS_AT, BACKUPS_LEN),
    ];
    fields.into_iter().map(|(at, len)| (at, bytes[at..at + len].to_vec())).collect()
}

/// The repairs to make.
#[derive(Default)]
struct Plan {
    copies: bool,
    log: bool,
    free_space: bool,
    /// Whether free space of removed block groups is recorded.
    stale_space: bool,
    groups: Vec<(Logical, u64)>,
    bytes_used: Option<u64>,
    /// Whether the extent tree records data that nothing uses, or that is used less often than
    /// recorded.
    has_unused: bool,
    /// Whether the check that made the report read all data.
    with_data: bool,
    /// Whether there is a log, good or bad.
    has_log: bool,
    /// Codes of issues that a new extent tree mends.
    extents: Vec<&'static str>,
    /// Codes of issues that cannot be mended.
    others: Vec<&'static str>,
}

impl Plan {
    fn of(report: &Report, with_sums: bool) -> Self {
        let mut plan = Self { with_data: report.with_data, ..Self::default() };
        let mut log_codes = BTreeSet::new();
        for issue in &report.issues {
            plan.has_unused |= matches!(
                issue,
                Issue::ExtentUnused { .. }
                    | Issue::BackrefUnused { .. }
                    | Issue::BackrefCount { .. }
            );
            match issue {
                Issue::SuperCopyDamaged { .. }
                | Issue::SuperCopyMissing { .. }
                | Issue::SuperCopyStale { .. }
                | Issue::SuperCopyMismatch { .. } => plan.copies = true,
                Issue::LogPresent { .. } => plan.has_log = true,
                Issue::LogDamaged { .. } => plan.log = true,
                Issue::LogItem { .. } | Issue::LogExtent { .. } => {
                    log_codes.insert(issue.code());
                }
                Issue::FreeSpaceInfoMissing { .. }
                | Issue::FreeSpaceMismatch { .. }
                | Issue::FreeSpaceCount { .. } => plan.free_space = true,
                Issue::ItemMalformed { tree: TreeId::FREE_SPACE, .. } => plan.free_space = true,
                Issue::FreeSpaceUnexpected { .. } => plan.stale_space = true,
                Issue::BlockGroupUsed { group, expected, .. } => {
                    plan.groups.push((*group, *expected));
                }
                Issue::SuperField { field: "bytes_used", expected, .. } => {
                    plan.bytes_used = Some(*expected);
                }
                // A scrub writes parity anew. It says nothing about trees.
                Issue::ParityMismatch { .. } => {}
                other if other.severity() == Severity::Error => {
                    let is_derived = is_of_extents(other) || with_sums && is_of_sums(other);
                    let codes = if is_derived { &mut plan.extents } else { &mut plan.others };
                    if !codes.contains(&other.code()) {
                        codes.push(other.code());
                    }
                }
                _ => {}
            }
        }
        // The log may be right, and the trees that it contradicts are wrong. Then it stays.
        if plan.others.is_empty() && plan.extents.is_empty() {
            plan.log |= !log_codes.is_empty();
        } else {
            plan.others.extend(log_codes);
        }
        if !plan.extents.is_empty() {
            // Without extent items, every checksum seems to belong to no data.
            plan.others.retain(|code| *code != "csum-unused");
        }
        plan
    }

    /// Whether a new extent tree would free data that a file lost: see `mend::extents`.
    fn may_free_data(&self) -> bool {
        let is_of_gaps =
            |code: &&str| matches!(*code, "file-hole" | "file-extent-invalid" | "inode-bytes");
        self.has_unused && self.others.iter().any(is_of_gaps)
    }

    /// Whether free space of removed block groups is recorded, and a rebuild is safe: there is no
    /// log to lose and no other error.
    fn cleans_space(&self) -> bool {
        self.stale_space && !self.has_log && self.others.is_empty()
    }

    /// The changes of the superblock. If the extents are not trusted, changes that depend on them
    /// are left out.
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

/// Writes the used bytes of block groups into their items; returns the groups with an item.
fn write_groups(
    devices: &[Arc<dyn Device>],
    groups: &[(Logical, u64)],
) -> Result<BTreeSet<Logical>> {
    let options = OpenOptions { writable: true, repairs: true, ..OpenOptions::default() };
    let (volume, superblock) = Volume::open(devices.to_vec(), options)?;
    let volume = Arc::new(volume);
    let geometry = Geometry::of(&superblock);
    let store = Store::new(Arc::clone(&volume), geometry, CACHE_BYTES);
    boot::load_chunks(&store, &superblock)?;
    // With parity, a node is not overwritten where it lies: the rest of its row would be lost.
    if volume.read_only_reason().is_some() || volume.has_nodes_with_parity() {
        return Ok(BTreeSet::new());
    }
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

/// Returns the bytes of a leaf in which one item is replaced by an item of the same length, with a
/// new checksum.
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
