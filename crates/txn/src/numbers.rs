//! Numbers for new inodes, and for new subvolumes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use buttress_base::sync::Mutex;
use buttress_format::TreeId;

/// The next free number of each tree.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// Unranked: nothing is taken under it.
    next: Mutex<HashMap<TreeId, Arc<AtomicU64>>>,
}

impl Numbers {
    /// The counter of a tree, if it has one.
    pub(crate) fn find(&self, tree: TreeId) -> Option<Arc<AtomicU64>> {
        self.next.lock().get(&tree).cloned()
    }

    /// Returns the counter of a tree. Makes one that begins at `first` if the tree has none.
    pub(crate) fn begin(&self, tree: TreeId, first: u64) -> Arc<AtomicU64> {
        let fresh = || Arc::new(AtomicU64::new(first));
        Arc::clone(self.next.lock().entry(tree).or_insert_with(fresh))
    }
}
