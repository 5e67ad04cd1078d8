//! Quotas in a commit.
//!
//! Simple quotas charge each extent to the subvolume that made it. The commit knows that subvolume
//! for each extent that is made or freed, so it counts as Linux does. Full quotas charge an extent
//! to every subvolume that can reach it. The commit follows the nodes and data that each subvolume
//! gains and loses (`trail`). If the commit cannot follow them, it marks the counts as
//! inconsistent, and the user runs `quota rescan`. The groups and their memberships stay correct.
//!
//! # Invariants
//!
//! - **Q1** With simple quotas, the use of a group is a sum of extent lengths. It includes each
//!   extent that still exists and that a member of the group made after quotas were enabled. The
//!   maker of data is the owner in its item; the maker of a node is the tree in its header.
//! - **Q2** With full quotas, counts without the flag INCONSISTENT are right for the commit that
//!   stores them. A commit counts only if the counts of the last commit were right, or if a rescan
//!   has counted the last commit. Otherwise the commit sets the flag. If such a commit changes a
//!   subvolume, it also ends a running rescan.
//! - **Q3** The transaction that makes a subvolume also makes its group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use buttress_format::{
    Generation, Key, Kind, Logical, QuotaGroup, QuotaInfo, QuotaLimit, QuotaStatus, TreeId,
};
use buttress_transaction::{QuotaCounts, WantedQuota};
use buttress_tree::{Cursor, Merge, Node, NodePtr, NodeSource, Roots, Store};

use super::{
    addresses::AddressChange,
    settle::{Changes, Settle},
};
use crate::{Error, QuotaChange, Result, extent_tree::Origin, quotas, reserve::QuotaChanges};

/// What a commit has to count for quotas: its changes of bytes, and of subvolumes.
#[derive(Default)]
pub(super) struct QuotaDeltas {
    pub(super) status: Option<QuotaStatus>,
    /// Whether the stored counts of full quotas are right for the last commit.
    are_right: bool,
    /// Change of the bytes charged to each subvolume.
    deltas: BTreeMap<TreeId, i64>,
    /// New subvolumes, each with its source if it is a snapshot.
    made: Vec<(TreeId, Option<TreeId>)>,
    gone: Vec<TreeId>,
}

fn malformed(key: Key) -> impl Fn(buttress_format::Error) -> Error {
    move |source| Error::Item { tree: TreeId::QUOTA, key, source }
}

impl QuotaDeltas {
    pub(super) fn read(store: &Store, roots: &Roots) -> Result<Self> {
        let status =
            quotas::status(store, roots)?.filter(|status| status.flags & QuotaStatus::ON != 0);
        let are_right = status.is_some_and(|status| status.is_counted(roots.generation));
        Ok(Self { status, are_right, ..Self::default() })
    }

    /// Whether the commit follows the nodes and data that subvolumes gain and lose (Q2).
    pub(super) fn needs_trail(&self, wanted: &[WantedQuota], last: Generation) -> bool {
        if !self.status.is_some_and(|status| status.is_full()) {
            return false;
        }
        let is_current = |wanted: &WantedQuota| matches!(&wanted.change, QuotaChange::Count(counts) if counts.of == last);
        self.are_right || wanted.iter().any(is_current)
    }

    pub(super) fn is_simple(&self) -> bool {
        self.status.is_some_and(|status| status.is_simple())
    }

    fn add(&mut self, tree: Option<TreeId>, delta: i64) {
        if let Some(tree) = tree.filter(|tree| self.is_simple() && tree.is_fs_tree()) {
            *self.deltas.entry(tree).or_default() += delta;
        }
    }

    /// Charges a new extent to its owner.
    pub(super) fn charge(&mut self, owner: Option<TreeId>, len: u64) {
        self.add(owner, len as i64);
    }

    /// Subtracts a freed extent from its owner, if the extent was made since quotas were enabled.
    pub(super) fn uncharge(&mut self, origin: Option<Origin>, len: u64) {
        let since = self.status.and_then(|status| status.enabled).unwrap_or(Generation(0));
        if let Some(origin) = origin.filter(|origin| origin.generation >= since) {
            self.add(origin.owner, -(len as i64));
        }
    }

    /// Notes that a subvolume was made.
    pub(super) fn subvolume_made(&mut self, tree: TreeId, source: Option<TreeId>) {
        if self.status.is_some() && tree.is_fs_tree() {
            self.made.push((tree, source));
        }
    }

    /// Notes that the last node of a subvolume was dropped.
    pub(super) fn subvolume_gone(&mut self, tree: TreeId) {
        if self.status.is_some() {
            self.gone.push(tree);
        }
    }
}

/// The quota tree as this commit leaves it: the items that were read, and the changed items.
pub(super) struct QuotaItems<'m> {
    pub(super) source: &'m Merge<'m>,
    pub(super) root: NodePtr,
    pub(super) generation: Generation,
    pub(super) changes: Changes,
}

impl QuotaItems<'_> {
    pub(super) fn get(&self, key: &Key) -> Result<Option<Box<[u8]>>> {
        if let Some(change) = self.changes.get(key) {
            return Ok(change.as_ref().map(|bytes| bytes.to_vec().into()));
        }
        let found = Cursor::find(self.source, TreeId::QUOTA, self.root, key)?;
        Ok(found.map(|(node, slot)| node.item(slot).into()))
    }

    pub(super) fn put(&mut self, key: Key, bytes: Vec<u8>) {
        self.changes.insert(key, Some(bytes.into()));
    }

    pub(super) fn info(&self, group: QuotaGroup) -> Result<Option<QuotaInfo>> {
        let key = group.info_key();
        let item = self.get(&key)?;
        item.map(|bytes| QuotaInfo::parse(&bytes).map_err(malformed(key))).transpose()
    }

    pub(super) fn relations(&self, group: QuotaGroup) -> Result<BTreeSet<QuotaGroup>> {
        let low = Key::new(group.0, Kind::QGROUP_RELATION, 0);
        let mut found = BTreeSet::new();
        let mut cursor = Cursor::seek(self.source, TreeId::QUOTA, self.root, &low)?;
        while let Some(key) = cursor.key() {
            if key.objectid != group.0 || key.kind != Kind::QGROUP_RELATION {
                break;
            }
            found.insert(QuotaGroup(key.offset));
            cursor.advance()?;
        }
        let high = Key::new(group.0, Kind::QGROUP_RELATION, u64::MAX);
        for (key, change) in self.changes.range(low..=high) {
            let other = QuotaGroup(key.offset);
            if change.is_some() {
                found.insert(other)
            } else {
                found.remove(&other)
            };
        }
        Ok(found)
    }

    /// The groups that a group is a member of.
    pub(super) fn parents(&self, group: QuotaGroup) -> Result<Vec<QuotaGroup>> {
        let related = self.relations(group)?;
        Ok(related.into_iter().filter(|other| other.level() > group.level()).collect())
    }

    /// Makes the group of a new subvolume, as Linux does. With full quotas, a snapshot's group
    /// begins with the counts and limits of its source's group. With simple quotas, a subvolume
    /// joins the parent groups of the subvolume that contains it.
    pub(super) fn make(
        &mut self,
        tree: TreeId,
        copied: Option<TreeId>,
        within: Option<TreeId>,
    ) -> Result<()> {
        let group = QuotaGroup::of(tree);
        if self.info(group)?.is_some() {
            return Ok(());
        }
        let mut info = QuotaInfo::default();
        let mut limits = QuotaLimit::default().to_bytes();
        if let Some(source) = copied.map(QuotaGroup::of) {
            info = self.info(source)?.unwrap_or_default();
            if let Some(theirs) = self.get(&source.limit_key())? {
                limits = theirs.into_vec();
            }
        }
        info.generation = self.generation;
        self.put(group.info_key(), info.to_bytes());
        self.put(group.limit_key(), limits);
        for parent in within.map_or(Ok(Vec::new()), |tree| self.parents(QuotaGroup::of(tree)))? {
            for key in group.relation_keys(parent) {
                self.put(key, Vec::new());
            }
        }
        Ok(())
    }

    /// Adds `delta` to the use of a group, and once to each group above it.
    fn add(&mut self, group: QuotaGroup, delta: i64) -> Result<()> {
        for group in self.groups_above(group)? {
            self.add_to(group, delta)?;
        }
        Ok(())
    }

    /// Adds `delta` to both counts of one group. Returns false if full counts cannot have been
    /// right (`commit::quota_counts::N2`).
    pub(super) fn add_to(&mut self, group: QuotaGroup, delta: i64) -> Result<bool> {
        // A deleted group has no counts.
        let Some(mut info) = self.info(group)? else { return Ok(true) };
        let can_be = [info.referenced, info.exclusive]
            .into_iter()
            .all(|bytes| bytes.checked_add_signed(delta).is_some());
        info.referenced = info.referenced.saturating_add_signed(delta);
        info.exclusive = info.exclusive.saturating_add_signed(delta);
        Ok(self.put_info(group, info) && can_be)
    }

    /// Deletes the group of a dropped subvolume. With simple quotas, keeps the group as long as
    /// extents that the subvolume made are in use. Returns whether the group's counts were zero.
    /// With full quotas, the counts of a dropped subvolume's group are zero if they are right.
    fn gone(&mut self, tree: TreeId, simple: bool) -> Result<bool> {
        let group = QuotaGroup::of(tree);
        let Some(info) = self.info(group)? else { return Ok(true) };
        if !simple || info.is_zero() {
            self.remove(group)?;
        }
        Ok(info.is_zero())
    }

    /// Replaces the counts of all groups.
    fn put_counts(&mut self, counts: &QuotaCounts) -> Result<()> {
        for group in self.groups()? {
            let (referenced, exclusive) = counts.groups.get(&group).copied().unwrap_or_default();
            self.put_info(group, QuotaInfo { referenced, exclusive, ..QuotaInfo::default() });
        }
        Ok(())
    }

    /// All groups.
    fn groups(&self) -> Result<BTreeSet<QuotaGroup>> {
        let first = Key::new(0, Kind::QGROUP_INFO, 0);
        let last = Key::new(0, Kind::QGROUP_INFO, u64::MAX);
        let mut found = BTreeSet::new();
        let mut cursor = Cursor::seek(self.source, TreeId::QUOTA, self.root, &first)?;
        while let Some(key) = cursor.key().filter(|key| *key <= last) {
            found.insert(QuotaGroup(key.offset));
            cursor.advance()?;
        }
        for (key, change) in self.changes.range(first..=last) {
            match change {
                Some(_) => found.insert(QuotaGroup(key.offset)),
                None => found.remove(&QuotaGroup(key.offset)),
            };
        }
        Ok(found)
    }

    /// Removes a group and its memberships.
    pub(super) fn remove(&mut self, group: QuotaGroup) -> Result<()> {
        for other in self.relations(group)? {
            for key in group.relation_keys(other) {
                self.changes.insert(key, None);
            }
        }
        self.changes.insert(group.info_key(), None);
        self.changes.insert(group.limit_key(), None);
        Ok(())
    }
}

/// The subvolume that contains the entry of another subvolume.
fn home<S: NodeSource + ?Sized>(source: &S, root: NodePtr, tree: TreeId) -> Result<Option<TreeId>> {
    let first = Key::new(tree.0, Kind::ROOT_BACKREF, 0);
    let cursor = Cursor::seek(source, TreeId::ROOT, root, &first)?;
    let found = cursor.key().filter(|key| key.objectid == tree.0 && key.kind == first.kind);
    Ok(found.map(|key| TreeId(key.offset)))
}

/// The effect that changes of the quota tree have on limits. `is_new` is true if the counts become
/// right with this commit.
fn news(changes: &Changes, is_new: bool) -> Result<QuotaChanges> {
    let mut news = QuotaChanges {
        is_kept: true,
        sets_limit: is_new,
        regroups: is_new,
        ..QuotaChanges::default()
    };
    for (key, change) in changes {
        match (key.kind, change) {
            (Kind::QGROUP_INFO, Some(item)) => {
                let info = QuotaInfo::parse(item).map_err(malformed(*key))?;
                news.used.push((QuotaGroup(key.offset), info));
            }
            (Kind::QGROUP_LIMIT, Some(item)) => {
                let limit = QuotaLimit::parse(item).map_err(malformed(*key))?;
                news.sets_limit |= limit.flags != 0;
                news.regroups = true;
            }
            (Kind::QGROUP_INFO | Kind::QGROUP_LIMIT | Kind::QGROUP_RELATION, _) => {
                news.regroups = true;
            }
            _ => {}
        }
    }
    Ok(news)
}

impl Settle<'_> {
    /// Applies the changes of subvolumes, nodes and data to the quota tree. Runs after all changes
    /// of file trees.
    pub(super) fn count_quotas(&mut self) -> Result<()> {
        let wanted = self.transaction.quotas.change(std::mem::take);
        let Some(before) = self.quotas_by_now(&wanted)? else { return Ok(()) };
        let generation = self.transaction.generation;
        let nodesize = u64::from(self.owners.storage.store().geometry().nodesize);
        let mut quotas = std::mem::take(&mut self.quotas);
        for (at, change) in self.addresses.changes() {
            match change {
                AddressChange::New { tree, .. } => quotas.charge(Some(tree), nodesize),
                AddressChange::Retired { .. } => {
                    quotas.uncharge(self.addresses.maker(at), nodesize);
                }
                AddressChange::Cancelled { .. } => {}
            }
        }
        let simple = before.is_simple();
        let has_changed = self.addresses.node_delta.keys().any(|tree| tree.is_fs_tree())
            || !quotas.made.is_empty()
            || !quotas.gone.is_empty();
        self.sum_trail(false);
        let trail = self.addresses.trail.take().and_then(|trail| trail.end());
        let last = self.owners.commits.peek().roots().generation;
        let root = self.must_root(TreeId::QUOTA)?;
        let names = self.must_root(TreeId::ROOT)?;
        let (changes, is_kept) = self.reading(|source| {
            let mut items = QuotaItems { source, root, generation, changes: Changes::new() };
            let mut status = before;
            // If this commit switches quotas on, their counts are marked as inconsistent.
            let mut are_right = quotas.are_right && status.flags & QuotaStatus::INCONSISTENT == 0;
            for WantedQuota { change, .. } in &wanted {
                let QuotaChange::Count(counts) = change else { continue };
                // Counts of an older commit replace only wrong counts.
                if status.is_full() && (counts.of == last || !are_right) {
                    items.put_counts(counts)?;
                    are_right = counts.of == last;
                    status.flags &= !QuotaStatus::RESCAN;
                    status.rescan = 0;
                }
            }
            for (tree, copied) in &quotas.made {
                let within = if simple { home(source, names, *tree)? } else { None };
                // The trail makes the groups of snapshots.
                if copied.is_none() || trail.is_none() {
                    items.make(*tree, copied.filter(|_| !simple), within)?;
                }
            }
            for (tree, delta) in &quotas.deltas {
                if *delta != 0 {
                    items.add(QuotaGroup::of(*tree), *delta)?;
                }
            }
            are_right = are_right
                && match &trail {
                    Some((steps, sets)) => items.count(steps, sets, nodesize)?,
                    None => !has_changed,
                };
            // If counting ended early, these groups are still missing.
            for (tree, copied) in quotas.made.iter().filter(|_| !simple) {
                items.make(*tree, *copied, None)?;
            }
            for tree in &quotas.gone {
                are_right &= items.gone(*tree, simple)?;
            }
            for WantedQuota { change, .. } in &wanted {
                are_right &= items.change(change, &status)?;
            }
            if status.is_full() {
                let others = status.flags & !QuotaStatus::INCONSISTENT;
                if are_right {
                    status.flags = others;
                } else {
                    if has_changed {
                        status.flags &= !QuotaStatus::RESCAN;
                        status.rescan = 0;
                    }
                    status.flags |= QuotaStatus::INCONSISTENT;
                }
            }
            // Linux treats the counts as outdated if the status has a generation older than the
            // superblock's.
            if status != before || !items.changes.is_empty() || are_right {
                status.generation = generation;
                items.put(QuotaStatus::KEY, status.to_bytes());
            }
            Ok((items.changes, status.is_simple() || are_right))
        })?;
        self.quotas = quotas;
        if is_kept {
            self.quota_news = news(&changes, !simple && !self.quotas.are_right)?;
        }
        self.merge(TreeId::QUOTA, changes)
    }
}

impl Settle<'_> {
    /// Sums the trail. With `goes_on`, more changes may be noted afterwards.
    pub(super) fn sum_trail(&mut self, goes_on: bool) {
        let Some(mut trail) = self.addresses.trail.take() else { return };
        let nodesize = u64::from(self.nodesize());
        let refs = &self.transaction.refs;
        let has_born = |at| refs.look(at, |change| change.born).unwrap_or(false);
        trail.sum(&self.fresh, nodesize, &has_born, goes_on);
        self.addresses.trail = Some(trail);
    }

    /// Notes a cut in the trail.
    pub(super) fn trail_cut(
        &mut self,
        source: TreeId,
        target: TreeId,
        root: Logical,
        copy: &Arc<Node>,
    ) {
        if let Some(trail) = &mut self.addresses.trail {
            trail.cut(source, target, root, Arc::clone(copy));
        }
    }
}
