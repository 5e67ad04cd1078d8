//! Checks quotas. Simple quotas are counted, since an extent's item names the subvolume that made
//! the extent. Full quotas are counted from the trees of subvolumes, unless they are marked
//! inconsistent.

use std::collections::BTreeMap;

use buttress_format::{
    Error as FormatError, Key, Kind, Logical, QuotaGroup, QuotaInfo, QuotaStatus, TreeId,
};
use buttress_tree::Node;

use crate::context::{Context, Tree};
use crate::facts::OwnedBytes;
use crate::quota_full::{self, Parents};
use crate::walk::each_leaf;
use buttress_issue::Issue;

/// Full quotas that could not be counted.
pub(crate) const NOT_COUNTED: &str = "the counts of quota groups";

fn malformed(context: &Context<'_>, leaf: &Node, key: Key, error: &FormatError) {
    let (tree, logical, why) = (TreeId::QUOTA, Logical(leaf.logical().0), error.to_string());
    context.add(Issue::ItemMalformed { tree, logical, key, why });
}

/// Reads the kind of quotas, before anything is counted.
pub(crate) fn prepare(context: &Context<'_>, tree: &Tree) {
    each_leaf(context, tree, &mut |leaf| {
        for slot in (0..leaf.len()).filter(|slot| leaf.key(*slot).kind == Kind::QGROUP_STATUS) {
            if let Ok(status) = QuotaStatus::parse(leaf.item(slot))
                && status.is_simple()
                && let Some(since) = status.enabled
            {
                let _ = context.owned.set(OwnedBytes::new(since));
            }
        }
    });
}

/// What the quota tree has.
#[derive(Default)]
pub(crate) struct Recorded {
    pub(crate) status: Option<QuotaStatus>,
    pub(crate) groups: BTreeMap<QuotaGroup, QuotaInfo>,
    pub(crate) parents: Parents,
}

impl Recorded {
    /// Reads the tree, and reports malformed items.
    pub(crate) fn read(context: &Context<'_>, tree: &Tree) -> Self {
        let mut found = Self::default();
        each_leaf(context, tree, &mut |leaf| {
            for slot in 0..leaf.len() {
                let (key, bytes) = (leaf.key(slot), leaf.item(slot));
                if let Err(error) = found.item(key, bytes) {
                    malformed(context, leaf, key, &error);
                }
            }
        });
        found
    }

    fn item(&mut self, key: Key, bytes: &[u8]) -> buttress_format::Result<()> {
        match key.kind {
            Kind::QGROUP_STATUS => self.status = Some(QuotaStatus::parse(bytes)?),
            Kind::QGROUP_INFO => {
                self.groups.insert(QuotaGroup(key.offset), QuotaInfo::parse(bytes)?);
            }
            Kind::QGROUP_RELATION => {
                let (group, other) = (QuotaGroup(key.objectid), QuotaGroup(key.offset));
                if other.level() > group.level() {
                    self.parents.entry(group).or_default().insert(other);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Compares the recorded quotas with the counted bytes.
pub(crate) fn check(context: &Context<'_>, tree: &Tree, trees: &[Tree]) {
    let recorded = Recorded::read(context, tree);
    let odd = QuotaStatus::RESCAN | QuotaStatus::INCONSISTENT;
    if let Some(status) = recorded.status.filter(|status| status.flags & odd != 0) {
        context.add(Issue::QuotaInconsistent { flags: status.flags });
    }
    for (group, info) in &recorded.groups {
        count(context, TreeId(group.0), info);
    }
    let last = context.superblock.generation;
    if recorded.status.is_some_and(|status| status.is_counted(last)) {
        compare(context, trees, &recorded);
    }
}

/// Compares the counts of full quotas.
fn compare(context: &Context<'_>, trees: &[Tree], recorded: &Recorded) {
    let Ok(counted) = quota_full::count(context, trees, &recorded.parents) else {
        context.add(Issue::NotChecked { what: NOT_COUNTED });
        return;
    };
    for (group, info) in &recorded.groups {
        let (referenced, exclusive) = counted.get(group).copied().unwrap_or_default();
        let fields =
            [("referenced", info.referenced, referenced), ("exclusive", info.exclusive, exclusive)];
        for (field, found, expected) in fields.into_iter().filter(|field| field.1 != field.2) {
            context.add(Issue::QuotaReach { group: *group, field, found, expected });
        }
    }
}

fn count(context: &Context<'_>, subvolume: TreeId, info: &QuotaInfo) {
    let Some(owned) = context.owned.get() else { return };
    if QuotaGroup::of(subvolume).level() > 0 {
        // Higher groups are not checked: their members can change while their counts stay the same.
        return;
    }
    let expected = owned.of(subvolume);
    for (field, found) in [("referenced", info.referenced), ("exclusive", info.exclusive)] {
        if found != expected {
            context.add(Issue::QuotaCount { subvolume, field, found, expected });
        }
    }
}
