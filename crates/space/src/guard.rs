//! Counts of writers in place, so that a drain of a group knows when the last one has left.
//!
//! # Place
//!
//! A writer enters with the lookup of the group and leaves without one: its guard remembers the
//! counter. A count in the group itself would be written by all processors. So there is one counter
//! for each shard of threads, phase and bucket of groups, and only a drain looks at all of them.
//! Guards do not share the reference count of the counters either: each shard has its own handle.
//!
//! # Invariants
//!
//! - **W1** A drain that begins after its group was marked read-only waits for every writer that
//!   found the group not read-only. A writer counts first and looks at the mark then; the mark is
//!   set first and the drain looks at the counts then. All four are in one order (SeqCst), so one
//!   of the two sees the other.
//! - **W2** A drain ends, even if writers keep entering. It turns the phase, so that new ones count
//!   elsewhere, and waits for the old count alone. It does so twice, because some may have entered
//!   before an earlier turn.
//! - **W3** A guard leaves exactly where it entered, whichever thread drops it.
//!
//! # Locks
//!
//! Entering takes none. Leaving takes `quiet` only while a drain waits.
//!
//! The primitives come from the module `sync` beside it, so that a model checker runs the same text
//! with its own threads and atomics.

use super::sync::{Arc, AtomicUsize, BUCKETS, Condvar, Mutex, Ordering::SeqCst, SHARDS, shard};

/// Alone on its cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count {
    phases: [AtomicUsize; 2],
}

#[derive(Debug, Default)]
struct Bucket {
    phase: AtomicUsize,
    counts: [Count; SHARDS],
    /// How many drains wait for it to be empty.
    waiting: AtomicUsize,
    /// Drains of one bucket take turns. Unranked: held while a drain waits.
    turn: Mutex<()>,
    /// Unranked: nothing is taken under it, and a model checker brings its own.
    quiet: Mutex<()>,
    left: Condvar,
}

type Buckets = [Bucket; BUCKETS];

/// The counters as the guards of one shard hold them. Its reference count has its own cache lines.
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
pub(crate) struct Counted {
    handle: Arc<Handle>,
    bucket: usize,
    shard: usize,
    phase: usize,
}

impl Writers {
    /// Counts a writer in. The caller must look whether the group is read-only after this, not
    /// before (W1).
    pub(crate) fn enter(&self, group: usize) -> Counted {
        let (bucket, shard) = (group % BUCKETS, shard());
        let handle = Arc::clone(&self.handles[shard]);
        let counters = &handle.0[bucket];
        let phase = counters.phase.load(SeqCst) & 1;
        counters.counts[shard].phases[phase].fetch_add(1, SeqCst);
        Counted { handle, bucket, shard, phase }
    }

    /// Waits until every writer has left that entered `group`, or a group of its bucket, before
    /// this call.
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

impl Drop for Counted {
    fn drop(&mut self) {
        let bucket = &self.handle.0[self.bucket];
        let was = bucket.counts[self.shard].phases[self.phase].fetch_sub(1, SeqCst);
        debug_assert!(was > 0, "W3: left where no writer had entered");
        // A drain announces itself before it looks at the count: it sees the count fall, or this
        // sees the drain.
        if was == 1 && bucket.waiting.load(SeqCst) > 0 {
            drop(bucket.quiet.lock());
            bucket.left.notify_all();
        }
    }
}
