//! Gives nodes new handles after the volume has moved to a newer commit.
//!
//! # Invariants
//!
//! - **W1** A handle is exchanged only under the lock of its shard, and only if the caller's test
//!   accepts it there. A request that takes a handle from the table afterwards gets the new one.

use std::sync::atomic::Ordering;

use super::{Handle, Idle, Nodes, ROOT};

impl<H: Handle> Nodes<H> {
    /// All nodes with a handle, and the handles. The root comes first.
    pub(crate) fn all(&self) -> Vec<(u64, H)> {
        let mut all = vec![(ROOT, self.root.1.read().clone())];
        for shard in &self.shards {
            let shard = shard.read();
            all.extend(shard.awake.iter().map(|(id, known)| (*id, known.handle.clone())));
        }
        all
    }

    /// The resting nodes of which the kernel may hold pages: the number in their [`Idle`] is not
    /// zero.
    pub(crate) fn resting_with_pages(&self) -> Vec<u64> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            found.extend(shard.resting.iter().filter(|(_, idle)| idle.what != 0).map(|(id, _)| id));
        }
        found
    }

    /// Takes the list of remade nodes (N4 of the parent module).
    pub(crate) fn take_remade(&self) -> Vec<u64> {
        self.shards.iter().flat_map(|shard| std::mem::take(&mut shard.write().remade)).collect()
    }

    /// Exchanges the handle of a node, if `is_right` accepts the present one (W1). Without a new
    /// handle the node rests. Returns the old handle, for the caller to drop.
    pub(crate) fn exchange(
        &self,
        id: u64,
        is_right: impl FnOnce(&H) -> bool,
        new: Option<H>,
    ) -> Option<H> {
        if id == ROOT {
            let mut root = self.root.1.write();
            if !is_right(&root) {
                return None;
            }
            let old = root.clone();
            new.into_iter().for_each(|new| *root = new);
            return Some(old);
        }
        let mut shard = self.shard(id).write();
        let known = shard.awake.get_mut(&id).filter(|known| is_right(&known.handle))?;
        match new {
            Some(new) => Some(std::mem::replace(&mut known.handle, new)),
            None => {
                let mut known = shard.awake.remove(&id)?;
                let lookups = u32::try_from(*known.lookups.get_mut()).unwrap_or(u32::MAX);
                shard.resting.insert(id, Idle { lookups, what: 0 });
                self.has_rested.store(true, Ordering::Relaxed);
                Some(known.handle)
            }
        }
    }
}
