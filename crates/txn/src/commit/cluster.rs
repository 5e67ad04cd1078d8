//! Runs of free space. A commit takes space for its nodes from runs, so that it writes the nodes in
//! few requests.
//!
//! # Place
//!
//! A commit rebuilds nodes all over its trees, and frees the old nodes. So the free space of
//! metadata is soon in pieces. If each node were allocated separately, each would lie in another
//! piece. A run is a long free piece, at most as long as one request. The nodes lie in the run side
//! by side, in the order in which they were made. With parity, a run consists of whole rows.
//!
//! # Invariants
//!
//! - **K1** When the trees are settled, or the commit has failed, the unused rest of each run is
//!   free again. The next commit begins to allocate at the start of that rest.
//! - **K2** No reservation covers a run. In mixed groups there are no runs, because data could not
//!   use the rest of a run until the commit ends.

use buttress_format::{Extent, Generation, Logical};
use buttress_space::{AllocOutcome, AllocRequest, SpaceKind};

use super::owners::Owners;

/// Bytes of the first run of a commit. Each further run is as long as all runs before it together.
const RUN_BYTES_MIN: u64 = 1 << 20;

/// The longest run, in bytes: as long as the longest request to a device.
const RUN_BYTES_MAX: u64 = 4 << 20;

/// Number of groups that may be loaded to find a longer run. After that a shorter run is taken.
const LOADED_MAX: u32 = 1;

/// The source of addresses for the next nodes of a commit.
pub(super) struct Cluster<'e> {
    owners: Owners<'e>,
    kind: SpaceKind,
    limit: Generation,
    /// The unused rest of the current run.
    rest: Option<Extent>,
    /// Longest run to search for, in bytes.
    run_max: u64,
    /// Bytes that were taken for nodes.
    taken: u64,
    loaded: u32,
}

impl<'e> Cluster<'e> {
    pub(super) fn new(owners: Owners<'e>, kind: SpaceKind, limit: Generation) -> Self {
        Self { owners, kind, limit, rest: None, run_max: u64::MAX, taken: 0, loaded: 0 }
    }

    fn request(&self, want: u64, min: u64) -> AllocRequest {
        AllocRequest {
            kind: self.kind,
            want,
            min,
            align: min,
            goal: None,
            limit: self.limit,
            stream: 0,
            hurry: self.loaded >= LOADED_MAX,
        }
    }

    /// Allocates the place of the next node. Returns `None` when no group has space.
    pub(super) fn take(&mut self, size: u64) -> Option<Logical> {
        let want = if self.kind != SpaceKind::Metadata || self.owners.storage.space().is_mixed() {
            size
        } else {
            let want = self.taken.clamp(RUN_BYTES_MIN, RUN_BYTES_MAX).min(self.run_max);
            (want / size * size).max(size)
        };
        while self.rest.is_none() {
            match self.owners.storage.space().allocate_whole_rows(self.request(want, size)) {
                AllocOutcome::Got(run) => {
                    if run.len < want {
                        // This run is shorter than wanted, so it was the longest free piece. Other
                        // pieces may be nearly as long. Extent items of nodes in such pieces lie
                        // close to the extent items of this run's nodes. A search for half of the
                        // run's length finds these pieces, too.
                        self.run_max = run.len / 2;
                    }
                    self.owners.reservations.frozen().take(run.len);
                    self.rest = Some(run);
                }
                AllocOutcome::NeedsLoading(group) => {
                    self.loaded += 1;
                    self.owners.storage.load_or_exclude(self.owners.commits, &group);
                }
                AllocOutcome::Full { .. } => return None,
            }
        }
        let run = self.rest.take()?;
        let node = Extent::new(run.start, size);
        if run.len > size {
            self.rest = Some(Extent::new(node.end(), run.len - size));
        }
        self.owners.storage.space().commit_used(node);
        self.taken += size;
        Some(node.start)
    }

    /// Bytes that were taken for nodes, including nodes that were given back.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Frees the rest of the current run (K1).
    pub(super) fn close(&mut self) {
        let Some(rest) = self.rest.take() else { return };
        // Here the counter changes before the account; in `take` it changes after the account. So a
        // thread that reads both sees these bytes in at least one of them.
        self.owners.reservations.frozen().give_back(rest.len);
        self.owners.storage.space().free(rest);
        let request = self.request(RUN_BYTES_MIN, RUN_BYTES_MIN);
        self.owners.storage.space().note_goal(&request, Extent::new(rest.start, 0));
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use buttress_base::{Rng, seeded, thread};

    use super::*;
    use crate::chunk_alloc::tests::engine;

    /// More bytes than the test takes.
    const NEED: u64 = 64 << 20;

    /// P1: whenever a thread checks whether a request fits, the bytes of the commit's runs are in
    /// the account or in the commit's remaining need. This also holds while runs are given back.
    /// Seeds decide the order of the threads.
    #[test]
    fn account_sees_runs_that_a_commit_takes() {
        let work = |seed| {
            let engine = engine(512);
            let node = u64::from(engine.storage().store().geometry().nodesize);
            engine.reservations().frozen().begin(NEED);
            let sum = |(account, frozen): (buttress_space::Account, u64)| {
                account.used + account.reserved + frozen
            };
            let before = sum(engine.reservations().account_and_frozen());
            let done = AtomicBool::new(false);
            let (mut least, mut looks) = (u64::MAX, 0);
            thread::scope(|scope| {
                let (engine, done) = (&engine, &done);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    for _ in 0..6 {
                        let mut cluster = Cluster::new(
                            Owners::of(engine),
                            SpaceKind::Metadata,
                            Generation(u64::MAX),
                        );
                        for _ in 0..rng.below(100) {
                            cluster.take(node).expect("there is room");
                        }
                    }
                    done.store(true, Ordering::Release);
                });
                while !done.load(Ordering::Acquire) {
                    least = least.min(sum(engine.reservations().account_and_frozen()));
                    looks += 1;
                    thread::yield_now();
                }
            });
            assert_eq!(sum(engine.reservations().account_and_frozen()), before, "seed {seed}");
            assert!(least >= before, "seed {seed}: {} bytes were in neither", before - least);
            looks
        };
        let run = |seed| seeded::run(seed, seeded::Options::default(), move || work(seed));
        let looks: u32 = (0..40).map(|seed| run(seed).expect("no thread waits for ever").0).sum();
        assert!(looks > 400, "{looks}");
    }
}
