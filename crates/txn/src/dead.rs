//! Dead subvolumes: found in the root tree, dropped step by step.
//!
//! # Failure
//!
//! Each step is part of a commit. What a crash leaves is a smaller tree whose root item still says that
//! it is dead: whoever opens the volume next goes on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use buttress_base::{clock, sync::MutexGuard};
use buttress_format::{Key, Kind, TreeId, ids};

use crate::{Cost, Engine, Error, MetaReservation, Result, Urgency, relocate::TURN_PERIOD};

/// References that one step changes at most, where there is room for it, and at least.
const STEP_MAX: u32 = 32 << 10;
const STEP_MIN: u32 = 64;

/// How long a step waits for whoever moves block groups: the cleaner has more to do.
const TURN_MAX: Duration = Duration::from_millis(200);

impl Engine {
    /// The subvolumes that are to be dropped.
    ///
    /// # Errors
    ///
    /// When the root tree cannot be read.
    pub fn dead_subvolumes(&self) -> Result<Vec<TreeId>> {
        let view = self.view();
        let key = |tree| Key::new(ids::ORPHAN, Kind::ORPHAN_ITEM, tree);
        let mut found = Vec::new();
        for item in view.range(TreeId::ROOT, key(0), key(u64::MAX)) {
            let tree = TreeId(item?.0.offset);
            if view.committed_root_item(tree)?.is_some_and(|item| item.refs == 0) {
                found.push(tree);
            }
        }
        Ok(found)
    }

    /// The right to drop a part of a subvolume; nothing where somebody moves block groups all the time.
    fn wait_for_turn(&self) -> Option<MutexGuard<'_, ()>> {
        let begun = clock::now();
        loop {
            if let Some(turn) = self.trees_turn.try_lock() {
                return Some(turn);
            }
            if clock::since(begun) >= TURN_MAX {
                return None;
            }
            self.turn_wanted.store(true, Ordering::SeqCst);
            buttress_base::thread::sleep(TURN_PERIOD);
        }
    }

    /// Drops a dead subvolume one step further, and commits. Says whether there is more to drop; there is
    /// when somebody who moves block groups leaves no time for it.
    ///
    /// Nobody uses it any more: the caller made sure.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when not even a small step can be promised; as [`commit`](Self::commit).
    pub fn drop_step(self: &Arc<Self>, tree: TreeId) -> Result<bool> {
        self.check_writable()?;
        let Some(_turn) = self.wait_for_turn() else { return Ok(true) };
        let is_dead = || -> Result<Option<bool>> {
            Ok(self.view().committed_root_item(tree)?.map(|item| item.refs == 0))
        };
        if is_dead()? != Some(true) {
            // Its death may not be durable yet, nor its birth.
            self.commit()?;
        }
        match is_dead()? {
            Some(true) => {}
            Some(false) => return Err(Error::Malformed(format!("the subvolume {tree} is in use"))),
            None => return Ok(false),
        }
        let (budget, reservation) = self.reserve_step()?;
        let handle = self.begin(reservation);
        handle.transaction().drops.change(|trees| trees.insert(tree, budget.into()));
        drop(handle);
        self.commit()?;
        Ok(self.view().committed_root_item(tree)?.is_some())
    }

    /// Promises what a step may need, and says how large it may be.
    fn reserve_step(self: &Arc<Self>) -> Result<(u32, MetaReservation)> {
        let mut budget = STEP_MAX;
        loop {
            // Nothing of a tree that anybody uses changes.
            let cost = Cost { items: 0, whole: budget, bytes: budget.saturating_mul(16) };
            match self.reserve_at_once(cost, Urgency::Drops)? {
                Some(reservation) => return Ok((budget, reservation)),
                None if budget > STEP_MIN => budget /= 2,
                None => return Ok((budget, self.reserve(cost, Urgency::Drops)?)),
            }
        }
    }

    /// Drops the trees that a balance of Linux left when a crash ended it in the middle of a group: what they
    /// have that no subvolume uses. Says how many there were. To be called before anything is moved.
    ///
    /// A crash leaves a smaller tree, or none: whoever opens the volume next goes on.
    ///
    /// # Errors
    ///
    /// As [`drop_step`](Self::drop_step).
    pub fn drop_leftovers(self: &Arc<Self>) -> Result<usize> {
        let mut dropped = BTreeSet::new();
        while let Some(of) = self.next_leftover()? {
            self.check_writable()?;
            if dropped.insert(of) {
                tracing::info!(subvolume = %of, "what an interrupted balance left is dropped");
            }
            let _turn = self.trees_turn.lock();
            let (budget, reservation) = self.reserve_step()?;
            let handle = self.begin(reservation);
            handle.transaction().leftovers.change(|trees| trees.insert(of, budget.into()));
            drop(handle);
            self.commit()?;
        }
        Ok(dropped.len())
    }

    /// The subvolume of the first tree that a balance left.
    fn next_leftover(&self) -> Result<Option<TreeId>> {
        let key = |of| Key::new(TreeId::TREE_RELOC.0, Kind::ROOT_ITEM, of);
        let found = self.view().at_or_after(TreeId::ROOT, &key(0), &key(u64::MAX))?;
        Ok(found.map(|(key, _)| TreeId(key.offset)))
    }
}
