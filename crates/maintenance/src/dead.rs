//! Dead subvolumes: found in the root tree, dropped step by step.
//!
//! # Failure
//!
//! Each step is part of a commit. What a crash leaves is a smaller tree. Its root item still says
//! that it is dead, and the next mount goes on.

use std::collections::BTreeSet;

use buttress_format::{Key, Kind, TreeId, ids};
use buttress_txn::{Cost, Error, MetaReservation, Result, Urgency};

use crate::Maintenance;

/// References that one step changes at most, where there is room for it, and at least.
const STEP_MAX: u32 = 32 << 10;
const STEP_MIN: u32 = 64;

impl Maintenance {
    /// The subvolumes that are to be dropped.
    ///
    /// # Errors
    ///
    /// When the root tree cannot be read.
    pub fn dead_subvolumes(&self) -> Result<Vec<TreeId>> {
        let view = self.engine().view();
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

    /// Drops a dead subvolume one step further, and commits. Says whether there is more to drop,
    /// which is so when a mover of block groups leaves no time for it.
    ///
    /// The caller made sure that it has no users.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when not even a small step can be reserved; as
    /// [`Engine::commit`](buttress_txn::Engine::commit).
    pub fn drop_step(&self, tree: TreeId) -> Result<bool> {
        self.engine().check_writable()?;
        let Some(_turn) = self.turn().take_soon() else { return Ok(true) };
        let is_dead = || -> Result<Option<bool>> {
            Ok(self.engine().view().committed_root_item(tree)?.map(|item| item.refs == 0))
        };
        if is_dead()? != Some(true) {
            // Its death may not be durable yet, nor its birth.
            self.engine().commit()?;
        }
        match is_dead()? {
            Some(true) => {}
            Some(false) => return Err(Error::Malformed(format!("the subvolume {tree} is in use"))),
            None => return Ok(false),
        }
        let (budget, reservation) = self.reserve_step()?;
        let handle = self.engine().begin(reservation);
        handle.drop_tree(tree, budget);
        drop(handle);
        self.engine().commit()?;
        Ok(self.engine().view().committed_root_item(tree)?.is_some())
    }

    /// Reserves what a step may need, and says how large it may be.
    fn reserve_step(&self) -> Result<(u32, MetaReservation)> {
        let mut budget = STEP_MAX;
        loop {
            // Nothing of a tree that is in use changes.
            let cost = Cost { items: 0, whole: budget, bytes: budget.saturating_mul(16) };
            match self.engine().reserve_at_once(cost, Urgency::Drops)? {
                Some(reservation) => return Ok((budget, reservation)),
                None if budget > STEP_MIN => budget /= 2,
                None => return Ok((budget, self.engine().reserve(cost, Urgency::Drops)?)),
            }
        }
    }

    /// Drops the trees that a balance of Linux left when a crash ended it in the middle of a
    /// group: what they have that no subvolume uses. Says how many there were. To be called
    /// before anything is moved.
    ///
    /// A crash leaves a smaller tree, or none: the next mount goes on.
    ///
    /// # Errors
    ///
    /// As [`drop_step`](Self::drop_step).
    pub fn drop_leftovers(&self) -> Result<usize> {
        let mut dropped = BTreeSet::new();
        while let Some(of) = self.next_leftover()? {
            self.engine().check_writable()?;
            if dropped.insert(of) {
                tracing::info!(subvolume = %of, "what an interrupted balance left is dropped");
            }
            let _turn = self.turn().take();
            let (budget, reservation) = self.reserve_step()?;
            let handle = self.engine().begin(reservation);
            handle.drop_leftover(of, budget);
            drop(handle);
            self.engine().commit()?;
        }
        Ok(dropped.len())
    }

    /// The subvolume of the first tree that a balance left.
    fn next_leftover(&self) -> Result<Option<TreeId>> {
        let key = |of| Key::new(TreeId::TREE_RELOC.0, Kind::ROOT_ITEM, of);
        let found = self.engine().view().at_or_after(TreeId::ROOT, &key(0), &key(u64::MAX))?;
        Ok(found.map(|(key, _)| TreeId(key.offset)))
    }
}
