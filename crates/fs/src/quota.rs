//! Quotas of a volume: switching them on and off, groups, limits, memberships, counting.
//!
//! # Invariants
//!
//! - **Q1** One change at a time, and each is durable when its call returns.
//! - **Q2** A change that contradicts what is there is refused, and changes nothing.

use buttress_txn::{Cost, QuotaChange, Urgency};

use crate::error::{Error, NameError, Result};
use crate::filesystem::Filesystem;
use crate::upkeep::Work;

pub use buttress_format::{QuotaGroup, QuotaInfo, QuotaLimit, QuotaStatus};
pub use buttress_txn::{QuotaUse, Quotas};

fn must_have(quotas: &Quotas, group: QuotaGroup) -> Result<&QuotaUse> {
    quotas.group(group).ok_or_else(|| NameError::NotFound.into())
}

impl Filesystem {
    /// Returns the quotas of the last commit. `None` where there are none.
    ///
    /// # Errors
    ///
    /// When the quota tree cannot be read.
    pub fn quotas(&self) -> Result<Option<Quotas>> {
        Ok(self.mount().engine.quotas()?)
    }

    /// Begins to keep quotas, simple or full ones. Where there are quotas already, nothing changes.
    /// Simple ones count what is made from now on. Full ones are counted at once, unless deleted
    /// subvolumes are being dropped: then they are marked as inconsistent.
    ///
    /// # Errors
    ///
    /// `ReadOnly`, `NoSpace`; `Busy` while other work on the whole volume runs.
    pub fn enable_quotas(&self, simple: bool) -> Result<()> {
        if self.quotas()?.is_some() {
            return Ok(());
        }
        self.change_quotas(&[QuotaChange::Enable { simple }])?;
        let is_counted = !simple && self.dying_subvolumes()?.is_empty();
        if is_counted { self.count_quotas() } else { Ok(()) }
    }

    /// Ends quotas, and forgets all groups and limits.
    ///
    /// # Errors
    ///
    /// `ReadOnly`, `NoSpace`; `Busy` while other work on the whole volume runs; `NotFound` where
    /// there are no quotas.
    pub fn disable_quotas(&self) -> Result<()> {
        self.must_have_quotas()?;
        self.change_quotas(&[QuotaChange::Disable])
    }

    /// Counts full quotas anew. The commit reads all trees of subvolumes meanwhile.
    ///
    /// # Errors
    ///
    /// As [`disable_quotas`](Self::disable_quotas). `Invalid` for simple quotas, which cannot be
    /// counted later. `Busy` while deleted subvolumes are being dropped.
    pub fn count_quotas(&self) -> Result<()> {
        if self.must_have_quotas()?.status.is_simple() {
            return Err(Error::invalid("simple quotas are not counted anew"));
        }
        if !self.dying_subvolumes()?.is_empty() {
            let why = "deleted subvolumes are being dropped: `subvolume sync` waits for them";
            return Err(buttress_txn::Error::Busy(why).into());
        }
        self.change_quotas(&[QuotaChange::Count])
    }

    /// Makes a group above those of subvolumes.
    ///
    /// # Errors
    ///
    /// As [`disable_quotas`](Self::disable_quotas). `Invalid` for a group of level 0; `Exists`.
    pub fn make_quota_group(&self, group: QuotaGroup) -> Result<()> {
        let quotas = self.must_have_quotas()?;
        if group.level() == 0 {
            return Err(Error::invalid("groups of level 0 come with their subvolumes"));
        }
        if quotas.group(group).is_some() {
            return Err(NameError::Exists.into());
        }
        self.change_quotas(&[QuotaChange::Make(group)])
    }

    /// Removes a group that has no members, and no subvolume.
    ///
    /// # Errors
    ///
    /// As [`disable_quotas`](Self::disable_quotas). `NotFound`; `Busy` for a group in use.
    pub fn remove_quota_group(&self, group: QuotaGroup) -> Result<()> {
        let quotas = self.must_have_quotas()?;
        let known = must_have(&quotas, group)?;
        let is_of_subvolume =
            group.level() == 0 && self.subvolume_item(buttress_format::TreeId(group.0)).is_ok();
        if !known.children.is_empty() || is_of_subvolume {
            return Err(NameError::Busy.into());
        }
        self.change_quotas(&[QuotaChange::Remove(group)])
    }

    /// Changes the limits of a group by `change`.
    ///
    /// # Errors
    ///
    /// As [`disable_quotas`](Self::disable_quotas). `NotFound` for an unknown group.
    pub fn limit_quota_group(
        &self,
        group: QuotaGroup,
        change: impl FnOnce(&mut QuotaLimit),
    ) -> Result<()> {
        let quotas = self.must_have_quotas()?;
        let mut limit = must_have(&quotas, group)?.limit;
        change(&mut limit);
        self.change_quotas(&[QuotaChange::Limit(group, limit)])
    }

    /// Makes a group a member of one of a higher level.
    ///
    /// # Errors
    ///
    /// As [`disable_quotas`](Self::disable_quotas). `NotFound` for an unknown group, `Exists` for a
    /// membership, `Invalid` for a level that is not higher.
    pub fn join_quota_group(&self, child: QuotaGroup, parent: QuotaGroup) -> Result<()> {
        let quotas = self.must_have_quotas()?;
        if child.level() >= parent.level() {
            return Err(Error::invalid("a group is a member of groups of higher levels"));
        }
        must_have(&quotas, parent)?;
        if must_have(&quotas, child)?.parents.contains(&parent) {
            return Err(NameError::Exists.into());
        }
        self.change_quotas(&[QuotaChange::Join { child, parent }])
    }

    /// Ends a membership.
    ///
    /// # Errors
    ///
    /// As [`disable_quotas`](Self::disable_quotas). `NotFound` if there is none.
    pub fn leave_quota_group(&self, child: QuotaGroup, parent: QuotaGroup) -> Result<()> {
        let quotas = self.must_have_quotas()?;
        if !must_have(&quotas, child)?.parents.contains(&parent) {
            return Err(NameError::NotFound.into());
        }
        self.change_quotas(&[QuotaChange::Leave { child, parent }])
    }

    fn must_have_quotas(&self) -> Result<Quotas> {
        self.quotas()?.ok_or_else(|| Error::invalid("quotas are not enabled"))
    }

    /// Has a commit make changes (Q1).
    fn change_quotas(&self, changes: &[QuotaChange]) -> Result<()> {
        let mount = self.mount();
        let _turn = mount.upkeep.begin_work(Work::Devices)?;
        // What is counted so far is that of a commit.
        self.sync()?;
        let groups = self.quotas()?.map_or(0, |quotas| quotas.groups.len());
        let items = 8 + 2 * (groups + self.subvolumes()?.len());
        let cost = Cost::of(u32::try_from(items).unwrap_or(u32::MAX), 64);
        let handle = mount.engine.begin(mount.space.reserve(cost, Urgency::Normal)?);
        for change in changes {
            handle.change_quotas(*change);
        }
        drop(handle);
        self.commit()?;
        Ok(())
    }
}
