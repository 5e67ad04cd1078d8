//! The requested changes of quotas: switching them on and off, groups, limits, memberships.
//!
//! # Invariants
//!
//! - **C1** A change that contradicts the present quotas is left out. The caller has checked the
//!   quotas, so only a concurrent change can cause the contradiction.
//! - **C2** Simple quotas begin to count in the transaction after the transaction that enables
//!   them. So each extent that is subtracted from a group was added to the group before.
//! - **C3** A group counts each subvolume below it once. So a membership changes the counts of a
//!   group above only by the subvolumes that no other path puts below that group.

use std::collections::BTreeSet;

use buttress_format::{
    Incompat, Ino, Key, Kind, QuotaGroup, QuotaInfo, QuotaLimit, QuotaStatus, RootItem, TreeId,
};
use buttress_tree::{Cursor, Expect, Node, NodePtr};

use super::quota::QuotaItems;
use super::settle::{Changes, Settle};
use super::subvolumes::parse_root;
use buttress_transaction::WantedQuota;

use crate::{Error, QuotaChange, Result};

impl QuotaItems<'_> {
    /// Makes one change of groups (C1). Returns false if full counts are wrong afterwards.
    pub(super) fn change(&mut self, change: &QuotaChange, status: &QuotaStatus) -> Result<bool> {
        let is_simple = status.is_simple();
        match *change {
            QuotaChange::Make(group) => {
                if self.info(group)?.is_none() {
                    self.group(group);
                }
                Ok(true)
            }
            QuotaChange::Remove(group) => {
                let Some(info) = self.info(group)? else { return Ok(true) };
                let related = self.relations(group)?;
                let is_in_use = is_simple && !info.is_zero()
                    || related.iter().any(|other| other.level() < group.level());
                if is_in_use {
                    return Ok(true);
                }
                let mut are_right = true;
                for parent in related {
                    are_right &= self.relate(group, parent, false, is_simple)?;
                }
                self.remove(group)?;
                Ok(are_right)
            }
            QuotaChange::Limit(group, limit) => {
                if self.info(group)?.is_some() {
                    self.put(group.limit_key(), limit.to_bytes());
                }
                Ok(true)
            }
            QuotaChange::Join { child, parent } => self.relate(child, parent, true, is_simple),
            QuotaChange::Leave { child, parent } => self.relate(child, parent, false, is_simple),
            QuotaChange::Enable { .. } | QuotaChange::Disable | QuotaChange::Count(_) => Ok(true),
        }
    }

    /// Puts the items of a group, with all counts zero.
    pub(super) fn group(&mut self, group: QuotaGroup) {
        let info = QuotaInfo { generation: self.generation, ..QuotaInfo::default() };
        self.put(group.info_key(), info.to_bytes());
        self.put(group.limit_key(), QuotaLimit::default().to_bytes());
    }

    /// Begins or ends a membership. Each group above counts a subvolume once, even if several paths
    /// lead to the subvolume (C3). Returns false if full counts are wrong afterwards. The cause is
    /// that a part of the child's use is shared, or that only some of the child's subvolumes are
    /// new to a group.
    fn relate(
        &mut self,
        child: QuotaGroup,
        parent: QuotaGroup,
        joins: bool,
        is_simple: bool,
    ) -> Result<bool> {
        let (Some(info), Some(_)) = (self.info(child)?, self.info(parent)?) else {
            return Ok(true);
        };
        let is_member = self.relations(child)?.contains(&parent);
        if is_member == joins || child.level() >= parent.level() {
            return Ok(true);
        }
        let keys = child.relation_keys(parent);
        for key in keys {
            self.changes.insert(key, None);
        }
        let below = self.subvolumes_below(child)?;
        let mut are_right = true;
        for group in self.groups_above(parent)? {
            let apart = self.subvolumes_below(group)?;
            let moved: Vec<_> = below.difference(&apart).collect();
            let bytes = if moved.len() == below.len() {
                are_right &= info.exclusive == info.referenced;
                info.referenced
            } else if is_simple {
                let used = |group: &&QuotaGroup| self.info(**group).transpose();
                let used = moved.iter().filter_map(used);
                used.map(|info| info.map(|info| info.referenced)).sum::<Result<u64>>()?
            } else {
                are_right &= moved.is_empty();
                continue;
            };
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            are_right &= self.add_to(group, if joins { bytes } else { -bytes })?;
        }
        for key in keys {
            self.changes.insert(key, joins.then(|| Vec::new().into()));
        }
        Ok(are_right)
    }
}

impl Settle<'_> {
    /// Switches quotas on or off as this transaction requests. Returns the new status of quotas;
    /// `None` if quotas are off.
    pub(super) fn quotas_by_now(&mut self, wanted: &[WantedQuota]) -> Result<Option<QuotaStatus>> {
        let mut now = self.quotas.status;
        for WantedQuota { change, .. } in wanted {
            match *change {
                QuotaChange::Enable { simple } if now.is_none() => {
                    self.remove_quota_tree()?;
                    now = Some(self.make_quota_tree(simple)?);
                }
                QuotaChange::Disable => {
                    self.remove_quota_tree()?;
                    now = None;
                }
                _ => {}
            }
        }
        Ok(now)
    }

    /// Makes the quota tree, with a group for each subvolume.
    fn make_quota_tree(&mut self, simple: bool) -> Result<QuotaStatus> {
        let generation = self.transaction.generation;
        let key = Key::new(TreeId::QUOTA.0, Kind::ROOT_ITEM, 0);
        let item = RootItem { refs: 1, root_dirid: Ino(0), ..RootItem::default() };
        self.merge(TreeId::ROOT, Changes::from([(key, Some(item.to_bytes().into()))]))?;
        let kind = if simple { QuotaStatus::SIMPLE } else { QuotaStatus::INCONSISTENT };
        let status = QuotaStatus {
            version: QuotaStatus::VERSION,
            generation,
            flags: QuotaStatus::ON | kind,
            rescan: 0,
            // C2
            enabled: simple.then(|| generation.next()),
        };
        let mut changes = Changes::from([(QuotaStatus::KEY, Some(status.to_bytes().into()))]);
        let info = QuotaInfo { generation, ..QuotaInfo::default() };
        for (tree, _) in self.subvolume_roots()? {
            let group = QuotaGroup::of(tree);
            changes.insert(group.info_key(), Some(info.to_bytes().into()));
            changes.insert(group.limit_key(), Some(QuotaLimit::default().to_bytes().into()));
        }
        self.merge(TreeId::QUOTA, changes)?;
        if simple {
            self.owners.commits.need_feature(Incompat::SIMPLE_QUOTA);
        }
        Ok(status)
    }

    /// Removes the quota tree, if there is one.
    fn remove_quota_tree(&mut self) -> Result<()> {
        let tree = TreeId::QUOTA;
        let Some(root) = self.roots.find(tree) else { return Ok(()) };
        let mut waiting = vec![Expect::root(root)];
        let mut nodes: Vec<std::sync::Arc<Node>> = Vec::new();
        while let Some(at) = waiting.pop() {
            let node = self.reading(|source| {
                buttress_tree::NodeSource::node(source, tree, &at).map_err(Error::from)
            })?;
            if node.level() > 0 {
                waiting.extend((0..node.len()).map(|slot| node.expect_child_below(slot, at.below)));
            }
            nodes.push(node);
        }
        for node in nodes {
            self.addresses.stop_using(tree, &node, 0)?;
            self.fresh.forget(node.logical());
        }
        self.remove_tree(tree);
        let key = Key::new(tree.0, Kind::ROOT_ITEM, 0);
        self.merge(TreeId::ROOT, Changes::from([(key, None)]))
    }

    /// The present roots of all subvolumes, in the order of subvolume numbers.
    pub(super) fn subvolume_roots(&mut self) -> Result<Vec<(TreeId, NodePtr)>> {
        let root = self.must_root(TreeId::ROOT)?;
        let items = self.reading(|source| {
            let mut items = Vec::new();
            let mut cursor = Cursor::seek(source, TreeId::ROOT, root, &Key::MIN)?;
            while let Some((key, item)) = cursor.key().zip(cursor.item()) {
                if key.kind == Kind::ROOT_ITEM && TreeId(key.objectid).is_fs_tree() {
                    items.push((TreeId(key.objectid), parse_root(key, item)?));
                }
                cursor.advance()?;
            }
            Ok(items)
        })?;
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        for (tree, item) in items.into_iter().rev().filter(|(tree, _)| seen.insert(*tree)) {
            let recorded =
                NodePtr { logical: item.bytenr, generation: item.generation, level: item.level };
            found.push((tree, self.roots.find(tree).unwrap_or(recorded)));
        }
        found.reverse();
        Ok(found)
    }
}
