//! Before a transaction freezes: waits for ordered extents that should finish in it.

use std::time::Duration;

use buttress_base::clock;
use buttress_transaction::Cost;

use crate::class::ReserveClass;
use crate::reservations::Reservations;

/// How long a commit waits while no ordered extent finishes, and how often the commit checks.
const TIMEOUT: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);

impl Reservations {
    /// Called before a transaction freezes. Waits until the needs of the transaction and of all
    /// reservations fit together. The wait also ends once no inode has items reserved beyond its
    /// bound (`inode::I1`, `inode::I4`).
    ///
    /// Gives up if no ordered extent finishes for `TIMEOUT`, because writeback may itself need
    /// this commit. `release` frees pinned space that no reader needs any more.
    pub fn let_inodes_finish(&self, release: impl Fn()) {
        let inodes = &self.inode_reserves;
        if !inodes.has_spared() {
            return;
        }
        let fits_now = || self.may_reserve(Cost::default(), ReserveClass::Finish);
        let fits = || {
            release();
            fits_now() || (self.recount_beyond(0, true) && fits_now())
        };
        let (mut items, mut since) = (inodes.items(), clock::now());
        while !fits() && inodes.has_spared() && clock::since(since) < TIMEOUT {
            inodes.set_awaited(true);
            self.pressure.note(1000);
            buttress_base::thread::sleep(LOOK);
            let now = inodes.items();
            if now < items {
                since = clock::now();
            }
            items = now;
        }
        inodes.set_awaited(false);
    }
}
