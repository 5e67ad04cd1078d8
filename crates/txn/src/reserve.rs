//! Promises of metadata space, made before an operation starts.
//!
//! What a commit needs is bounded from two sides, and the smaller bound counts: every changed item
//! dirties at most one path and one split, as high as the tallest tree that is worked in; and all of them
//! together dirty at most every node there is, plus what the new bytes fill. So a long transaction of small
//! operations does not promise more than the volume has.
//!
//! Where that does not fit the nodes are counted (`count`), and paths are promised for what came since. The bounds are in `fits`.
//!
//! # Invariants
//!
//! - **P1** need(running + promised) + need(frozen) fits in free metadata less the global reserve,
//!   and in half of what the devices have unallocated, which data cannot take meanwhile; in all of it for who frees space, where some
//!   is kept for copies of what trees share (`copies`).
//! - **P2** Whoever asks holds no handle: asking may commit. Checked in debug builds.
//! - **P3** What was promised is the sum of the live tokens. Checked at every commit of a debug build.
//! - **P4** Who frees space has seven eighths of the global reserve beyond what those have who fill it (three quarters where trees
//!   share nodes, and who drops subvolumes all of it), and all that is kept for copies: what all of them may put together fits. Where no step of a ladder made room
//!   for him he is promised his beside others who free alone, whatever others hold; once he has waited for those, too, as if he
//!   were alone. A delete is not refused for what others hold and do not use.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_format::{Ino, TreeId};
use buttress_space::{Class, Reach, SpaceKind};

use crate::{Cost, Costs, Engine, Result};

mod ahead;
mod copies;
mod credit;
mod data;
mod fits;
mod inode;
mod policy;
mod shared;
mod ticket;
mod token;

pub(crate) use ahead::Ahead;
pub(crate) use copies::{Copies, Tree};
pub use copies::{DeleteRoom, cost_of_copies};
pub(crate) use credit::Credits;
pub use inode::InodeReserve;
pub(crate) use inode::{InodeReserves, Moment};
pub use policy::PromisePolicy;
pub(crate) use shared::{CHILD_REFS, EXTENT_REFS, Shares};
use ticket::MetaTicket;
pub use token::MetaReservation;
pub(crate) use token::Owners;

/// Who is asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// An operation that fills the volume.
    Normal,
    /// One that empties it in the end, such as unlink and truncate: it may use what is kept for copies of nodes, and the global reserve, but
    /// for an eighth; for a quarter where trees share, since it takes space before it gives any.
    Frees,
    /// One that deletes a subvolume, or drops a part of it: it may use all of that. On a full volume with snapshots it is what gives space.
    Drops,
    /// Data that lies on the devices already and needs more than it was promised: it may use most of the global reserve.
    Lands,
}

impl Urgency {
    /// Whether it empties the volume in the end.
    #[must_use]
    pub fn frees(self) -> bool {
        matches!(self, Self::Frees | Self::Drops)
    }
}

/// What somebody in the line waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub(crate) cost: Cost,
    pub(crate) urgency: Urgency,
}

/// Operations that were promised space and have not ended.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    costs: Costs,
    /// Of these, those of who frees space.
    freeing: Costs,
    /// The same, counted by the tokens (P3).
    #[cfg(debug_assertions)]
    roll: buttress_space::Roll<6>,
}

impl Outstanding {
    pub(crate) fn sum(&self) -> Costs {
        self.costs
    }

    /// Compares with the tokens (P3).
    #[cfg(debug_assertions)]
    pub(crate) fn audit(&self) {
        let found = figures(self.costs, self.freeing);
        assert_eq!(
            self.roll.sum(),
            found,
            "P3: what tokens hold, those of who frees apart, and all"
        );
    }
}

impl Engine {
    /// Promises metadata space for one operation if it is there and nobody waits for it, without making any.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`], [`Error::Aborted`]; not [`Error::NoSpace`], which is `None`.
    pub fn reserve_at_once(
        self: &Arc<Self>,
        cost: Cost,
        urgency: Urgency,
    ) -> Result<Option<MetaReservation>> {
        crate::handle::expect_none("P2: space is asked for");
        self.check_writable()?;
        self.pace()?;
        if urgency == Urgency::Normal
            && let Some(promise) = self.from_credit(cost)
        {
            return Ok(Some(promise));
        }
        let class = class_of(urgency, Reach::All);
        let take = || self.metadata_line.at_once(class, || self.try_reserve(cost, urgency));
        let granted = take()
            || (self.give_credit_back() && take())
            || (self.may_count(urgency) && self.recount() && take());
        if granted {
            self.ahead.look();
        }
        Ok(granted.then(|| MetaReservation::of_granted(self, cost, urgency)))
    }

    /// Promises metadata space to somebody on whom writeback may wait: he holds a file's writeback claim,
    /// or is writing back. He goes before others, and makes room himself: by chunks and commits alone.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when all that did not help; [`Error::ReadOnly`], [`Error::Aborted`].
    pub fn reserve(self: &Arc<Self>, cost: Cost, urgency: Urgency) -> Result<MetaReservation> {
        self.wait_for_metadata(cost, urgency, Reach::Commit)
    }

    /// Promises metadata space to somebody who can wait for everything: dirty data of all files is written
    /// back for him, too. He holds no claim of any file.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    pub fn reserve_in_line(
        self: &Arc<Self>,
        cost: Cost,
        urgency: Urgency,
    ) -> Result<MetaReservation> {
        self.wait_for_metadata(cost, urgency, Reach::All)
    }

    fn wait_for_metadata(
        self: &Arc<Self>,
        cost: Cost,
        urgency: Urgency,
        reach: Reach,
    ) -> Result<MetaReservation> {
        self.check_writable()?;
        crate::handle::expect_none("P2: space is asked for");
        self.pace()?;
        // So that tests hold what is counted against what is made, wherever there is room.
        #[cfg(debug_assertions)]
        self.recount();
        if urgency == Urgency::Normal
            && let Some(promise) = self.from_credit(cost)
        {
            return Ok(promise);
        }
        let class = class_of(urgency, reach);
        // Those with priority never wait for the flusher, which may wait for one of them.
        let reach = if class == Class::Priority { Reach::Commit } else { reach };
        let take = || self.metadata_line.at_once(class, || self.try_reserve(cost, urgency));
        if take()
            || (self.give_credit_back() && take())
            || (self.may_count(urgency) && self.recount() && take())
        {
            self.ahead.look();
            return Ok(MetaReservation::of_granted(self, cost, urgency));
        }
        let ticket = self.metadata_line.ask(class, Demand { cost, urgency }, |demand| {
            self.try_reserve(demand.cost, demand.urgency)
        });
        let Some(ticket) = ticket else {
            return Ok(MetaReservation::of_granted(self, cost, urgency));
        };
        self.give_credit_back();
        let bytes = self.bytes_of(cost);
        let mut ticket = MetaTicket::new(self, ticket, Demand { cost, urgency }, class);
        self.wait_in_line(SpaceKind::Metadata, reach, bytes, &mut ticket)
    }

    /// What one inode's dirty data is promised, for who binds promises to it ([`MetaReservation::bind`]).
    #[must_use]
    pub fn inode_reserve(&self, tree: TreeId, ino: Ino) -> Arc<InodeReserve> {
        self.inode_reserves.enter(tree, ino)
    }

    /// Serves those who wait for metadata, the first first. Called wherever some comes free.
    pub(crate) fn serve_metadata(&self) -> u64 {
        self.metadata_line.serve(|demand| self.try_reserve(demand.cost, demand.urgency))
    }

    /// As much as so many bytes of free metadata, at most: for people and for forecasts.
    pub(crate) fn bytes_of(&self, cost: Cost) -> u64 {
        let nodesize = u64::from(self.store.geometry().nodesize);
        let levels = self.levels();
        Costs::from(cost).all_items().saturating_mul(levels * nodesize)
    }

    /// Memory is bounded (T4): a full overlay is committed in the background, and once it holds
    /// twice as much whoever wants to add waits for that commit.
    fn pace(&self) -> Result<()> {
        let held = self.view.load().running().bytes();
        let limit = self.options.overlay_max;
        if held > limit {
            self.commit_wanted.store(true, Ordering::Relaxed);
        }
        if held > 2 * limit {
            self.commit()?;
        }
        Ok(())
    }

    fn try_reserve(&self, cost: Cost, urgency: Urgency) -> bool {
        let mut outstanding = self.outstanding.lock();
        if !self.fits(&outstanding, cost, urgency) {
            return false;
        }
        self.grant(&mut outstanding, cost, urgency);
        true
    }

    /// Promises space to who frees some beside so much that is promised, whatever else is (P4).
    fn try_reserve_beside(
        &self,
        others: impl Fn(&Outstanding) -> Costs,
        (cost, urgency): (Cost, Urgency),
    ) -> bool {
        let mut outstanding = self.outstanding.lock();
        let to_come = others(&outstanding) + cost.into();
        let closer = |running: &_| self.closer_need(running, to_come);
        let excess = self.excess(to_come, urgency, closer);
        let fits = excess == 0 || self.overcommit(excess, urgency);
        if fits {
            self.grant(&mut outstanding, cost, urgency);
        }
        fits
    }

    /// Promises what several operations will need, where there is plenty.
    fn try_reserve_batch(&self, cost: Cost) -> bool {
        let mut outstanding = self.outstanding.lock();
        let view = self.view.load();
        let (account, frozen) = self.account_and_frozen();
        let crude = self.crude_need(view.running(), outstanding.costs + cost.into(), account.used);
        let taken = crude + frozen + account.global_reserve;
        let is_plenty = taken <= account.free().saturating_sub(account.may_use) / 2;
        if is_plenty {
            self.note_pressure(0);
            self.grant(&mut outstanding, cost, Urgency::Normal);
        }
        is_plenty
    }

    fn grant(&self, outstanding: &mut Outstanding, cost: Cost, urgency: Urgency) {
        let (cost, freeing) = shares(cost, urgency);
        outstanding.costs += cost;
        outstanding.freeing += freeing;
        if self.options.promise == PromisePolicy::Levels {
            self.ahead.note(self.promised_apart(outstanding.costs));
        }
        #[cfg(debug_assertions)]
        outstanding.roll.grant(figures(cost, freeing));
    }

    /// Takes back a grant that nobody took.
    fn revoke(&self, cost: Cost, urgency: Urgency) {
        let mut outstanding = self.outstanding.lock();
        let (cost, freeing) = shares(cost, urgency);
        outstanding.costs -= cost;
        outstanding.freeing -= freeing;
        #[cfg(debug_assertions)]
        outstanding.roll.revoke(figures(cost, freeing));
    }

    /// Whether a reservation would fit now. Reserves nothing, and makes no room.
    pub fn may_reserve(&self, cost: Cost, urgency: Urgency) -> bool {
        self.fits(&self.outstanding.lock(), cost, urgency)
    }
}

/// What a promise adds to the sum, and to that of who frees space.
fn shares(cost: Cost, urgency: Urgency) -> (Costs, Costs) {
    let all = Costs::from(cost);
    (all, if urgency.frees() { all } else { Costs::default() })
}

/// Both, as tokens are counted.
#[cfg(debug_assertions)]
fn figures(all: Costs, freeing: Costs) -> [u64; 6] {
    let ([a, b, c], [d, e, f]) = (all.figures(), freeing.figures());
    [a, b, c, d, e, f]
}

/// Those on whom others wait go before them.
fn class_of(urgency: Urgency, reach: Reach) -> Class {
    match (urgency, reach) {
        (Urgency::Frees | Urgency::Drops | Urgency::Lands, _)
        | (_, Reach::Commit | Reach::Handle) => Class::Priority,
        (Urgency::Normal, Reach::All) => Class::Normal,
    }
}
