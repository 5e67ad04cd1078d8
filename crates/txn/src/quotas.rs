//! Quotas of the last commit, and asking for what their limits leave.

use buttress_format::{Key, Kind, QuotaGroup, QuotaInfo, QuotaLimit, QuotaStatus, TreeId};
use buttress_tree::{Cursor, Roots};

use crate::quota_limits::QuotaUse;
use crate::{Engine, Error, Result, commit::quota_status};

/// Quotas, as a commit left them.
#[derive(Clone, Debug)]
pub struct Quotas {
    /// How they are kept.
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

impl Engine {
    /// Returns how quotas are kept, and all groups in the order of their numbers, as the last
    /// commit left them. `None` where there are no quotas.
    ///
    /// # Errors
    ///
    /// When the quota tree cannot be read, or an item makes no sense.
    pub fn quotas(&self) -> Result<Option<Quotas>> {
        self.quotas_of(self.view().roots())
    }

    /// As [`quotas`](Self::quotas), in these trees.
    pub(crate) fn quotas_of(&self, roots: &Roots) -> Result<Option<Quotas>> {
        let status = quota_status(&self.store, roots)?;
        let status = status.filter(|status| status.flags & QuotaStatus::ON != 0);
        let (Some(status), Some(root)) = (status, roots.find(TreeId::QUOTA)) else {
            return Ok(None);
        };
        let mut groups: Vec<QuotaUse> = Vec::new();
        let mut cursor = Cursor::seek(&*self.store, TreeId::QUOTA, root, &Key::MIN)?;
        while let Some((key, item)) = cursor.key().zip(cursor.item()) {
            let malformed = |source| Error::Item { tree: TreeId::QUOTA, key, source };
            let group = QuotaGroup(key.offset);
            match key.kind {
                // All counts stand before all limits, and both before memberships.
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
}

impl Engine {
    /// Asks for `bytes` that a subvolume is about to write. Bytes of zero ask whether it
    /// may write anything at all.
    ///
    /// # Errors
    ///
    /// [`Error::Quota`] when a limit is in the way; those of reading the quota tree.
    pub fn charge_quota(&self, tree: TreeId, bytes: u64) -> Result<()> {
        let look = || match quota_status(&self.store, self.view().roots())? {
            Some(status) if status.is_simple() => {
                Ok(self.quotas()?.map_or_else(Vec::new, |found| found.groups))
            }
            _ => Ok(Vec::new()),
        };
        match self.quota_limits.charge(tree, bytes, self.published(), look)? {
            true => Ok(()),
            false => Err(Error::Quota),
        }
    }

    /// Forgets what writers asked for, when all of it was written back. What they asked for and did
    /// not need counted until now.
    pub fn settle_quota(&self, tree: TreeId) {
        self.quota_limits.settle(tree);
    }

    /// Says whether a commit could show that a subvolume uses less than it seems to. Then something
    /// is on the way, or extents were freed since the last commit.
    #[must_use]
    pub fn commit_may_free_quota(&self, tree: TreeId) -> bool {
        self.quota_limits.is_any_on_the_way(tree) || !self.view.load().running().refs.is_empty()
    }
}
