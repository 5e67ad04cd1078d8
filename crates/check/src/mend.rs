//! Mends items of trees: names, inodes, sizes, nodes with wrong headers.
//!
//! # How
//!
//! Each issue of a report proposes a fix: a sentence and the edits of items. The fixes are made on
//! trial devices in memory, and then the volume is checked again. The new report can show issues
//! that earlier damage hid. The next round mends them. A round makes only the fixes of one stage:
//! the first stage for which there are fixes. The stages are nodes, inodes, names, lost files,
//! counts that follow from these, and quotas.
//!
//! # Invariants
//!
//! - **ME1** Nothing is written before the volume with all fixes was checked. The fixes count only
//!   if no error is new. This check reads as much as the check that made the report: if that check
//!   read all data, this check does, too. So no fix hides damage of data.
//! - **ME2** Each issue proposes at most one fix, so the rounds end.
//! - **ME3** Nodes are durable before superblocks.
//! - **ME4** In a tree that lacks a node, only nodes are mended. Names and counts would be derived
//!   from the remaining items only, and be wrong.
//! - **ME5** A fix is written to every copy. If one copy cannot be written, nothing is written.
//! - **ME6** If there is a log of fsync, no fix adds names, numbers or counts, because the replay
//!   of the log adds these, too.
//!
//! # Failure
//!
//! Leaves are overwritten where they lie. A power cut meanwhile can damage a leaf. So the power
//! must not fail, or there must be a journal, with which the old bytes can be put back.

mod devices;
mod doubles;
mod editor;
mod extents;
mod inodes;
mod listing;
mod names;
mod nodes;
mod quotas;
mod split;
mod sums;

use std::collections::HashSet;
use std::sync::Arc;

use buttress_block::{Device, Trial};
use buttress_format::limits::{SUPER_OFFSETS, SUPER_SIZE};
use buttress_format::{Ino, Kind, TreeId};
use buttress_volume::Volume;

use crate::error::Result;
use crate::kinds::{damaged_tree, is_of_extents};
use crate::options::{NoProgress, Options};
use crate::report::Report;
use crate::run::check_devices;
use buttress_issue::{Issue, Severity};
use editor::{Editor, Fix};

/// The most rounds. Each round mends at most a thousand issues of a kind.
const ROUNDS: usize = 64;

/// The flag of a superblock that makes its volume a seed.
const SEED: u64 = 1 << 32;
/// The first stage: nodes.
const NODES: u8 = 0;
/// The stages that are left out if there is a log of fsync. A replay adds names, inode numbers and
/// indexes. It also adds to the links, sizes and bytes that it finds.
const WITHOUT_LOG: [u8; 4] = [3, 4, 5, 7];

/// The fixes that were made, and the report afterwards.
pub(crate) struct Mended {
    pub(crate) done: Vec<String>,
    pub(crate) report: Report,
}

/// Makes all possible fixes. `None` if there is nothing to mend, or if the volume would not be
/// better. `announce` is called with each sentence before the first write.
pub(crate) fn mend(
    devices: &[Arc<dyn Device>],
    report: &Report,
    options: &Options,
    announce: &mut dyn FnMut(&str),
) -> Result<Option<Mended>> {
    // If a device is missing, its copies would keep the old content.
    let is_whole = !report.has("device-missing");
    if !is_whole || !report.issues.iter().any(|issue| stage(issue).is_some()) {
        return Ok(None);
    }
    for device in devices {
        // A leaf on a seed belongs to other volumes, too.
        if Volume::read_superblock(&**device)?.flags & SEED != 0 {
            return Ok(None);
        }
    }
    let trials: Vec<Arc<Trial>> = devices.iter().map(|one| Arc::new(Trial::new(one))).collect();
    let tried: Vec<Arc<dyn Device>> =
        trials.iter().map(|one| Arc::clone(one) as Arc<dyn Device>).collect();
    // No fix changes data. So data is read once, after all fixes.
    let quick = Options { check_data_csum: false, ..options.clone() };
    let mut now = report.clone();
    let mut seen: HashSet<Issue> = HashSet::new();
    let mut done = Vec::new();
    for _ in 0..ROUNDS {
        let lost = Lost::of(&now);
        let has_log = now.issues.iter().any(|issue| matches!(issue, Issue::LogPresent { .. }));
        let open = now.issues.iter().filter(|issue| !seen.contains(*issue));
        let staged: Vec<(u8, &Issue)> = open
            .filter_map(|issue| Some((stage(issue)?, issue)))
            .filter(|(stage, issue)| *stage == NODES || !lost.touches(issue))
            .filter(|(stage, _)| !(has_log && WITHOUT_LOG.contains(stage)))
            .collect();
        let Some(first) = staged.iter().map(|(stage, _)| *stage).min() else { break };
        let Ok(editor) = Editor::open(&tried, &quick) else { break };
        if !editor.can_write() {
            return Ok(None);
        }
        let before = done.len();
        for (_, issue) in staged.iter().filter(|(stage, _)| *stage == first) {
            seen.insert((*issue).clone());
            // There is no proposal for a tree that cannot be read.
            let Ok(Some(fix)) = propose(&editor, &now, issue) else { continue };
            // A fix is made completely or not at all.
            if editor.make(&fix.edits).unwrap_or(false) {
                trials.iter().for_each(|trial| trial.keep());
                done.push(fix.says);
            } else {
                trials.iter().for_each(|trial| trial.take_back());
            }
        }
        if done.len() > before {
            now = check_devices(tried.clone(), &quick, &NoProgress)?;
        }
    }
    if done.is_empty() {
        return Ok(None);
    }
    // A fix can change the users of an extent, and with them the counts of quota groups. The last
    // check compared the counts, unless its report says that it did not.
    let is_marked = now.issues.iter().any(quotas::are_doubtful)
        && Editor::open(&tried, &quick).and_then(|editor| quotas::mark(&editor)).unwrap_or(false);
    if is_marked {
        done.push("quota groups: marked inconsistent; a quota rescan counts them anew".to_owned());
        trials.iter().for_each(|trial| trial.keep());
    } else {
        trials.iter().for_each(|trial| trial.take_back());
    }
    if report.with_data || is_marked {
        let full = Options { check_data_csum: report.with_data, ..quick };
        now = check_devices(tried, &full, &NoProgress)?;
    }
    if !is_better(report, &now) {
        return Ok(None);
    }
    done.iter().for_each(|line| announce(line));
    let is_super = |at: u64| {
        SUPER_OFFSETS.iter().any(|start| (*start..*start + SUPER_SIZE as u64).contains(&at))
    };
    for trial in &trials {
        trial.commit(|at| !is_super(at))?;
    }
    // Each copy is durable before the next copy is written, so a power cut tears at most one copy.
    for start in SUPER_OFFSETS {
        for trial in &trials {
            trial.commit(|at| (start..start + SUPER_SIZE as u64).contains(&at))?;
        }
    }
    Ok(Some(Mended { done, report: now }))
}

/// Trees that lack a part. Names and counts cannot be derived from their remaining items (ME4).
struct Lost {
    trees: HashSet<TreeId>,
    /// Whether the report lacks some issues about lost parts, because it keeps only a fixed number
    /// of a kind.
    is_cut: bool,
}

impl Lost {
    fn of(report: &Report) -> Self {
        let trees = report.issues.iter().filter_map(damaged_tree).collect();
        let codes = ["node-damaged", "node-bounds", "item-malformed"];
        Self { trees, is_cut: codes.iter().any(|code| report.more.contains_key(code)) }
    }

    fn touches(&self, issue: &Issue) -> bool {
        let has = |tree: &TreeId| self.trees.contains(tree);
        self.is_cut
            || has(&TreeId::ROOT)
            || has(&TreeId::CHUNK)
            || subject(issue).is_none_or(|tree| has(&tree))
    }
}

/// The tree with the items that showed an issue.
fn subject(issue: &Issue) -> Option<TreeId> {
    match issue {
        Issue::InodeMissing { tree, .. }
        | Issue::InodeMode { tree, .. }
        | Issue::InodeOdd { tree, .. }
        | Issue::NameHash { tree, .. }
        | Issue::DirNames { tree, .. }
        | Issue::DirItemDoubled { tree, .. }
        | Issue::NameDoubled { tree, .. }
        | Issue::DirEntryMissing { tree, .. }
        | Issue::InodeRefMissing { tree, .. }
        | Issue::DirItemMissing { tree, .. }
        | Issue::DirIndexMissing { tree, .. }
        | Issue::DirEntryKind { tree, .. }
        | Issue::OrphanMissing { tree, .. }
        | Issue::InodeLinks { tree, .. }
        | Issue::ItemGeneration { tree, .. }
        | Issue::FileHole { tree, .. }
        | Issue::FileExtentInvalid { tree, .. }
        | Issue::DirSize { tree, .. }
        | Issue::InodeBytes { tree, .. } => Some(*tree),
        Issue::DeviceUsed { .. } => Some(TreeId::DEV),
        Issue::QuotaReach { .. } => Some(TreeId::QUOTA),
        Issue::SuperField { .. } => Some(TreeId::CHUNK),
        Issue::CsumOverlap { .. } => Some(TreeId::CSUM),
        _ => None,
    }
}

/// Whether fewer errors are left, and no error is new (ME1). Errors of the extent tree do not
/// count, because a new extent tree mends them.
fn is_better(before: &Report, after: &Report) -> bool {
    let errors = |report: &Report| {
        let issues = report.issues.iter();
        let is_counted = |issue: &&Issue| {
            let is_error = issue.severity() == Severity::Error;
            is_error && !is_of_extents(issue)
        };
        issues.filter(is_counted).cloned().collect::<HashSet<Issue>>()
    };
    let (old, new) = (errors(before), errors(after));
    let more = |report: &Report, code: &str| report.more.get(code).copied().unwrap_or(0);
    let grows = after.more.iter().any(|(code, count)| *count > more(before, code));
    let shrinks = before.more.iter().any(|(code, count)| *count > more(after, code));
    !grows && (new.len() < old.len() || shrinks) && new.is_subset(&old)
}

/// The stage of the fix for an issue. `None` if there is no fix.
fn stage(issue: &Issue) -> Option<u8> {
    Some(match issue {
        Issue::NodeDamaged { .. } | Issue::NodeGeneration { .. } => NODES,
        Issue::InodeMissing { .. } | Issue::InodeMode { .. } | Issue::InodeOdd { .. } => 1,
        Issue::NameHash { .. } => 2,
        Issue::DirEntryMissing { .. } | Issue::InodeRefMissing { .. } | Issue::DirNames { .. } => 3,
        Issue::DirItemDoubled { .. }
        | Issue::NameDoubled { .. }
        | Issue::DirItemMissing { .. }
        | Issue::DirIndexMissing { .. }
        | Issue::DirEntryKind { .. } => 4,
        Issue::OrphanMissing { .. } | Issue::InodeLinks { expected: 0, .. } => 5,
        Issue::ItemGeneration { .. } | Issue::FileHole { .. } | Issue::FileExtentInvalid { .. } => {
            6
        }
        Issue::InodeLinks { .. } | Issue::DirSize { .. } | Issue::InodeBytes { .. } => 7,
        Issue::DeviceUsed { .. } | Issue::SuperField { field: "num_devices", .. } => 8,
        Issue::SuperField { field: "total_bytes", .. } => 8,
        Issue::QuotaReach { .. } => 9,
        Issue::CsumOverlap { .. } => 10,
        _ => return None,
    })
}

/// Whether a file has no sound item for some of its content.
fn has_gap(report: &Report, tree: TreeId, ino: Ino) -> bool {
    report.issues.iter().any(|issue| match issue {
        Issue::FileHole { tree: of, ino: its, .. }
        | Issue::FileOverlap { tree: of, ino: its, .. }
        | Issue::FileExtentInvalid { tree: of, ino: its, .. } => (*of, *its) == (tree, ino),
        _ => false,
    })
}

/// Whether an issue is an error of anything but quotas and the extent tree.
fn is_other_damage(issue: &Issue) -> bool {
    let is_quota = matches!(issue, Issue::QuotaReach { .. });
    issue.severity() == Severity::Error && !is_quota && !is_of_extents(issue)
}

/// Returns the fix for an issue in the present volume.
fn propose(editor: &Editor, report: &Report, issue: &Issue) -> Result<Option<Fix>> {
    match issue {
        Issue::NodeDamaged { tree, logical, .. } => nodes::damaged(editor, *tree, *logical),
        Issue::NodeGeneration { tree, logical, .. } => nodes::too_new(editor, *tree, *logical),
        Issue::InodeMissing { tree, ino } => inodes::missing(editor, *tree, *ino),
        Issue::InodeMode { tree, ino, .. } => inodes::mode(editor, *tree, *ino),
        Issue::InodeOdd { tree, ino, why } if why.starts_with("a symbolic link that is") => {
            inodes::thaw(editor, *tree, *ino)
        }
        Issue::InodeOdd { tree, ino, why } if why.starts_with("it is no ") => {
            inodes::mode(editor, *tree, *ino)
        }
        Issue::NameHash { tree, key, name } => names::wrong_hash(editor, *tree, *key, name),
        Issue::DirNames { tree, ino, .. } => doubles::one_name(editor, report, *tree, *ino),
        Issue::DirEntryMissing { tree, dir, ino, name } => {
            match doubles::one_name(editor, report, *tree, *ino)? {
                None => names::entry_missing(editor, *tree, *dir, *ino, name),
                fix => Ok(fix),
            }
        }
        Issue::InodeRefMissing { tree, dir, ino, name } => {
            match doubles::one_name(editor, report, *tree, *ino)? {
                None => names::reference_missing(editor, *tree, *dir, *ino, name),
                fix => Ok(fix),
            }
        }
        Issue::DirItemDoubled { tree, dir, name } => {
            doubles::found_twice(editor, *tree, *dir, name)
        }
        Issue::NameDoubled { tree, dir, name, .. } => {
            doubles::second_name(editor, *tree, *dir, name)
        }
        Issue::DirItemMissing { tree, dir, name } => {
            names::lookup_missing(editor, *tree, *dir, name)
        }
        Issue::DirIndexMissing { tree, dir, name } => {
            names::index_missing(editor, *tree, *dir, name)
        }
        Issue::DirEntryKind { tree, dir, ino, name } => {
            names::wrong_kind(editor, *tree, *dir, *ino, name)
        }
        Issue::OrphanMissing { tree, ino } | Issue::InodeLinks { tree, ino, expected: 0, .. } => {
            inodes::lost(editor, *tree, *ino)
        }
        Issue::ItemGeneration { tree, key, .. } => match key.kind {
            Kind::INODE_ITEM => inodes::generation(editor, *tree, Ino(key.objectid)),
            Kind::ROOT_ITEM => nodes::root_too_new(editor, TreeId(key.objectid)),
            _ => Ok(None),
        },
        Issue::FileHole { tree, ino, offset } => {
            extents::hole(editor, report, *tree, *ino, *offset)
        }
        Issue::FileExtentInvalid { tree, ino, offset, why } if why.contains("inline data") => {
            extents::inline(editor, *tree, *ino, *offset)
        }
        Issue::FileExtentInvalid { tree, ino, offset, why } if why.contains("not aligned") => {
            extents::address(editor, report, *tree, *ino, *offset)
        }
        Issue::InodeLinks { tree, ino, expected, .. } => {
            inodes::links(editor, *tree, *ino, *expected)
        }
        Issue::DirSize { tree, ino, expected, .. } => inodes::size(editor, *tree, *ino, *expected),
        // The count of bytes of a file with a gap stays, because it shows that data is lost.
        Issue::InodeBytes { tree, ino, .. } if has_gap(report, *tree, *ino) => Ok(None),
        // On a volume without items for holes, only the count of bytes shows that an extent is
        // lost.
        Issue::InodeBytes { ino, found, expected, .. }
            if found > expected && extents::may_be_recorded(editor, report, *ino) =>
        {
            Ok(None)
        }
        Issue::InodeBytes { tree, ino, expected, .. } => {
            inodes::bytes(editor, *tree, *ino, *expected)
        }
        Issue::CsumOverlap { at } => sums::overlapping(editor, *at),
        Issue::DeviceUsed { device, expected, .. } => devices::used(editor, *device, *expected),
        Issue::SuperField { field: "num_devices", expected, .. } => {
            devices::count(editor, *expected)
        }
        Issue::SuperField { field: "total_bytes", .. } => devices::total(editor),
        // While other damage is left, the counts stay, because they may show that data is lost.
        Issue::QuotaReach { .. } if report.issues.iter().any(is_other_damage) => Ok(None),
        Issue::QuotaReach { group, field, expected, .. } => {
            quotas::count(editor, *group, field, *expected)
        }
        _ => Ok(None),
    }
}
