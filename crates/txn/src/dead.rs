//! Dead subvolumes: found in the root tree, dropped step by step.
//!
//! # Failure
//!
//! Each step is part of a commit. What a crash leaves is a smaller tree whose root item still says that
//! it is dead: whoever opens the volume next goes on.

use std::sync::atomic::Ordering;
use std::time::Duration;

use buttress_base::{clock, sync::MutexGuard};
use buttress_format::{Key, Kind, TreeId, ids};

use crate::{Cost, Engine, Error, Result, Urgency, relocate::TURN_PERIOD};

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
    pub fn drop_step(self: &std::sync::Arc<Self>, tree: TreeId) -> Result<bool> {
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
        let mut budget = STEP_MAX;
        let reservation = loop {
            let cost = Cost { items: budget, bytes: budget.saturating_mul(16) };
            match self.reserve_at_once(cost, Urgency::Frees)? {
                Some(reservation) => break reservation,
                None if budget > STEP_MIN => budget /= 2,
                None => break self.reserve(cost, Urgency::Frees)?,
            }
        };
        let handle = self.begin(reservation);
        handle.transaction().drops.lock().insert(tree, budget.into());
        drop(handle);
        self.commit()?;
        Ok(self.view().committed_root_item(tree)?.is_some())
    }
}
