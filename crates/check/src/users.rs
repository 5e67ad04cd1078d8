//! The users of extents, as the options `-Q` and `-E` of `btrfs check` report them: the counts of
//! quota groups, and the extents of a subvolume.

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_block::Device;
use buttress_format::{QuotaGroup, QuotaInfo, QuotaStatus, Superblock, TreeId};
use buttress_volume::{OpenOptions as VolumeOptions, Volume};

use crate::context::{Context, Tree};
use crate::error::{Error, Result};
use crate::joined_walk::{Unknown, whole_trees};
use crate::options::{NoProgress, Options};
use crate::quota::{self, Recorded};
use crate::quota_full;
use crate::report::Findings;
use crate::sharing::{self, UsedExtent};
use crate::{chunks, roots, run};

/// The counts of one quota group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupCounts {
    /// The group.
    pub group: QuotaGroup,
    /// The counts that the volume has.
    pub recorded: QuotaInfo,
    /// The referenced bytes, counted from the trees.
    pub referenced: u64,
    /// The exclusive bytes, counted from the trees.
    pub exclusive: u64,
}

/// The counts of all quota groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaCounts {
    /// Whether a rescan was running, so that differences are to be expected.
    pub is_rescanning: bool,
    /// Whether the volume marks its counts as wrong.
    pub is_inconsistent: bool,
    /// The groups in ascending order. None if quotas are off.
    pub groups: Vec<GroupCounts>,
}

impl GroupCounts {
    /// Whether the recorded counts are not those of the trees.
    #[must_use]
    pub fn differs(&self) -> bool {
        let recorded = (self.recorded.referenced, self.recorded.exclusive);
        recorded != (self.referenced, self.exclusive)
    }
}

impl QuotaCounts {
    /// Whether a group differs, although the volume says that its counts are right.
    #[must_use]
    pub fn are_wrong(&self) -> bool {
        let is_expected = self.is_rescanning || self.is_inconsistent;
        !is_expected && self.groups.iter().any(GroupCounts::differs)
    }
}

/// Counts quota groups from the trees. `held` is the superblock of a commit that another process
/// keeps unchanged meanwhile, if there is one: see [`check_held`](crate::check_held).
///
/// # Errors
///
/// The errors of [`check_devices`](crate::check_devices); trees that cannot be counted.
pub fn quota_counts(
    devices: Vec<Arc<dyn Device>>,
    held: Option<&Superblock>,
    options: &Options,
) -> Result<QuotaCounts> {
    with_trees(devices, held, options, |context, trees| {
        let Some(tree) = trees.iter().find(|tree| tree.id == TreeId::QUOTA) else {
            return Ok(QuotaCounts::default());
        };
        let before = context.findings.count();
        let recorded = Recorded::read(context, tree);
        // What cannot be read would look like groups without counts, or like no quotas.
        if context.findings.count() > before {
            return Err(unknown(Unknown::Damaged));
        }
        let status = recorded.status.filter(|status| status.flags & QuotaStatus::ON != 0);
        let Some(status) = status else { return Ok(QuotaCounts::default()) };
        let counted = match status.is_simple() {
            true => owned(context, tree, trees, &recorded)?,
            false => quota_full::count(context, trees, &recorded.parents).map_err(unknown)?,
        };
        let groups = recorded.groups.iter().map(|(group, recorded)| {
            let (referenced, exclusive) = counted.get(group).copied().unwrap_or_default();
            GroupCounts { group: *group, recorded: *recorded, referenced, exclusive }
        });
        Ok(QuotaCounts {
            is_rescanning: status.flags & QuotaStatus::RESCAN != 0,
            is_inconsistent: status.flags & QuotaStatus::INCONSISTENT != 0,
            groups: groups.collect(),
        })
    })
}

/// Lists the nodes and data extents of a subvolume by address, each with all its users. `held` is
/// as for [`quota_counts`].
///
/// # Errors
///
/// As [`quota_counts`].
pub fn extents_of(
    devices: Vec<Arc<dyn Device>>,
    held: Option<&Superblock>,
    options: &Options,
    subvolume: TreeId,
) -> Result<Vec<UsedExtent>> {
    with_trees(devices, held, options, |context, trees| {
        sharing::extents_of(context, trees, subvolume).map_err(unknown)
    })
}

fn unknown(why: Unknown) -> Error {
    Error::Users(why.to_string())
}

/// With simple quotas: the walk of a check counts the bytes that each subvolume owns.
fn owned(
    context: &Context<'_>,
    tree: &Tree,
    trees: &[Tree],
    recorded: &Recorded,
) -> Result<quota_full::Bytes> {
    quota::prepare(context, tree);
    run::walk_for_owners(context, trees)?;
    let files = whole_trees(trees).map_err(unknown)?;
    let bytes = |tree: &&Tree| {
        let bytes = context.owned.get().map_or(0, |owned| owned.of(tree.id));
        (BTreeSet::from([tree.id]), bytes)
    };
    let sums: Vec<_> = files.iter().map(bytes).collect();
    Ok(quota_full::spread(sums.iter().map(|(set, bytes)| (set, *bytes)), &recorded.parents))
}

fn with_trees<T>(
    devices: Vec<Arc<dyn Device>>,
    held: Option<&Superblock>,
    options: &Options,
    work: impl FnOnce(&Context<'_>, &[Tree]) -> Result<T>,
) -> Result<T> {
    let opening = VolumeOptions { degraded: true, ..VolumeOptions::default() };
    let (volume, superblock) = match held {
        Some(superblock) => (Volume::open_at(devices, superblock, opening)?, superblock.clone()),
        None => Volume::open(devices, opening)?,
    };
    let findings = Findings::new();
    let context = Context::new(&findings, &volume, &superblock, options, &NoProgress);
    chunks::load(&context);
    let trees = roots::load(&context).trees(&context);
    work(&context, &trees)
}
