//! Counts of writers in place, so that a drain of a group knows when the last writer has left.
//!
//! # Place
//!
//! A writer enters with a lookup of the group and leaves without one, because its guard remembers
//! the counter. With one count in the group, all processors would write this count. So there is one
//! counter for each shard of threads, each phase (W2) and each bucket of groups. Only a drain reads
//! all these counters. The guards of different shards also share no reference count, because each
//! shard has its own handle to the counters.
//!
//! # Invariants
//!
//! - **W1** If a group is marked read-only before its drain begins, the drain waits for every
//!   writer that found the group not read-only. A writer first counts and then reads the mark. The
//!   mark is set before the drain reads the counts. All four steps have one order (SeqCst), so the
//!   writer sees the mark or the drain sees the count.
//! - **W2** A drain ends even if writers keep entering. It switches the phase, so that new writers
//!   use another count, and waits only for the old count. The drain switches the phase twice,
//!   because some writers may have read the phase before an earlier switch.
//! - **W3** A guard decrements the counter that it incremented, whichever thread drops it.
//!
//! # Locks
//!
//! Entering takes no lock. Leaving takes `quiet` only while a drain waits.
//!
//! The primitives come from the module `sync` beside this file. A model checker compiles the same
//! code with its own threads and atomics.

use super::sync::{Arc, AtomicUsize, BUCKETS, Condvar, Mutex, Ordering::SeqCst, SHARDS, shard};

/// A counter on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count {
    phases: [AtomicUsize; 2],
}

#[derive(Debug, Default)]
struct Bucket {
    phase: AtomicUsize,
    counts: [Count; SHARDS],
    /// How many drains wait for the counts to become zero.
    waiting: AtomicUsize,
    /// Drains of one bucket run one after the other. Unranked: this lock is held while a drain
    /// waits.
    turn: Mutex<()>,
    /// Unranked: no lock is taken under this lock, and a model checker replaces this lock by its
    /// own.
    quiet: Mutex<()>,
    left: Condvar,
}

type Buckets = [Bucket; BUCKETS];

/// The handle through which the guards of one shard hold the counters. Its reference count has its
/// own cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Handle(Arc<Buckets>);

/// All counters of a volume.
#[derive(Debug)]
pub(crate) struct Writers {
    handles: [Arc<Handle>; SHARDS],
}

impl Default for Writers {
    fn default() -> Self {
        let buckets = Arc::<Buckets>::default();
        Self { handles: std::array::from_fn(|_| Arc::new(Handle(Arc::clone(&buckets)))) }
    }
}

/// A writer that is counted while this lives.
#[derive(Debug)]
pub(crate) struct CountedWriter {
    handle: Arc<Handle>,
    bucket: usize,
    shard: usize,
    phase: usize,
}

impl Writers {
    /// Counts a writer. The caller must check whether the group is read-only after this call, not
    /// before (W1).
    pub(crate) fn enter(&self, group: usize) -> CountedWriter {
        let (bucket, shard) = (group % BUCKETS, shard());
        let handle = Arc::clone(&self.handles[shard]);
        let counters = &handle.0[bucket];
        let phase = counters.phase.load(SeqCst) & 1;
        counters.counts[shard].phases[phase].fetch_add(1, SeqCst);
        CountedWriter { handle, bucket, shard, phase }
    }

    /// Waits for the writers that entered `group`, or another group of its bucket, before this
    /// call.
    pub(crate) fn drain(&self, group: usize) {
        let bucket = &self.handles[0].0[group % BUCKETS];
        let _turn = bucket.turn.lock();
        for _ in 0..2 {
            let old = bucket.phase.fetch_add(1, SeqCst) & 1;
            bucket.waiting.fetch_add(1, SeqCst);
            let mut quiet = bucket.quiet.lock();
            for count in &bucket.counts {
                while count.phases[old].load(SeqCst) != 0 {
                    bucket.left.wait(&mut quiet);
                }
            }
            drop(quiet);
            bucket.waiting.fetch_sub(1, SeqCst);
        }
    }
}

impl Drop for CountedWriter {
    fn drop(&mut self) {
        let bucket = &self.handle.0[self.bucket];
        let was = bucket.counts[self.shard].phases[self.phase].fetch_sub(1, SeqCst);
        debug_assert!(was > 0, "W3: left where no writer had entered");
        // A drain first counts itself in `waiting` and then reads the counts. So the drain sees the
        // decrement, or this code sees the drain.
        if was == 1 && bucket.waiting.load(SeqCst) > 0 {
            drop(bucket.quiet.lock());
            bucket.left.notify_all();
        }
    }
}
