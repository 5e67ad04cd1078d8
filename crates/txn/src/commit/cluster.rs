//! Runs of free space that a commit takes its nodes from, so that it writes them in few requests.
//!
//! # Place
//!
//! A commit rebuilds nodes from all over its trees, in one order, and frees what they replace: what
//! is free of metadata is soon in pieces. Taken one by one each node would get the next piece. A
//! run is the longest piece there is, or as long as one request. Nodes lie in it side by side in
//! the order in which they were made.
//!
//! # Invariants
//!
//! - **K1** The trees are settled, or the commit has failed: what is left of a run is free again,
//!   and the next commit begins there.
//! - **K2** A run is taken from no reservation. Where data shares its groups with metadata there
//!   are no runs: what is left of one would be missing to data for as long as the commit takes.

use buttress_format::{Extent, Generation, Logical};
use buttress_space::{AllocRequest, Outcome, SpaceKind};

use crate::Engine;

/// Bytes of the first run of a commit; the next ones are as long as all before.
const RUN_BYTES_MIN: u64 = 1 << 20;

/// What goes to a device in one request.
const RUN_BYTES_MAX: u64 = 4 << 20;

/// Groups that are read for the sake of longer runs, before shorter ones will do.
const LOADED_MAX: u32 = 1;

/// Where the next nodes of a commit lie.
pub(super) struct Cluster<'e> {
    engine: &'e Engine,
    kind: SpaceKind,
    limit: Generation,
    /// What is left of the run.
    left: Option<Extent>,
    /// No longer runs are looked for.
    most: u64,
    /// Bytes that were taken.
    taken: u64,
    loaded: u32,
}

impl<'e> Cluster<'e> {
    pub(super) fn new(engine: &'e Engine, kind: SpaceKind, limit: Generation) -> Self {
        Self { engine, kind, limit, left: None, most: u64::MAX, taken: 0, loaded: 0 }
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

    /// The next place for a node; nothing when no group has any.
    pub(super) fn take(&mut self, size: u64) -> Option<Logical> {
        let want = if self.kind != SpaceKind::Metadata || self.engine.space.is_mixed() {
            size
        } else {
            let want = self.taken.clamp(RUN_BYTES_MIN, RUN_BYTES_MAX).min(self.most);
            (want / size * size).max(size)
        };
        while self.left.is_none() {
            match self.engine.space.allocate(self.request(want, size)) {
                Outcome::Got(run) => {
                    if run.len < want {
                        // The longest there was. Behind it are others nearly as long, and their
                        // items are near its.
                        self.most = run.len / 2;
                    }
                    self.engine.reservations.take_frozen(run.len);
                    self.left = Some(run);
                }
                Outcome::NeedsLoading(group) => {
                    self.loaded += 1;
                    self.engine.load_or_leave(&group);
                }
                Outcome::Full { .. } => return None,
            }
        }
        let run = self.left.take()?;
        let node = Extent::new(run.start, size);
        if run.len > size {
            self.left = Some(Extent::new(node.end(), run.len - size));
        }
        self.engine.space.commit_used(node);
        self.taken += size;
        Some(node.start)
    }

    /// Bytes that were taken for nodes, whatever became of them.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Gives back what is left (K1).
    pub(super) fn close(&mut self) {
        let Some(left) = self.left.take() else { return };
        // In this order, and the other way round where it was taken: a thread that looks at both
        // misses nothing.
        self.engine.reservations.return_frozen(left.len);
        self.engine.space.free(left);
        let request = self.request(RUN_BYTES_MIN, RUN_BYTES_MIN);
        self.engine.space.note_goal(&request, Extent::new(left.start, 0));
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

    /// More than is taken.
    const NEED: u64 = 64 << 20;

    /// P1: whenever a reservation looks, what a commit takes in runs is in the account, or is what
    /// it may still take. The same holds for what it gives back. Seeds decide the orders.
    #[test]
    fn account_sees_runs_that_a_commit_takes() {
        let work = |seed| {
            let engine = engine(512);
            let node = u64::from(engine.store.geometry().nodesize);
            engine.reservations.set_frozen_need(NEED);
            let sum = |(account, frozen): (buttress_space::Account, u64)| {
                account.used + account.reserved + frozen
            };
            let before = sum(engine.reservations.account_and_frozen());
            let done = AtomicBool::new(false);
            let (mut least, mut looks) = (u64::MAX, 0);
            thread::scope(|scope| {
                let (engine, done) = (&engine, &done);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    for _ in 0..6 {
                        let mut cluster =
                            Cluster::new(engine, SpaceKind::Metadata, Generation(u64::MAX));
                        for _ in 0..rng.below(100) {
                            cluster.take(node).expect("there is room");
                        }
                    }
                    done.store(true, Ordering::Release);
                });
                while !done.load(Ordering::Acquire) {
                    least = least.min(sum(engine.reservations.account_and_frozen()));
                    looks += 1;
                    thread::yield_now();
                }
            });
            assert_eq!(sum(engine.reservations.account_and_frozen()), before, "seed {seed}");
            assert!(least >= before, "seed {seed}: {} bytes were in neither", before - least);
            looks
        };
        let run = |seed| seeded::run(seed, seeded::Options::default(), move || work(seed));
        let looks: u32 = (0..40).map(|seed| run(seed).expect("no thread waits for ever").0).sum();
        assert!(looks > 400, "{looks}");
    }
}
