//! Limits of quotas: how many bytes a subvolume may still write.
//!
//! The use of a group is the count of the last commit, plus the bytes on the way. Bytes are on the
//! way if a writer was admitted for them and no transaction has made an extent of them. Bytes of
//! extents of a transaction that is not durable yet are also on the way. A writer that was admitted
//! gets a [`QuotaCharge`], which lives with the reserved or dirty data.
//!
//! # Invariants
//!
//! - **L1** A writer that was admitted stays within the limits of all groups of its subvolume. A
//!   limit that is set meanwhile does not stop writers that were admitted before.
//! - **L2** A refusal is final here: nothing is freed or waited for. The caller may write back and
//!   commit once, which shows the real use.
//! - **L3** Where no limit was set, writers take no lock for limits. The quota tree is read again
//!   only after a commit that changed limits or memberships.
//! - **L4** Each admitted byte is on the way until its charge ends without an extent, or until the
//!   commit of its extent is durable. The byte counts once, for the subvolume that asked for it.
//! - **L5** No device is read while the lock is held. The result of a read is used only if no
//!   commit was published meanwhile.
//!
//! A group of full quotas has a limit for all bytes and a limit for exclusive bytes. New bytes
//! count for both limits, since no other subvolume reaches these bytes. Limits of full quotas apply
//! only while the counts are right. With simple quotas all bytes are exclusive.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::sync::Mutex;
use buttress_format::{Generation, Logical, QuotaGroup, QuotaInfo, QuotaLimit, TreeId};

use buttress_transaction::Result;

use crate::quota_charge::QuotaCharge;

/// One group, as a commit left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaUse {
    /// The group.
    pub group: QuotaGroup,
    /// The bytes that the group uses.
    pub info: QuotaInfo,
    /// The limits of the group.
    pub limit: QuotaLimit,
    /// The groups that this group is a member of.
    pub parents: Vec<QuotaGroup>,
    /// The members of this group.
    pub children: Vec<QuotaGroup>,
}

/// The changes that a commit made to quotas.
#[derive(Debug, Default)]
pub struct QuotaChanges {
    /// Whether the counts are right: quotas are simple, or full quotas are not marked as
    /// inconsistent.
    pub is_kept: bool,
    /// Whether the commit set a limit, or made limits apply.
    pub sets_limit: bool,
    /// Whether the commit changed any item of a limit or a membership, or removed a group.
    pub regroups: bool,
    /// The bytes that each changed group uses now.
    pub used: Vec<(QuotaGroup, QuotaInfo)>,
}

/// The limits of a volume.
#[derive(Debug, Default)]
pub struct QuotaLimits {
    /// Whether there may be a limit. The flag changes under the lock.
    is_on: AtomicBool,
    /// Unranked: nothing is taken under it.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last commit that was published.
    published: Generation,
    /// Whether `groups` and `above` are as the commit `published` left them.
    is_known: bool,
    groups: HashMap<QuotaGroup, Limited>,
    /// Whether a new subvolume joins the parent groups of the subvolume that contains it (simple
    /// quotas).
    joins: bool,
    /// For each subvolume, the groups with limits that apply to it.
    above: HashMap<TreeId, Vec<QuotaGroup>>,
    /// Subvolumes that are not committed yet, each with the subvolume that contains it, and the
    /// transaction that makes it.
    made: HashMap<TreeId, (TreeId, Generation)>,
    /// Bytes of live charges.
    waiting: HashMap<TreeId, u64>,
    /// Charged extents of transactions that are not durable, by their starts.
    born: HashMap<Logical, ChargedExtent>,
}

/// A group with a limit.
#[derive(Clone, Debug, Default)]
struct Limited {
    used: QuotaInfo,
    limit: QuotaLimit,
    /// The bytes on the way for the subvolumes of the group.
    coming: u64,
}

/// A charged extent.
#[derive(Clone, Copy, Debug)]
struct ChargedExtent {
    tree: TreeId,
    bytes: u64,
    generation: Generation,
}

impl Limited {
    /// Whether the limits leave room for more bytes.
    fn has_room(&self, bytes: u64) -> bool {
        let fits = |used: u64, most: Option<u64>| {
            let all = used.saturating_add(self.coming).saturating_add(bytes);
            most.is_none_or(|most| all <= most)
        };
        fits(self.used.referenced, self.limit.max_referenced())
            && fits(self.used.exclusive, self.limit.max_exclusive())
    }
}

impl State {
    /// Uses the groups that were read from the last commit. The bytes on the way still count.
    fn take(&mut self, uses: &[QuotaUse]) {
        let has_limit = |one: &&QuotaUse| {
            one.limit.max_referenced().is_some() || one.limit.max_exclusive().is_some()
        };
        let limited =
            |one: &QuotaUse| (one.group, Limited { used: one.info, limit: one.limit, coming: 0 });
        self.groups = uses.iter().filter(has_limit).map(limited).collect();
        self.above = uses
            .iter()
            .filter(|one| one.group.level() == 0)
            .map(|one| (TreeId(one.group.0), self.limited_above(one.group, uses)))
            .filter(|(_, groups)| !groups.is_empty())
            .collect();
        let waiting = self.waiting.iter().map(|(tree, bytes)| (*tree, *bytes));
        let born = self.born.values().map(|born| (born.tree, born.bytes));
        for (tree, bytes) in waiting.chain(born).collect::<Vec<_>>() {
            self.each(tree, |group| group.coming += bytes);
        }
        self.is_known = true;
    }

    fn limited_above(&self, group: QuotaGroup, uses: &[QuotaUse]) -> Vec<QuotaGroup> {
        let mut found = BTreeSet::from([group]);
        let mut waiting = vec![group];
        while let Some(group) = waiting.pop() {
            let Ok(at) = uses.binary_search_by_key(&group, |one| one.group) else { continue };
            waiting.extend(uses[at].parents.iter().filter(|parent| found.insert(**parent)));
        }
        found.into_iter().filter(|group| self.groups.contains_key(group)).collect()
    }

    /// Calls `change` for each group with a limit that applies to a subvolume. With simple quotas,
    /// a new subvolume will join the groups above the group of the subvolume that contains it.
    fn each(&mut self, tree: TreeId, mut change: impl FnMut(&mut Limited)) {
        let mut home = tree;
        while let Some((within, _)) = self.made.get(&home) {
            home = *within;
        }
        for group in self.above.get(&home).into_iter().flatten() {
            // The limits of the containing subvolume's own group do not apply to a new subvolume.
            let counts = home == tree || self.joins && group.level() > 0;
            if let Some(group) = self.groups.get_mut(group).filter(|_| counts) {
                change(group);
            }
        }
    }

    fn no_longer(&mut self, tree: TreeId, bytes: u64) {
        self.each(tree, |group| group.coming = group.coming.saturating_sub(bytes));
    }

    fn stop_waiting(&mut self, tree: TreeId, bytes: u64) {
        if let Some(waiting) = self.waiting.get_mut(&tree) {
            *waiting = waiting.saturating_sub(bytes);
            if *waiting == 0 {
                self.waiting.remove(&tree);
            }
        }
    }

    /// Subtracts the extents that the commit of `generation` has made durable.
    fn settle_born(&mut self, generation: Generation) {
        if self.born.is_empty() {
            return;
        }
        let born = std::mem::take(&mut self.born);
        for (at, born) in born {
            if born.generation > generation {
                self.born.insert(at, born);
            } else {
                self.no_longer(born.tree, born.bytes);
            }
        }
    }
}

impl QuotaLimits {
    /// Creates the limits of a volume that was just opened. If the volume has a quota tree
    /// (`has_quotas`), the first writer looks for limits.
    pub fn new(has_quotas: bool, published: Generation) -> Arc<Self> {
        let state = State { published, ..State::default() };
        Arc::new(Self { is_on: AtomicBool::new(has_quotas), state: Mutex::new(state) })
    }

    /// Notes that a commit was published, and its changes of quotas.
    pub fn publish(&self, generation: Generation, news: &QuotaChanges) {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.published = generation;
        state.settle_born(generation);
        let is_on = news.is_kept && (self.is_on() || news.sets_limit);
        if !is_on || news.regroups {
            state.is_known = false;
        }
        for (group, used) in &news.used {
            if let Some(group) = state.groups.get_mut(group) {
                group.used = *used;
            }
        }
        if !state.made.is_empty() && state.is_known {
            // `regroups` is false, so the new subvolumes of this commit joined no group.
            state.made.retain(|_, (_, made)| *made > generation);
        }
        if !is_on {
            (state.groups, state.above, state.made) = Default::default();
        }
        self.is_on.store(is_on, Ordering::Release);
    }

    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Notes that a transaction makes a subvolume within another. The note is made even while no
    /// limit is set, because a commit under way may set the first limit. If that commit sets no
    /// limit, [`Self::publish`] forgets the note.
    pub fn note_made(&self, tree: TreeId, within: TreeId, generation: Generation) {
        if tree != within {
            self.state.lock().made.insert(tree, (within, generation));
        }
    }

    /// Asks for `bytes` that a subvolume is about to write. `None` if they exceed a limit. `look`
    /// reads all groups of a commit. It returns the commit's generation, the groups, and whether
    /// quotas are simple.
    pub fn charge(
        self: &Arc<Self>,
        tree: TreeId,
        bytes: u64,
        look: impl Fn() -> Result<(Generation, Vec<QuotaUse>, bool)>,
    ) -> Result<Option<QuotaCharge>> {
        while self.is_on() {
            {
                let mut state = self.state.lock();
                if state.is_known {
                    let mut has_room = true;
                    let wanted = bytes.max(1);
                    state.each(tree, |group| has_room &= group.has_room(wanted));
                    if !has_room {
                        return Ok(None);
                    }
                    return Ok(Some(self.admit(&mut state, tree, bytes)));
                }
            }
            // L5
            let (of, uses, is_simple) = look()?;
            let mut state = self.state.lock();
            if of == state.published {
                state.made.retain(|_, (_, made)| *made > of);
                state.joins = is_simple;
                state.take(&uses);
                if state.groups.is_empty() {
                    self.is_on.store(false, Ordering::Release);
                }
            }
        }
        Ok(Some(QuotaCharge::default()))
    }

    /// Adds bytes without a check, for data that was accepted before.
    pub fn force(self: &Arc<Self>, tree: TreeId, bytes: u64) -> QuotaCharge {
        if !self.is_on() {
            return QuotaCharge::default();
        }
        self.admit(&mut self.state.lock(), tree, bytes)
    }

    fn admit(self: &Arc<Self>, state: &mut State, tree: TreeId, bytes: u64) -> QuotaCharge {
        if bytes == 0 {
            return QuotaCharge::default();
        }
        state.each(tree, |group| group.coming += bytes);
        *state.waiting.entry(tree).or_default() += bytes;
        QuotaCharge::new(Arc::clone(self), tree, bytes)
    }

    /// Ends a charge, or a part of a charge, because no extent was made of these bytes.
    pub fn release(&self, tree: TreeId, bytes: u64) {
        let mut state = self.state.lock();
        state.stop_waiting(tree, bytes);
        state.no_longer(tree, bytes);
    }

    /// Ends a charge, because a transaction made an extent of its bytes. `at` is the start of the
    /// extent, which may have grown by these bytes.
    pub fn add_first_ref(&self, tree: TreeId, bytes: u64, at: Logical, generation: Generation) {
        let mut state = self.state.lock();
        state.stop_waiting(tree, bytes);
        let new = ChargedExtent { tree, bytes, generation };
        match state.born.get_mut(&at) {
            Some(born) if born.tree == tree && born.generation == generation => {
                born.bytes += bytes;
            }
            _ => {
                if let Some(old) = state.born.insert(at, new) {
                    state.no_longer(old.tree, old.bytes);
                }
            }
        }
    }

    /// Notes that the extent which starts at `at` was freed by the transaction that made it.
    pub fn end(&self, at: Logical) {
        if !self.is_on() {
            return;
        }
        let mut state = self.state.lock();
        if let Some(born) = state.born.remove(&at) {
            state.no_longer(born.tree, born.bytes);
        }
    }

    /// Whether a subvolume has bytes on the way, which the counts of the last commit do not
    /// include.
    pub fn is_any_on_the_way(&self, tree: TreeId) -> bool {
        let mut is_any = false;
        self.state.lock().each(tree, |group| is_any |= group.coming > 0);
        is_any
    }
}
