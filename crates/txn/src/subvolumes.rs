//! Numbers of subvolumes, and requests for snapshots and for changes of quotas.

use buttress_format::{Generation, TreeId};

use buttress_transaction::WantedQuota;

use crate::{Commits, Handle, QuotaChange, Result, View};

impl Handle<'_> {
    /// Asks the commit of this transaction to change quotas. For the change, the commit may set or
    /// delete at most `items` items of the quota tree. These items count as items of the
    /// transaction.
    pub fn change_quotas(&self, change: QuotaChange, items: u64) {
        let wanted = WantedQuota { change, items };
        self.transaction().quotas.change(|changes| changes.push(wanted));
    }
}

impl Commits {
    /// A number for a new subvolume.
    ///
    /// # Errors
    ///
    /// When the root tree cannot be read, or all numbers were used.
    pub fn next_subvolume(&self) -> Result<TreeId> {
        Ok(TreeId(self.next_ino(TreeId::ROOT)?.0))
    }

    /// Begins to count subvolume numbers. The caller does so before the last part of a dropped
    /// subvolume is deleted. Otherwise the count could begin at or below the number of that
    /// subvolume, which a caller may still remember.
    ///
    /// # Errors
    ///
    /// When the root tree cannot be read.
    pub fn count_subvolumes(&self) -> Result<()> {
        self.inos_of(TreeId::ROOT).map(drop)
    }
}

/// The transaction of a subvolume's last snapshot, including a snapshot that is being made; 0
/// if there is no snapshot. A snapshot may share data that the files had at that time, even if
/// reference counts do not show it.
///
/// # Errors
///
/// When the root tree cannot be read.
pub fn last_snapshot(view: &View, tree: TreeId) -> Result<Generation> {
    let committed = view.committed_root_item(tree)?;
    let mut last = committed.map_or(Generation(0), |item| item.last_snapshot);
    for transaction in view.frozen().into_iter().chain([view.running()]) {
        if transaction.snapshots.lock().iter().any(|snapshot| snapshot.source == tree) {
            last = last.max(transaction.generation);
        }
    }
    Ok(last)
}
