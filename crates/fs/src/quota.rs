//! Quotas of a volume: switching them on and off, groups, limits, memberships, counting.
//!
//! # Invariants
//!
//! - **Q1** One thread changes quotas at a time, and each change is durable when its call returns.
//!   A thread reads the present quotas once it has the exclusive right to change them
//!   ([`QuotaTurn`]).
//! - **Q2** A change that contradicts the present quotas is refused and has no effect.

use std::sync::Arc;

use buttress_format::TreeId;
use buttress_items::{Error, NameError, Result};
use buttress_txn::{Cost, Handle, QuotaChange, ReserveClass};

use crate::filesystem::Filesystem;
use crate::mount::Mount;
use crate::upkeep::UpkeepTask;

pub use buttress_format::{QuotaGroup, QuotaInfo, QuotaLimit, QuotaStatus};
pub use buttress_txn::{QuotaUse, Quotas};

/// How often a count is made before the counts stay marked as inconsistent.
const COUNTS_MAX: u32 = 3;
/// Bytes of the largest item of a quota tree, with its header in the leaf.
const ITEM_BYTES: u32 = 65;

/// Why a membership is refused.
const OF_HIGHER_LEVELS: &str = "a group is a member of groups of higher levels";

fn must_have(quotas: &Quotas, group: QuotaGroup) -> Result<&QuotaUse> {
    quotas.group(group).ok_or_else(|| NameError::NotFound.into())
}

impl Filesystem {
    /// Returns the quotas of the last commit. `None` if quotas are off.
    ///
    /// # Errors
    ///
    /// When the quota tree cannot be read.
    pub fn quotas(&self) -> Result<Option<Quotas>> {
        Ok(self.mount().engine.quotas()?)
    }

    /// Switches simple or full quotas on. If quotas are on already, nothing changes. Simple quotas
    /// count the extents that are made from now on. Full quotas are counted at once. If deleted
    /// subvolumes are being dropped, the counts are only marked as inconsistent.
    ///
    /// # Errors
    ///
    /// `ReadOnly`, `NoSpace`; `Busy` while other work on the whole volume runs.
    pub fn enable_quotas(&self, simple: bool) -> Result<()> {
        if self.quotas()?.is_some() {
            return Ok(());
        }
        self.in_quota_turn(|turn| match turn.quotas {
            Some(_) => Ok(()),
            None => turn.make(QuotaChange::Enable { simple }),
        })?;
        let is_counted = !simple && self.dying_subvolumes()?.is_empty();
        if is_counted { self.count_quotas() } else { Ok(()) }
    }

    /// Ends quotas, and forgets all groups and limits.
    ///
    /// # Errors
    ///
    /// `ReadOnly`, `NoSpace`; `Busy` while other work on the whole volume runs; `Invalid` if quotas
    /// are off.
    pub fn disable_quotas(&self) -> Result<()> {
        self.change_quotas(|_| Ok(QuotaChange::Disable))
    }

    /// Counts full quotas anew. The trees of subvolumes are read meanwhile, and writers go on.
    /// Another commit may come before the new counts are committed. In that case old counts stay if
    /// they are right. If they are wrong, the count is made again, up to three times in all. After
    /// that, the counts stay marked as inconsistent.
    ///
    /// # Errors
    ///
    /// As [`disable_quotas`](Self::disable_quotas). `Invalid` for simple quotas, which cannot be
    /// counted later. `Busy` while deleted subvolumes are being dropped. If a tree cannot be read,
    /// the old counts stay.
    pub fn count_quotas(&self) -> Result<()> {
        self.count_quotas_watched(&mut |_| ())
    }

    /// Counts as [`count_quotas`](Self::count_quotas) does, and tells `watch` the bytes of each
    /// node that was read. A count that is made again begins with further calls.
    ///
    /// # Errors
    ///
    /// As [`count_quotas`](Self::count_quotas).
    pub fn count_quotas_watched(&self, watch: &mut dyn FnMut(u64)) -> Result<()> {
        self.in_quota_turn(|turn| {
            if turn.expect()?.status.is_simple() {
                return Err(Error::invalid("simple quotas are not counted anew"));
            }
            if !self.dying_subvolumes()?.is_empty() {
                let why = "deleted subvolumes are being dropped: `subvolume sync` waits for them";
                return Err(buttress_txn::Error::Busy(why).into());
            }
            for _ in 0..COUNTS_MAX {
                let counts = self
                    .mount()
                    .engine
                    .storage()
                    .count_quotas(self.mount().engine.commits(), watch)?;
                turn.make(QuotaChange::Count(Arc::new(counts)))?;
                turn.quotas = self.quotas()?;
                let is_old = |quotas: &Quotas| quotas.status.flags & QuotaStatus::INCONSISTENT != 0;
                if !turn.quotas.as_ref().is_some_and(is_old) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Makes a group of a level above the groups of subvolumes.
    ///
    /// # Errors
    ///
    /// As [`disable_quotas`](Self::disable_quotas). `Invalid` for a group of level 0; `Exists`.
    pub fn make_quota_group(&self, group: QuotaGroup) -> Result<()> {
        self.change_quotas(|quotas| {
            if group.level() == 0 {
                return Err(Error::invalid("groups of level 0 come with their subvolumes"));
            }
            match quotas.group(group) {
                Some(_) => Err(NameError::Exists.into()),
                None => Ok(QuotaChange::Make(group)),
            }
        })
    }

    /// Removes a group that has no members, and no subvolume. With simple quotas, the group's use
    /// must also be zero: data and nodes that a deleted subvolume made may still exist in its
    /// snapshots.
    ///
    /// # Errors
    ///
    /// As [`disable_quotas`](Self::disable_quotas). `NotFound`; `Busy` for a group in use.
    pub fn remove_quota_group(&self, group: QuotaGroup) -> Result<()> {
        self.change_quotas(|quotas| {
            let known = must_have(quotas, group)?;
            let is_of_subvolume =
                group.level() == 0 && self.subvolume_item(TreeId(group.0)).is_ok();
            let counts = quotas.status.is_simple() && !known.info.is_zero();
            if !known.children.is_empty() || is_of_subvolume || counts {
                return Err(NameError::Busy.into());
            }
            Ok(QuotaChange::Remove(group))
        })
    }

    /// Changes the limits of a group by `change`, which gets the present limits. No other thread
    /// changes quotas meanwhile.
    ///
    /// # Errors
    ///
    /// As [`disable_quotas`](Self::disable_quotas). `NotFound` for an unknown group.
    pub fn limit_quota_group(
        &self,
        group: QuotaGroup,
        change: impl FnOnce(&mut QuotaLimit),
    ) -> Result<()> {
        self.change_quotas(|quotas| {
            let mut limit = must_have(quotas, group)?.limit;
            change(&mut limit);
            Ok(QuotaChange::Limit(group, limit))
        })
    }

    /// Makes a group a member of a group of a higher level.
    ///
    /// # Errors
    ///
    /// As [`disable_quotas`](Self::disable_quotas). `NotFound` for an unknown group, `Exists` for a
    /// membership, `Invalid` for a level that is not higher.
    pub fn join_quota_group(&self, child: QuotaGroup, parent: QuotaGroup) -> Result<()> {
        self.change_quotas(|quotas| {
            if child.level() >= parent.level() {
                return Err(Error::invalid(OF_HIGHER_LEVELS));
            }
            must_have(quotas, parent)?;
            match must_have(quotas, child)?.parents.contains(&parent) {
                true => Err(NameError::Exists.into()),
                false => Ok(QuotaChange::Join { child, parent }),
            }
        })
    }

    /// Ends a membership.
    ///
    /// # Errors
    ///
    /// As [`disable_quotas`](Self::disable_quotas). `NotFound` if there is no such membership.
    pub fn leave_quota_group(&self, child: QuotaGroup, parent: QuotaGroup) -> Result<()> {
        self.change_quotas(|quotas| match must_have(quotas, child)?.parents.contains(&parent) {
            true => Ok(QuotaChange::Leave { child, parent }),
            false => Err(NameError::NotFound.into()),
        })
    }

    /// Makes the change that `choose` returns for the present quotas (Q1, Q2).
    fn change_quotas(&self, choose: impl FnOnce(&Quotas) -> Result<QuotaChange>) -> Result<()> {
        self.in_quota_turn(|turn| {
            let change = choose(turn.expect()?)?;
            turn.make(change)
        })
    }

    /// Waits for the exclusive right to change quotas, reads the present quotas, and calls `act`
    /// (Q1).
    fn in_quota_turn<R>(&self, act: impl FnOnce(&mut QuotaTurn<'_>) -> Result<R>) -> Result<R> {
        let mount = self.mount();
        let _turn = mount.upkeep.begin_work(UpkeepTask::Devices)?;
        // Only commits count quotas, so commit first.
        self.sync()?;
        act(&mut QuotaTurn { fs: self, quotas: self.quotas()? })
    }
}

/// The groups that a new subvolume joins, in the transaction that makes it. This needs no exclusive
/// right: if a group is removed meanwhile, its memberships end with it.
pub(crate) struct Joins {
    parents: Vec<QuotaGroup>,
    /// The most items that a commit sets for one membership.
    items: u64,
}

impl Joins {
    /// Looks for the groups. Without quotas there is nothing to join.
    pub(crate) fn new(mount: &Mount, parents: &[QuotaGroup]) -> Result<Self> {
        let quotas = if parents.is_empty() { None } else { mount.engine.quotas()? };
        let Some(quotas) = quotas else { return Ok(Self { parents: Vec::new(), items: 0 }) };
        for parent in parents {
            must_have(&quotas, *parent)?;
            if parent.level() == 0 {
                return Err(Error::invalid(OF_HIGHER_LEVELS));
            }
        }
        Ok(Self { parents: parents.to_vec(), items: membership_items(&quotas) })
    }

    pub(crate) fn cost(&self) -> Cost {
        cost_of_items(self.items * self.parents.len() as u64)
    }

    /// Records the memberships of a subvolume that this handle makes.
    pub(crate) fn apply(&self, handle: &Handle<'_>, tree: TreeId) {
        for parent in &self.parents {
            let join = QuotaChange::Join { child: QuotaGroup::of(tree), parent: *parent };
            handle.change_quotas(join, self.items);
        }
    }
}

/// The most items that a commit sets or deletes for a membership.
fn membership_items(quotas: &Quotas) -> u64 {
    let above = quotas.groups.iter().filter(|known| known.group.level() > 0).count();
    8 + 2 + above as u64
}

fn cost_of_items(items: u64) -> Cost {
    let count = u32::try_from(items).unwrap_or(u32::MAX);
    Cost::of(count, count.saturating_mul(ITEM_BYTES))
}

/// The exclusive right to change quotas. No other thread changes quotas meanwhile.
struct QuotaTurn<'f> {
    fs: &'f Filesystem,
    /// The quotas of the last commit; `None` if quotas are off.
    quotas: Option<Quotas>,
}

impl QuotaTurn<'_> {
    fn expect(&self) -> Result<&Quotas> {
        self.quotas.as_ref().ok_or_else(|| Error::invalid("quotas are not enabled"))
    }

    /// The most items that a commit sets or deletes for a change.
    fn items(&self, change: &QuotaChange) -> Result<u64> {
        let groups = self.quotas.as_ref().map_or(&[][..], |quotas| &quotas.groups);
        let of = |group| self.quotas.as_ref().and_then(|quotas| quotas.group(group));
        let above = groups.iter().filter(|known| known.group.level() > 0).count();
        let items = match *change {
            // A quota tree that was left behind is removed first. The old tree also has a group for
            // each subvolume.
            QuotaChange::Enable { .. } => 4 * self.fs.subvolumes()?.len(),
            QuotaChange::Disable | QuotaChange::Count(_) => groups.len(),
            QuotaChange::Make(_) | QuotaChange::Limit(..) => 2,
            QuotaChange::Join { .. } | QuotaChange::Leave { .. } => 2 + above,
            QuotaChange::Remove(group) => {
                let known = of(group).map_or(0, |known| known.parents.len());
                2 + 2 * known + above
            }
        };
        Ok(8 + items as u64)
    }

    /// Makes a change by a commit.
    fn make(&self, change: QuotaChange) -> Result<()> {
        let mount = self.fs.mount();
        let items = self.items(&change)?;
        let reservation = mount.space.reserve(cost_of_items(items), ReserveClass::Normal)?;
        let handle = mount.engine.begin(reservation);
        handle.change_quotas(change, items);
        drop(handle);
        self.fs.commit()?;
        Ok(())
    }
}
