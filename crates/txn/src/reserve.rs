//! Promises of metadata space, made before an operation starts.
//!
//! What a commit needs is bounded from two sides, and the smaller bound counts: every changed item
//! dirties at most one path and one split, as high as the tallest tree that is worked in; and all of them
//! together dirty at most every node there is, plus what the new bytes fill. So a long transaction of small
//! operations does not promise more than the volume has.
//!
//! Where that does not fit the nodes are counted (`count`), and paths are promised for what came since.
//!
//! # Invariants
//!
//! - **P1** need(running + promised) + need(frozen) fits in free metadata less the global reserve,
//!   and in half of what the devices have unallocated, which data cannot take meanwhile.
//! - **P2** Whoever asks holds no handle: asking may commit. Checked in debug builds.
//! - **P3** What was promised is the sum of the live tokens. Checked at every commit of a debug build.
//! - **P4** Who frees space has seven eighths of the global reserve beyond what those have who fill it: what all of them may put
//!   together fits. Where no step of a ladder made room for him he is promised his beside others who free alone, whatever others
//!   hold; once he has waited for those, too, as if he were alone. A delete is not refused for what others hold and do not use.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_format::{Ino, TreeId};
use buttress_space::{Account, Class, Reach, SpaceKind};

use crate::{Cost, Costs, Engine, Result, View, transaction::Transaction};

mod ahead;
mod credit;
mod data;
mod inode;
mod policy;
mod ticket;
mod token;

pub(crate) use ahead::Ahead;
pub(crate) use credit::Credits;
pub use inode::InodeReserve;
pub(crate) use inode::{InodeReserves, Moment};
pub use policy::PromisePolicy;
use ticket::MetaTicket;
pub use token::MetaReservation;
pub(crate) use token::Owners;

/// Less than this of the devices makes no chunk.
const CHUNK_MIN: u64 = 1 << 20;

/// Promises of more than this part of what is left, in thousandths, had better be needed soon.
const TIGHT: u64 = 500;

/// Who is asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// An operation that fills the volume.
    Normal,
    /// One that empties it in the end, such as unlink and truncate: it may use the global reserve.
    Frees,
    /// Data that lies on the devices already and needs more than it was promised: it may use most of the global reserve.
    Lands,
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
    fn try_reserve_beside(&self, others: impl Fn(&Outstanding) -> Costs, cost: Cost) -> bool {
        let mut outstanding = self.outstanding.lock();
        let to_come = others(&outstanding) + cost.into();
        let closer = |running: &_| self.closer_need(running, to_come);
        let excess = self.excess(to_come, Urgency::Frees, closer);
        let fits = excess == 0 || self.overcommit(excess);
        if fits {
            self.grant(&mut outstanding, cost, Urgency::Frees);
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

    /// What a transaction and promises need together, by what bounds both.
    fn crude_need(&self, running: &Transaction, to_come: Costs, used: u64) -> u64 {
        let items = running.items() + to_come.all_items();
        self.need(items, running.bytes() + to_come.bytes, used)
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

    pub(crate) fn may_reserve(&self, cost: Cost, urgency: Urgency) -> bool {
        self.fits(&self.outstanding.lock(), cost, urgency)
    }

    /// Says anew what the running transaction and promises take beyond the groups, in place of what was said before, in one step: data
    /// must not find it unsaid in between.
    pub(crate) fn keep_anew(&self) {
        let outstanding = self.outstanding.lock();
        let to_come = outstanding.costs;
        let closer = |running: &_| self.need_with_promised(running, to_come);
        let excess = self.excess(to_come, Urgency::Normal, closer);
        let mut devices = self.devices.lock();
        let most = devices.to_promise(self.kind_flags(SpaceKind::Metadata));
        devices.keep_exactly(excess.min(most));
    }

    fn fits(&self, outstanding: &Outstanding, cost: Cost, urgency: Urgency) -> bool {
        let to_come = outstanding.costs + cost.into();
        let excess =
            self.excess(to_come, urgency, |running| self.need_with_promised(running, to_come));
        excess == 0 || self.overcommit(excess)
    }

    /// What the running transaction and all that is to come take beyond the groups, by the crude bound or by a closer one.
    fn excess(
        &self,
        to_come: Costs,
        urgency: Urgency,
        closer: impl FnOnce(&Transaction) -> Option<u64>,
    ) -> u64 {
        let running = self.view.load();
        // Who frees space does not have writers hurry.
        let note_pressure = |pressure| {
            if urgency != Urgency::Frees {
                self.note_pressure(pressure);
            }
        };
        let (account, frozen) = self.account_and_frozen();
        let kept = match urgency {
            Urgency::Normal => account.global_reserve,
            Urgency::Lands => account.global_reserve / 4,
            Urgency::Frees => account.global_reserve / 8,
        };
        let apart = self.promised_apart(to_come);
        // By the published rule promises stand beside what the transaction needs without them.
        let with_apart = |need: u64, put: &dyn Fn() -> u64| match apart {
            0 => need,
            apart => need.max(put() + apart),
        };
        let crude = self.crude_need(running.running(), to_come, account.used);
        let crude = with_apart(crude, &|| self.need_of(running.running()));
        let taken = frozen + kept;
        // What mixed groups have promised to data.
        let free = account.free().saturating_sub(account.may_use);
        if crude + taken <= free {
            note_pressure(0);
            return 0;
        }
        let closer = closer(running.running());
        // All of it but what operations hold, and may give back when they put less.
        let put = self.closer_need(running.running(), Costs::default());
        let need =
            closer.map_or(crude, |closer| with_apart(closer, &|| put.unwrap_or(closer)).min(crude));
        let put = put.unwrap_or(need).min(need);
        let left = free.saturating_sub(put + taken);
        note_pressure((need - put).saturating_mul(1000) / left.max(1));
        (need + taken).saturating_sub(free)
    }

    fn is_tight_now(&self) -> bool {
        self.pressure.load(Ordering::Relaxed) > TIGHT
    }

    /// Notes the part of what is left that is promised, in thousandths.
    pub(super) fn note_pressure(&self, pressure: u64) {
        if self.pressure.load(Ordering::Relaxed) != pressure {
            self.pressure.store(pressure, Ordering::Relaxed);
        }
    }

    /// The part of the metadata left to promise that is promised, in thousandths, where that is more than half, metadata is counted
    /// closely, and no chunk can be added; else nothing. Nothing ever by the published rule of promises: its baseline writes nothing ahead.
    #[must_use]
    pub fn promise_pressure(&self) -> Option<u64> {
        let pressure = self.pressure.load(Ordering::Relaxed);
        let counts = pressure > TIGHT && self.options.promise != PromisePolicy::Levels;
        let is_last =
            || self.devices.lock().available(self.kind_flags(SpaceKind::Metadata)) < CHUNK_MIN;
        (counts && is_last()).then_some(pressure)
    }

    /// Whether those who hold promises for long, as dirty data does, had better need them soon.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        self.promise_pressure().is_some()
    }

    /// Whether operations may not fit beside a frozen transaction, by what is known of it, were the next to become
    /// like it before its commit is done.
    pub(crate) fn is_crowded(&self, frozen: &Transaction) -> bool {
        let account = self.space.account(SpaceKind::Metadata);
        let next = self.paths(u64::MAX, account.used).max(self.need_of(frozen));
        let left = self.frozen_need.load(Ordering::Relaxed);
        let taken = left + next + account.global_reserve + account.may_use;
        let to_come = self.devices.lock().to_promise(self.kind_flags(SpaceKind::Metadata));
        taken > account.free() + to_come
    }

    /// Has promises count with a subvolume's height from now on, too: one that nobody worked in since the mount may be
    /// taller than the trees that are always known.
    ///
    /// # Errors
    ///
    /// When the root tree is damaged.
    pub fn know_height(&self, view: &View, tree: TreeId) -> Result<()> {
        let item = view.committed_root_item(tree)?;
        let level = item.map_or(0, |item| item.level);
        self.height.fetch_max(level, Ordering::Relaxed);
        Ok(())
    }

    /// Nodes that changing one item may dirty: a path, and a split.
    pub(crate) fn levels(&self) -> u64 {
        u64::from(self.height.load(Ordering::Relaxed)) + 2
    }

    /// What the frozen transaction may still allocate.
    pub(crate) fn frozen_left(&self) -> u64 {
        let need = self.frozen_need.load(Ordering::Acquire);
        need.saturating_sub(self.frozen_taken.load(Ordering::Acquire))
    }

    /// The account of metadata, and what the frozen transaction may still allocate of it. What its commit takes or gives back
    /// meanwhile counts twice rather than not at all: it is said to be taken behind its place in the account, and to be
    /// left before it leaves that.
    pub(crate) fn account_and_frozen(&self) -> (Account, u64) {
        let before = self.frozen_left();
        let account = self.space.account(SpaceKind::Metadata);
        (account, before.max(self.frozen_left()))
    }

    /// Whether chunks to come can back `excess` bytes more than the metadata groups have: a commit
    /// adds them as it needs them. Half of what the devices have left is given this way, and kept
    /// from data as long as it is promised.
    fn overcommit(&self, excess: u64) -> bool {
        let mut devices = self.devices.lock();
        if !devices.may_promise(self.kind_flags(SpaceKind::Metadata), excess) {
            return false;
        }
        devices.keep_for_metadata(excess);
        true
    }

    /// Bytes of metadata that a commit of so much may allocate before it frees any.
    pub(crate) fn need(&self, items: u64, bytes: u64, used: u64) -> u64 {
        let nodesize = u64::from(self.store.geometry().nodesize);
        bound(items, bytes, used + 16 * nodesize, self.levels() * nodesize) + 24 * nodesize
    }

    /// The part of that which is for paths: no more, however long a transaction is.
    pub(crate) fn paths(&self, items: u64, used: u64) -> u64 {
        self.need(items, 0, used)
    }

    /// Bytes that promises take by themselves, by the rule that was chosen; none where all of them count together.
    pub(crate) fn promised_apart(&self, promised: Costs) -> u64 {
        self.options.promise.alone(promised, u64::from(self.store.geometry().nodesize))
    }

    pub(crate) fn need_of(&self, transaction: &Transaction) -> u64 {
        let used = self.space.account(SpaceKind::Metadata).used;
        self.need(transaction.items(), transaction.bytes(), used)
    }
}

/// Bytes of nodes that so many items of so many bytes may dirty, where each may dirty a path of so many, and all
/// cannot dirty more than there is. What they fill comes on top of either: checksums of one large extent are few
/// items, and many leaves, and a leaf may be left half full.
fn bound(items: u64, bytes: u64, used: u64, path: u64) -> u64 {
    let fills = bytes.saturating_mul(2);
    items.saturating_mul(path).min(used).saturating_add(fills)
}

/// What a promise adds to the sum, and to that of who frees space.
fn shares(cost: Cost, urgency: Urgency) -> (Costs, Costs) {
    let all = Costs::from(cost);
    (all, if urgency == Urgency::Frees { all } else { Costs::default() })
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
        (Urgency::Frees | Urgency::Lands, _) | (_, Reach::Commit | Reach::Handle) => {
            Class::Priority
        }
        (Urgency::Normal, Reach::All) => Class::Normal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: u64 = 16 << 10;
    const PATH: u64 = 4 * NODE;

    /// Many small changes cost a path each, until that is more than there is.
    #[test]
    fn the_smaller_of_paths_and_volume_counts() {
        let small = |items| bound(items, items * 100, 64 << 20, PATH);
        assert_eq!(small(10), 10 * PATH + 2000);
        assert_eq!(small(100_000), (64 << 20) + 20_000_000);
    }

    /// Whatever items they are counted as: checksums of 32 bytes for 128 MiB fill 64 leaves, or twice as many that
    /// are half full.
    #[test]
    fn what_is_filled_is_promised() {
        let sums = (128 << 20) / 4096 * 32;
        assert!(bound(8, sums, 64 << 20, PATH) >= 2 * sums);
        assert!(bound(8, sums, 0, PATH) >= 2 * sums);
    }
}
