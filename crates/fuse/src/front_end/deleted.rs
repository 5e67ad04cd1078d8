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
//! - **DS1** The kernel is told on a thread that answers no request (`notifier_threads::K3`). The
//!   cleaner does not wait for that thread: the kernel may wait for a request that waits for the
//!   cleaner.
//! - **DS2** The search for nodes takes at most a fiftieth of the time, however many nodes the
//!   kernel knows. The rounds may go on for long, since a program may stay in a deleted subvolume.
//! - **DS3** The kernel keeps a directory as long as it knows that a name is absent from it. So the
//!   server remembers the last [`ABSENT_MAX`] names that programs looked for in vain in deleted
//!   subvolumes, and has the kernel forget these names first. Names from before the deletion are
//!   forgotten with the subvolume's name.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_base::rank::{Rank, Ranked};
use buttress_fs::TreeId;

use super::FrontEnd;

/// The least time between two rounds. A directory is forgotten only after its files, so a deep tree
/// takes several rounds.
const REST_MIN: Duration = Duration::from_secs(1);
/// A round is followed by a rest of this many times its length (DS2).
const RESTS: u32 = 50;

/// The most names that are remembered as absent from deleted subvolumes. The oldest name makes room
/// for a new name. The kernel then keeps the directory of the oldest name until memory is short.
const ABSENT_MAX: usize = 4096;

/// Names that the kernel knows to be absent from deleted subvolumes (DS3).
#[derive(Debug)]
pub(crate) struct AbsentNames(Ranked<VecDeque<AbsentName>>);

#[derive(Debug, PartialEq, Eq)]
struct AbsentName {
    tree: TreeId,
    /// The directory's node.
    dir: u64,
    name: Vec<u8>,
}

impl Default for AbsentNames {
    fn default() -> Self {
        Self(Ranked::new(Rank::Leaf, VecDeque::new()))
    }
}

impl AbsentNames {
    /// Remembers a name that a directory of a deleted subvolume does not have.
    pub(crate) fn note(&self, tree: TreeId, dir: u64, name: &[u8]) {
        let name = AbsentName { tree, dir, name: name.to_owned() };
        let mut names = self.0.lock();
        if names.len() >= ABSENT_MAX {
            names.pop_front();
        }
        names.push_back(name);
    }

    /// Takes the names of some subvolumes, each with its directory's node.
    fn take(&self, trees: &[u64]) -> Vec<(u64, Vec<u8>)> {
        let mut names = self.0.lock();
        let all = std::mem::take(&mut *names);
        let (taken, kept) = all.into_iter().partition(|name| trees.contains(&name.tree.0));
        *names = kept;
        let taken: VecDeque<AbsentName> = taken;
        taken.into_iter().map(|name| (name.dir, name.name)).collect()
    }
}

/// When the next round may begin.
#[derive(Debug)]
struct Rounds {
    /// Whether a round is under way, or waits for its thread.
    is_running: AtomicBool,
    next: Ranked<Instant>,
}

impl Rounds {
    /// Begins a round, unless a round is under way or ended a short time ago.
    fn begin(self: &Arc<Self>, now: Instant) -> Option<Round> {
        let begins = *self.next.lock() <= now && !self.is_running.swap(true, Ordering::Acquire);
        begins.then(|| Round { rounds: Arc::clone(self), began: now })
    }

    fn end(&self, began: Instant, now: Instant) {
        let took = now.saturating_duration_since(began);
        *self.next.lock() = now + (took * RESTS).max(REST_MIN);
        self.is_running.store(false, Ordering::Release);
    }
}

/// A round. It ends when this value is dropped, also if the round never ran or has panicked.
struct Round {
    rounds: Arc<Rounds>,
    /// When the work of the round began.
    began: Instant,
}

impl Drop for Round {
    fn drop(&mut self) {
        self.rounds.end(self.began, clock::now());
    }
}

impl FrontEnd {
    /// Begins to tell the kernel to forget the unused inodes of deleted subvolumes. This goes on
    /// until the front end is dropped.
    pub(crate) fn forget_deleted_subvolumes(self: &Arc<Self>) {
        let front = Arc::downgrade(self);
        let next = Ranked::new(Rank::Leaf, clock::now());
        let rounds = Arc::new(Rounds { is_running: AtomicBool::new(false), next });
        self.fs.tell_of_waiting_subvolumes(move |trees| {
            let Some(front) = front.upgrade() else { return false };
            if front.cannot_prune.load(Ordering::Relaxed) {
                return false;
            }
            if let Some(round) = rounds.begin(clock::now()) {
                front.forget_nodes_of(trees, round);
            }
            true
        });
    }

    /// Has the kernel forget unused nodes of these subvolumes at a later time (DS1).
    fn forget_nodes_of(&self, trees: &[TreeId], mut round: Round) {
        let trees: Vec<u64> = trees.iter().map(|tree| tree.0).collect();
        let (nodes, cannot) = (self.nodes(), Arc::clone(&self.cannot_prune));
        let absent = Arc::clone(&self.absent_names);
        self.notifier_threads.on_names(move |notifier| {
            round.began = clock::now();
            for (dir, name) in absent.take(&trees) {
                notifier.drop_name(dir, &name);
            }
            // A kernel before Linux 6.18 takes no such request. Such a kernel forgets nodes when
            // memory is short.
            cannot.store(!notifier.prune_all(&nodes.ids_in(&trees)), Ordering::Relaxed);
            drop(round);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DS3: the names of a subvolume are taken once. Names of other subvolumes stay, and the number
    /// of names is limited.
    #[test]
    fn absent_names_are_those_of_the_subvolume() {
        let names = AbsentNames::default();
        (0..ABSENT_MAX as u64).for_each(|dir| names.note(TreeId(300 + dir % 2), dir, b"name"));
        names.note(TreeId(302), 7, b"last");
        assert_eq!(names.0.lock().len(), ABSENT_MAX);
        let taken = names.take(&[300]);
        assert_eq!(taken.len(), ABSENT_MAX / 2 - 1, "the oldest one made room");
        assert_eq!(names.take(&[300]), []);
        assert_eq!(names.take(&[302, 303]), [(7, b"last".to_vec())]);
    }

    /// DS2: a round that takes long is followed by a long rest, and no two run at once. A round
    /// that never ran ends, too.
    #[test]
    fn rounds_rest() {
        let now = clock::now();
        let next = Ranked::new(Rank::Leaf, now);
        let rounds = Arc::new(Rounds { is_running: AtomicBool::new(false), next });
        let round = rounds.begin(now).expect("none is under way");
        assert!(rounds.begin(now + 2 * REST_MIN).is_none(), "one is under way");
        drop(round);
        assert!(rounds.begin(now).is_none());
        drop(rounds.begin(clock::now() + REST_MIN).expect("the rest has ended"));
        let end = clock::now() + Duration::from_secs(1);
        rounds.end(end - Duration::from_secs(1), end);
        assert!(rounds.begin(end + Duration::from_secs(49)).is_none());
        assert!(rounds.begin(end + Duration::from_secs(50)).is_some());
    }
}
