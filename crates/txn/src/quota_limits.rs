//! Limits of simple quotas: what a subvolume may still write.
//!
//! A group uses what the last commit counted, and what is on the way: bytes that writers asked for
//! (`waiting`), and extents of transactions that are not durable yet (`born`).
//!
//! # Invariants
//!
//! - **L1** A writer that was admitted stays within the limits of all groups of its subvolume.
//! - **L2** A refusal is final here: nothing is freed or waited for. The caller may write back and
//!   commit once, which shows what is really used.
//! - **L3** A volume without limits takes no lock for them.
//!
//! Full quotas are not counted by each commit, so their limits are kept and not enforced.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::sync::Mutex;
use buttress_format::{Generation, QuotaGroup, QuotaInfo, QuotaLimit, TreeId};
use buttress_tree::Roots;

use crate::Result;

/// One group, as a commit left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaUse {
    /// The group.
    pub group: QuotaGroup,
    /// What it uses.
    pub info: QuotaInfo,
    /// What it may use.
    pub limit: QuotaLimit,
    /// The groups that it is a member of.
    pub parents: Vec<QuotaGroup>,
    /// Its members.
    pub children: Vec<QuotaGroup>,
}

/// The limits of a volume.
#[derive(Debug, Default)]
pub(crate) struct QuotaLimits {
    /// Whether there may be a limit.
    is_on: AtomicBool,
    /// Unranked: held while the quota tree is read.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The commit that `used` is of.
    known: Option<Generation>,
    groups: HashMap<QuotaGroup, Limited>,
    /// The limited groups that count for a subvolume.
    above: HashMap<TreeId, Vec<QuotaGroup>>,
}

/// A group with a limit.
#[derive(Clone, Debug, Default)]
struct Limited {
    used: u64,
    most: u64,
    waiting: u64,
    born: BTreeMap<Generation, i64>,
}

impl Limited {
    fn on_the_way(&self) -> u64 {
        let born: i64 = self.born.values().sum();
        self.waiting.saturating_add_signed(born)
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.used.saturating_add(self.on_the_way()).saturating_add(bytes) <= self.most
    }
}

impl State {
    /// Takes what a commit left. What is on the way stays.
    fn take(&mut self, known: Generation, uses: &[QuotaUse]) {
        let limit = |one: &QuotaUse| {
            let limits = [one.limit.max_referenced(), one.limit.max_exclusive()];
            limits.into_iter().flatten().min()
        };
        let mut before = std::mem::take(&mut self.groups);
        for (one, most) in uses.iter().filter_map(|one| Some((one, limit(one)?))) {
            let mut group = before.remove(&one.group).unwrap_or_default();
            (group.used, group.most) = (one.info.referenced, most);
            group.born.retain(|generation, _| *generation > known);
            self.groups.insert(one.group, group);
        }
        self.known = Some(known);
        self.above = uses
            .iter()
            .filter(|one| one.group.level() == 0)
            .map(|one| (TreeId(one.group.0), self.limited_above(one.group, uses)))
            .filter(|(_, groups)| !groups.is_empty())
            .collect();
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

    fn each(&mut self, tree: TreeId, mut change: impl FnMut(&mut Limited)) {
        for group in self.above.get(&tree).into_iter().flatten() {
            if let Some(group) = self.groups.get_mut(group) {
                change(group);
            }
        }
    }
}

impl QuotaLimits {
    /// A commit has these trees: where one is of quotas, the next caller looks for limits.
    pub(crate) fn look_again(&self, roots: &Roots) {
        if roots.find(TreeId::QUOTA).is_some() {
            self.is_on.store(true, Ordering::Release);
        }
    }

    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// An extent of a transaction was born, or ended before the commit.
    pub(crate) fn note(&self, tree: TreeId, generation: Generation, bytes: i64) {
        if !self.is_on() {
            return;
        }
        self.state.lock().each(tree, |group| {
            if bytes > 0 {
                group.waiting = group.waiting.saturating_sub(bytes.unsigned_abs());
            }
            *group.born.entry(generation).or_default() += bytes;
        });
    }

    /// Asks for `bytes` that a subvolume is about to write. Returns whether it may. `look` reads
    /// all groups of the commit `published`.
    pub(crate) fn charge(
        &self,
        tree: TreeId,
        bytes: u64,
        published: Generation,
        look: impl FnOnce() -> Result<Vec<QuotaUse>>,
    ) -> Result<bool> {
        if !self.is_on() {
            return Ok(true);
        }
        let mut state = self.state.lock();
        if state.known != Some(published) {
            state.take(published, &look()?);
            if state.groups.is_empty() {
                self.is_on.store(false, Ordering::Release);
            }
        }
        let mut has_room = true;
        state.each(tree, |group| has_room &= group.has_room(bytes.max(1)));
        if has_room {
            state.each(tree, |group| group.waiting += bytes);
        }
        Ok(has_room)
    }

    /// Forgets what writers of a subvolume asked for.
    pub(crate) fn settle(&self, tree: TreeId) {
        self.state.lock().each(tree, |group| group.waiting = 0);
    }

    /// Says whether anything of a subvolume is not in the counts of the last commit.
    pub(crate) fn is_any_on_the_way(&self, tree: TreeId) -> bool {
        let mut is_any = false;
        self.state.lock().each(tree, |group| {
            is_any |= group.waiting > 0 || !group.born.is_empty();
        });
        is_any
    }
}
