//! The UUID tree made empty, so that Linux builds it anew.
//!
//! # Invariants
//!
//! - **UT1** The superblock on the devices marks the tree as outdated before its first item goes.
//!   So after a crash, Linux adds the missing items at its next mount.
//!
//! This program finds subvolumes without the tree, and only keeps the tree for Linux.

use buttress_format::{Key, TreeId};
use buttress_txn::{Cost, ReserveClass, Result, View};

use crate::Maintenance;

/// Items that one handle deletes.
const ITEMS_AT_ONCE: usize = 512;

/// The keys of the tree from one on.
fn keys(view: &View, from: Key) -> Result<impl Iterator<Item = Result<Key>>> {
    let is_there = view.committed_root(TreeId::UUID)?.is_some();
    let found = is_there.then(|| view.range(TreeId::UUID, from, Key::MAX));
    Ok(found.into_iter().flatten().map(|item| Ok(item.map(|(key, _)| key)?)))
}

impl Maintenance {
    /// The number of items in the UUID tree. Zero if the volume has no such tree.
    ///
    /// # Errors
    ///
    /// An error from reading the tree.
    pub fn uuid_items(&self) -> Result<u64> {
        let view = self.engine().view();
        keys(&view, Key::MIN)?.try_fold(0, |count, key| key.map(|_| count + 1))
    }

    /// Deletes all items of the UUID tree. The caller excludes changes of subvolumes. Returns the
    /// number of items.
    ///
    /// # Errors
    ///
    /// An error from reading the tree, lack of space, a device that fails.
    pub fn clear_uuid_tree(&self) -> Result<u64> {
        self.engine().check_writable()?;
        self.mark_uuid_tree()?;
        let (mut deleted, mut from) = (0, Key::MIN);
        // Each pass begins behind the items of the pass before.
        loop {
            let view = self.engine().view();
            let some = keys(&view, from)?.take(ITEMS_AT_ONCE).collect::<Result<Vec<Key>>>()?;
            drop(view);
            let Some(last) = some.last() else { break };
            let next = last.next();
            deleted += some.len() as u64;
            let cost = Cost::of(some.len() as u32, 0);
            let handle = self.engine().begin(self.engine().reserve(cost, ReserveClass::Free)?);
            for key in some {
                handle.delete(TreeId::UUID, key);
            }
            drop(handle);
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        self.engine().commit()?;
        Ok(deleted)
    }

    /// Marks the tree as outdated in every superblock (UT1).
    fn mark_uuid_tree(&self) -> Result<()> {
        let mut turn = self.engine().commits().commit_turn();
        let mut superblock = turn.superblock().clone();
        superblock.uuid_tree_generation = 0;
        self.volume().flush_and_commit(&superblock)?;
        turn.set_superblock(superblock.clone());
        self.volume().write_other_superblocks(&superblock)?;
        Ok(())
    }
}
