//! The quotas of the last commit, and requests for bytes within their limits.

use buttress_format::{Key, Kind, QuotaGroup, QuotaInfo, QuotaLimit, QuotaStatus, TreeId};
use buttress_tree::{Cursor, Roots};

use crate::quota_limits::QuotaUse;
use crate::{Engine, Error, QuotaCharge, Result, commit::quota_status};

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

impl Engine {
    /// Returns the status of quotas and all groups, in the order of their numbers, as the last
    /// commit left them. `None` if quotas are off.
    ///
    /// # Errors
    ///
    /// When the quota tree cannot be read, or an item makes no sense.
    pub fn quotas(&self) -> Result<Option<Quotas>> {
        self.quotas_of(self.view().roots())
    }

    /// As [`quotas`](Self::quotas), but from the trees under `roots`.
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
}

impl Engine {
    /// Asks for `bytes` of data that a subvolume is about to write. The charge counts until it is
    /// dropped or merged into a reservation. Zero bytes are always admitted.
    ///
    /// # Errors
    ///
    /// [`Error::Quota`] when the bytes exceed a limit; the errors of reading the quota tree.
    pub fn charge_quota(&self, tree: TreeId, bytes: u64) -> Result<QuotaCharge> {
        match bytes {
            0 => Ok(QuotaCharge::default()),
            _ => self.ask_quota(tree, bytes),
        }
    }

    /// Returns an error if the limits leave no bytes to a subvolume.
    ///
    /// # Errors
    ///
    /// As [`charge_quota`](Self::charge_quota).
    pub fn expect_quota(&self, tree: TreeId) -> Result<()> {
        self.ask_quota(tree, 0).map(drop)
    }

    fn ask_quota(&self, tree: TreeId, bytes: u64) -> Result<QuotaCharge> {
        let look = || {
            crate::open_handles::expect_none("handle::H2: the quota tree is read");
            let view = self.view();
            let last = view.roots().generation;
            let are_right = |status: &QuotaStatus| status.is_simple() || status.is_counted(last);
            let found = self.quotas_of(view.roots())?.filter(|found| are_right(&found.status));
            let is_simple = found.as_ref().is_some_and(|found| found.status.is_simple());
            Ok((last, found.map_or_else(Vec::new, |found| found.groups), is_simple))
        };
        self.quota_limits.charge(tree, bytes, look)?.ok_or(Error::Quota)
    }

    /// Whether the next commit may show that a subvolume uses less than the present figures say.
    /// This is possible if bytes are on the way, if extents were freed since the last commit, or if
    /// a commit is under way.
    #[must_use]
    pub fn commit_may_free_quota(&self, tree: TreeId) -> bool {
        let view = self.view.load();
        self.quota_limits.is_any_on_the_way(tree)
            || view.frozen().is_some()
            || !view.running().refs.is_empty()
    }
}
