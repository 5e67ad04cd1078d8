//! Deleted subvolumes of which the kernel still knows inodes.
//!
//! # Place
//!
//! The cleaner drops a deleted subvolume when nothing uses its inodes. The kernel keeps the inodes
//! that it knows until memory is short. So while the cleaner waits for a subvolume, the server
//! tells the kernel from time to time to forget the subvolume's unused inodes.
//!
//! # Invariants
//!
//! - **DS1** The kernel is told on a thread that answers no request (K3 of `notifier_threads`). The
//!   cleaner does not wait for that thread: the kernel may wait for a request that waits for the
//!   cleaner.
//! - **DS2** The search for nodes takes at most a fiftieth of the time, however many nodes the
//!   kernel knows. The rounds may go on for long, since a program may stay in a deleted subvolume.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_base::rank::{Rank, Ranked};
use buttress_fs::TreeId;

use super::Door;

/// The least time between two rounds. A directory is forgotten only after its files, so a deep tree
/// takes several rounds.
const REST_MIN: Duration = Duration::from_secs(1);
/// A round is followed by a rest of this many times its length (DS2).
const RESTS: u32 = 50;

/// When the next round may begin.
#[derive(Debug)]
struct Rounds {
    /// Whether a round is under way, or waits for its thread.
    is_running: AtomicBool,
    next: Ranked<Instant>,
}

impl Rounds {
    /// Begins a round, unless a round is under way or ended a short time ago.
    fn begin(&self, now: Instant) -> bool {
        *self.next.lock() <= now && !self.is_running.swap(true, Ordering::Acquire)
    }

    /// Ends a round.
    fn end(&self, began: Instant, now: Instant) {
        let took = now.saturating_duration_since(began);
        *self.next.lock() = now + (took * RESTS).max(REST_MIN);
        self.is_running.store(false, Ordering::Release);
    }
}

impl Door {
    /// Begins to tell the kernel to forget the unused inodes of deleted subvolumes. This goes on
    /// until the door is dropped.
    pub(crate) fn forget_deleted_subvolumes(self: &Arc<Self>) {
        let door = Arc::downgrade(self);
        let next = Ranked::new(Rank::Leaf, clock::now());
        let rounds = Arc::new(Rounds { is_running: AtomicBool::new(false), next });
        self.fs.tell_of_waiting_subvolumes(move |trees| {
            let Some(door) = door.upgrade() else { return false };
            if door.cannot_prune.load(Ordering::Relaxed) {
                return false;
            }
            if rounds.begin(clock::now()) {
                door.forget_nodes_of(trees, Arc::clone(&rounds));
            }
            true
        });
    }

    /// Has the kernel forget unused nodes of these subvolumes at a later time (DS1).
    fn forget_nodes_of(&self, trees: &[TreeId], rounds: Arc<Rounds>) {
        let trees: Vec<u64> = trees.iter().map(|tree| tree.0).collect();
        let (nodes, cannot) = (self.nodes(), Arc::clone(&self.cannot_prune));
        self.notifier_threads.on_names(move |notifier| {
            let began = clock::now();
            // A kernel before Linux 6.18 takes no such request. It forgets when memory is short.
            cannot.store(!notifier.prune_all(&nodes.ids_in(&trees)), Ordering::Relaxed);
            rounds.end(began, clock::now());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DS2: a round that takes long is followed by a long rest, and no two rounds run at once.
    #[test]
    fn ds2_rounds_rest() {
        let now = clock::now();
        let next = Ranked::new(Rank::Leaf, now);
        let rounds = Rounds { is_running: AtomicBool::new(false), next };
        assert!(rounds.begin(now));
        assert!(!rounds.begin(now), "one is under way");
        rounds.end(now, now);
        assert!(!rounds.begin(now) && rounds.begin(now + REST_MIN));
        let end = now + Duration::from_secs(1);
        rounds.end(now, end);
        assert!(!rounds.begin(end + Duration::from_secs(49)));
        assert!(rounds.begin(end + Duration::from_secs(50)));
    }
}
