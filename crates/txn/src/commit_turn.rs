//! Exclusion of commits while an fsync writes a log.
//!
//! # Invariants
//!
//! - **C1** As long as a [`CommitLockGuard`] lives, no commit begins or ends. So the superblock and
//!   the trees of the last commit stay the newest.

use std::sync::atomic::Ordering;

use buttress_base::sync::MutexGuard;
use buttress_format::{Generation, Incompat, Superblock};
use buttress_transaction::CommitReason;

use crate::commits::{CommitState, Commits};

/// The right to write a log on top of the last commit. It holds the commit lock.
pub struct CommitLockGuard<'e> {
    commits: &'e Commits,
    state: MutexGuard<'e, CommitState>,
}

impl CommitLockGuard<'_> {
    /// The superblock on disk.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.state.superblock
    }

    /// The last commit.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.state.roots.generation
    }

    /// Notes that another superblock is durable: the superblock of the last commit, with a log.
    pub fn set_superblock(&mut self, superblock: Superblock) {
        debug_assert_eq!(superblock.generation, self.state.superblock.generation);
        self.commits.note_superblock(&superblock);
        self.state.superblock = superblock;
    }

    /// Runs `look` while no handle is open, so that everything it reads belongs to one moment. The
    /// call waits only for the open handles; `look` itself must not wait.
    pub fn between_operations<R>(&self, look: impl FnOnce() -> R) -> R {
        self.commits.alone(look)
    }

    /// The reason why a log cannot express the changes of the running transaction, if there is one.
    #[must_use]
    pub fn log_obstacle(&self) -> Option<CommitReason> {
        let superblock = self.superblock();
        let view = self.commits.peek();
        let running = view.running();
        let needed = self.commits.needed_features();
        let needed_ro = self.commits.needed_features_ro();
        let refused = [
            (view.frozen().is_some(), CommitReason::FailedCommit),
            (!running.snapshots.lock().is_empty(), CommitReason::Snapshot),
            (!running.devices.lock().is_empty(), CommitReason::DeviceChange),
            (!running.to_rebuild.lock().is_empty(), CommitReason::Balance),
            (running.needs_commit.load(Ordering::Acquire), CommitReason::GroupedChanges),
            (!running.moves.lock().nodes.is_empty(), CommitReason::Balance),
            // A replay by Linux makes no items for the data of a log, and could not read it then.
            (superblock.incompat.has(Incompat::RAID_STRIPE_TREE), CommitReason::StripeTree),
            (superblock.incompat.0 & needed != needed, CommitReason::NewFeature),
            (superblock.compat_ro.0 & needed_ro != needed_ro, CommitReason::NewFeature),
            (running.generation != superblock.generation.next(), CommitReason::SkippedGeneration),
        ];
        refused.iter().find(|(is_so, _)| *is_so).map(|(_, why)| *why)
    }
}

impl Commits {
    /// Waits for the running commit. No other commit begins while the turn lives.
    pub fn commit_turn(&self) -> CommitLockGuard<'_> {
        CommitLockGuard { commits: self, state: self.lock() }
    }
}
