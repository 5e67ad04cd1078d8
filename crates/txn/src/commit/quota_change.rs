//! The requested changes of quotas: switching them on and off, groups, limits, memberships.
//!
//! # Invariants
//!
//! - **C1** A change that contradicts the present quotas is left out. The caller has checked the
//!   quotas, so only a concurrent change can cause this.
//! - **C2** Simple quotas count from the transaction on that follows the one that enables them. So
//!   each extent that is subtracted from a group was added to the group before.

use std::collections::BTreeSet;

use buttress_format::{
    Incompat, Ino, Key, Kind, QuotaGroup, QuotaInfo, QuotaLimit, QuotaStatus, RootItem, TreeId,
};
use buttress_tree::{Cursor, Expect, Node, NodePtr};

use super::quota::Work;
use super::settle::{Changes, Settle};
use super::subvolumes::parse_root;
use buttress_transaction::WantedQuota;

use crate::{Error, QuotaChange, Result};

impl Work<'_> {
    /// Makes one change of groups (C1). Returns false if full counts are not right after that.
    pub(super) fn change(&mut self, change: &QuotaChange, status: &QuotaStatus) -> Result<bool> {
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
                let is_in_use = status.is_simple() && !info.is_zero()
                    || related.iter().any(|other| other.level() < group.level());
                if is_in_use {
                    return Ok(true);
                }
                let mut are_right = true;
                for parent in related {
                    are_right &= self.relate(group, parent, false)?;
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
            QuotaChange::Join { child, parent } => self.relate(child, parent, true),
            QuotaChange::Leave { child, parent } => self.relate(child, parent, false),
            QuotaChange::Enable { .. } | QuotaChange::Disable | QuotaChange::Count(_) => Ok(true),
        }
    }

    /// Puts the items of a group, with all counts zero.
    pub(super) fn group(&mut self, group: QuotaGroup) {
        let info = QuotaInfo { generation: self.generation, ..QuotaInfo::default() };
        self.put(group.info_key(), info.to_bytes());
        self.put(group.limit_key(), QuotaLimit::default().to_bytes());
    }

    /// Begins or ends a membership. The use of the child is added to the groups above it, or
    /// subtracted, unless it counts for them in another way. If a part of this use is shared,
    /// full counts become inconsistent instead, as in Linux. Returns false then.
    fn relate(&mut self, child: QuotaGroup, parent: QuotaGroup, joins: bool) -> Result<bool> {
        let (Some(info), Some(_)) = (self.info(child)?, self.info(parent)?) else {
            return Ok(true);
        };
        let is_member = self.relations(child)?.contains(&parent);
        if is_member == joins || child.level() >= parent.level() {
            return Ok(true);
        }
        let put = |work: &mut Self, joins: bool| {
            for key in child.relation_keys(parent) {
                work.changes.insert(key, joins.then(|| Vec::new().into()));
            }
        };
        put(self, false);
        let others = self.groups_above(child)?;
        put(self, joins);
        let changed: Vec<_> = self.groups_above(parent)?.difference(&others).copied().collect();
        if info.exclusive != info.referenced {
            return Ok(changed.is_empty());
        }
        let delta = i64::try_from(info.referenced).unwrap_or(i64::MAX);
        for group in changed {
            self.add_to(group, if joins { delta } else { -delta })?;
        }
        Ok(true)
    }
}

impl Settle<'_> {
    /// Switches quotas on or off as this transaction requests. Returns the status of quotas after
    /// that; `None` if quotas are off.
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
            self.engine.need_feature(Incompat::SIMPLE_QUOTA);
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
