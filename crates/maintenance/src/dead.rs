//! Dead subvolumes: found in the root tree, dropped step by step.
//!
//! # Failure
//!
//! Each step is part of a commit. A crash leaves a smaller tree. The root item still marks the tree
//! as deleted, and the next mount continues.

use std::collections::BTreeSet;

use buttress_format::{Key, Kind, TreeId, ids};
use buttress_txn::{Cost, Error, MetaReservation, ReserveClass, Result};

use crate::Maintenance;
use crate::bound::{Steps, name};

/// The most references that one step changes. If space is short, a step is smaller and works on
/// fewer subvolumes, since each subvolume needs
/// [`drop_min`](buttress_txn::drop_min). The smallest step works on one subvolume.
const STEP_MAX: u32 = 32 << 10;
const STEP_MIN: u32 = 64;

impl Maintenance {
    /// The subvolumes to drop.
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

    /// As [`drop_step`](Self::drop_step). If one subvolume cannot be dropped, the others are
    /// dropped nevertheless. The failure goes to the log, and the subvolume waits for the next
    /// mount.
    pub fn drop_each(&self, trees: &[TreeId]) -> Vec<TreeId> {
        if let Ok(left) = self.drop_step(trees) {
            return left;
        }
        let alone = |tree: &TreeId| {
            self.drop_step(&[*tree]).unwrap_or_else(|error| {
                tracing::warn!(%tree, %error, "cannot drop a subvolume");
                Vec::new()
            })
        };
        trees.iter().flat_map(alone).collect()
    }

    /// Drops dead subvolumes one step further, and commits once for all of them. Returns the
    /// subvolumes that need another step. If a move of block groups keeps the turn, nothing is
    /// dropped, and all subvolumes are returned.
    ///
    /// The caller ensures that no thread uses these subvolumes.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when not even a small step can be reserved; as
    /// [`Engine::commit`](buttress_txn::Engine::commit).
    pub fn drop_step(&self, trees: &[TreeId]) -> Result<Vec<TreeId>> {
        self.engine().check_writable()?;
        let Some(_turn) = self.turn().take_soon() else { return Ok(trees.to_vec()) };
        let is_dead = |tree: TreeId| -> Result<Option<bool>> {
            Ok(self.engine().view().committed_root_item(tree)?.map(|item| item.refs == 0))
        };
        let are_dead = || trees.iter().map(|tree| is_dead(*tree)).collect::<Result<Vec<_>>>();
        let mut states = are_dead()?;
        if states.iter().any(|state| *state != Some(true)) {
            // The creation and the deletion of a subvolume may not be committed yet.
            self.engine().commit()?;
            states = are_dead()?;
        }
        let mut dead = Vec::with_capacity(trees.len());
        for (tree, state) in trees.iter().zip(states) {
            match state {
                Some(true) => dead.push(*tree),
                Some(false) => {
                    return Err(Error::Malformed(format!("the subvolume {tree} is in use")));
                }
                None => {}
            }
        }
        if dead.is_empty() {
            return Ok(dead);
        }
        let (budget, reservation) = self.reserve_step()?;
        let count = (budget / buttress_txn::drop_min(self.engine().storage()))
            .clamp(1, u32::try_from(dead.len()).unwrap_or(u32::MAX));
        let now = &dead[..count as usize];
        self.count_drops(now)?;
        let handle = self.engine().begin(reservation);
        now.iter().for_each(|tree| handle.drop_tree(*tree, budget / count));
        drop(handle);
        self.engine().commit()?;
        let view = self.engine().view();
        let mut left = Vec::new();
        for tree in dead {
            if view.committed_root_item(tree)?.is_some() {
                left.push(tree);
            } else if let Some(steps) = self.drops().lock().remove(&tree) {
                self.loops().add(name::DROP, steps);
            }
        }
        Ok(left)
    }

    /// Counts a step of each subvolume. A step frees a node of the tree, or hands one over to other
    /// trees (`txn::commit::drops`). So there are at most two steps for each node.
    fn count_drops(&self, trees: &[TreeId]) -> Result<()> {
        let most = self.drop_steps_max();
        let mut drops = self.drops().lock();
        trees.iter().try_for_each(|tree| {
            drops.entry(*tree).or_insert(Steps { taken: 0, most }).step(name::DROP)
        })
    }

    /// The most steps that drop a tree, from the number of nodes that the bytes in use can hold.
    fn drop_steps_max(&self) -> u64 {
        let used = self.engine().commits().between_commits(|superblock| superblock.bytes_used);
        2 * (used / u64::from(self.geometry().nodesize)) + 2
    }

    /// Reserves space for a step, and returns the number of references that it may change.
    fn reserve_step(&self) -> Result<(u32, MetaReservation)> {
        let mut budget = STEP_MAX;
        loop {
            // Dropping changes no items of a live tree.
            let commit_items = u64::from(budget);
            let cost = Cost { items: 0, commit_items, bytes: 16 * commit_items };
            match self.engine().reserve_at_once(cost, ReserveClass::DropTree)? {
                Some(reservation) => return Ok((budget, reservation)),
                None if budget > STEP_MIN => budget /= 2,
                None => return Ok((budget, self.engine().reserve(cost, ReserveClass::DropTree)?)),
            }
        }
    }

    /// Drops the relocation trees that a balance of Linux left after a crash. Frees the nodes of
    /// these trees that no subvolume uses. Returns the number of trees. The caller must do this
    /// before anything is moved.
    ///
    /// A crash leaves a smaller tree or no tree, and the next mount continues.
    ///
    /// # Errors
    ///
    /// As [`drop_step`](Self::drop_step).
    pub fn drop_leftovers(&self) -> Result<usize> {
        let mut dropped = BTreeSet::new();
        let mut bound = None;
        while let Some(of) = self.next_leftover()? {
            self.engine().check_writable()?;
            if dropped.insert(of) {
                bound = Some(self.loops().begin(name::LEFTOVER, self.drop_steps_max()));
                tracing::info!(subvolume = %of, "what an interrupted balance left is dropped");
            }
            if let Some(bound) = &mut bound {
                bound.step()?;
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
