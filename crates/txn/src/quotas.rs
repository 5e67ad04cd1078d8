//! The quotas of the last commit, and requests for bytes within their limits.

use std::sync::Arc;

use buttress_format::{Key, Kind, QuotaGroup, QuotaInfo, QuotaLimit, QuotaStatus, TreeId};
use buttress_tree::{Cursor, Roots, Store};

use crate::reserve::QuotaLimits;
use crate::{Commits, Error, QuotaCharge, QuotaUse, Result, Storage};

/// The quotas of a volume, as a commit left them.
#[derive(Clone, Debug)]
pub struct Quotas {
    /// The status of quotas: their kind and flags.
    pub status: QuotaStatus,
    /// All groups, by number.
    pub groups: Vec<QuotaUse>,
}

impl Quotas {
    /// Returns a group.
    #[must_use]
    pub fn group(&self, group: QuotaGroup) -> Option<&QuotaUse> {
        let at = self.groups.binary_search_by_key(&group, |known| known.group).ok()?;
        self.groups.get(at)
    }
}

fn known(groups: &mut [QuotaUse], group: QuotaGroup) -> Option<&mut QuotaUse> {
    let at = groups.binary_search_by_key(&group, |known| known.group).ok()?;
    groups.get_mut(at)
}

/// The status item of quotas; `None` if the volume has no quota tree.
pub(crate) fn status(store: &Store, roots: &Roots) -> Result<Option<QuotaStatus>> {
    let Some(root) = roots.find(TreeId::QUOTA) else { return Ok(None) };
    let key = QuotaStatus::KEY;
    let Some((node, slot)) = Cursor::find(store, TreeId::QUOTA, root, &key)? else {
        return Err(Error::Malformed("the quota tree has no status".into()));
    };
    QuotaStatus::parse(node.item(slot)).map(Some).map_err(|source| Error::Item {
        tree: TreeId::QUOTA,
        key,
        source,
    })
}

impl Storage {
    /// The status of quotas and all groups, in the order of their numbers, from the trees under
    /// `roots`. `None` if quotas are off.
    pub(crate) fn quotas_of(&self, roots: &Roots) -> Result<Option<Quotas>> {
        let status = status(self.store(), roots)?;
        let status = status.filter(|status| status.flags & QuotaStatus::ON != 0);
        let (Some(status), Some(root)) = (status, roots.find(TreeId::QUOTA)) else {
            return Ok(None);
        };
        let mut groups: Vec<QuotaUse> = Vec::new();
        let mut cursor = Cursor::seek(&**self.store(), TreeId::QUOTA, root, &Key::MIN)?;
        while let Some((key, item)) = cursor.key().zip(cursor.item()) {
            let malformed = |source| Error::Item { tree: TreeId::QUOTA, key, source };
            let group = QuotaGroup(key.offset);
            match key.kind {
                // In the tree, all counts come before all limits, and all limits before
                // memberships.
                Kind::QGROUP_INFO => {
                    let info = QuotaInfo::parse(item).map_err(malformed)?;
                    let (limit, parents, children) = Default::default();
                    groups.push(QuotaUse { group, info, limit, parents, children });
                }
                Kind::QGROUP_LIMIT => {
                    if let Some(known) = known(&mut groups, group) {
                        known.limit = QuotaLimit::parse(item).map_err(malformed)?;
                    }
                }
                Kind::QGROUP_RELATION => {
                    let own = QuotaGroup(key.objectid);
                    if let Some(known) = known(&mut groups, own) {
                        let is_above = group.level() > own.level();
                        let list = if is_above { &mut known.parents } else { &mut known.children };
                        list.push(group);
                    }
                }
                _ => {}
            }
            cursor.advance()?;
        }
        Ok(Some(Quotas { status, groups }))
    }

    /// Asks for `bytes` of data of a subvolume.
    pub(crate) fn ask_quota(
        &self,
        commits: &Commits,
        quota_limits: &Arc<QuotaLimits>,
        tree: TreeId,
        bytes: u64,
    ) -> Result<QuotaCharge> {
        let look = || {
            crate::open_handles::expect_none("handle::H2: the quota tree is read");
            let view = commits.view();
            let last = view.roots().generation;
            let are_right = |status: &QuotaStatus| status.is_simple() || status.is_counted(last);
            let found = self.quotas_of(view.roots())?.filter(|found| are_right(&found.status));
            let is_simple = found.as_ref().is_some_and(|found| found.status.is_simple());
            Ok((last, found.map_or_else(Vec::new, |found| found.groups), is_simple))
        };
        quota_limits.charge(tree, bytes, look)?.ok_or(Error::Quota)
    }
}

impl Commits {
    /// Whether the next commit may show that a subvolume uses less than the present figures say.
    /// This is possible if bytes are on the way, if extents were freed since the last commit, or if
    /// a commit is under way.
    pub(crate) fn may_free_quota(&self, quota_limits: &QuotaLimits, tree: TreeId) -> bool {
        let view = self.peek();
        quota_limits.is_any_on_the_way(tree)
            || view.frozen().is_some()
            || !view.running().refs.is_empty()
    }
}
