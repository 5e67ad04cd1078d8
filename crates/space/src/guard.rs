//! Who writes into a group in place, so that whoever stops that knows when the last one is gone.
//!
//! # Place
//!
//! A writer enters with the lookup of the group and leaves without one: his guard remembers where he was
//! counted. Nobody counts in a group, which all processors would write to: counters are one for each stripe of
//! threads, phase and a few groups together, and only who waits looks at all of them. Nor do guards share the count of those
//! who hold on to the counters: each stripe has a handle of its own.
//!
//! # Invariants
//!
//! - **W1** Whoever entered and found the group not read-only is waited for by every drain that begins after the
//!   group was made read-only. Entering counts first and looks then; the drain's group was marked first and is
//!   looked for then; all four are in one order (SeqCst), so one of the two sees the other.
//! - **W2** A drain ends, whoever else enters meanwhile: it turns the phase, so that new ones count elsewhere, and
//!   waits for the old count alone. It does so twice, because some may have entered before an earlier turn.
//! - **W3** A guard leaves exactly where it entered, on whatever thread it is dropped.
//!
//! # Locks
//!
//! Entering takes none. Drains of one bucket take turns, under a lock that has no rank, since it is held while
//! waiting; leaving takes `quiet` only when somebody drains.
//!
//! What this rests on comes from the module `sync` beside it, so that a model checker runs the same text with
//! its own threads and atomics.

use super::sync::{Arc, AtomicUsize, BUCKETS, Condvar, Mutex, Ordering::SeqCst, STRIPES, stripe};

/// Alone on its cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count {
    phases: [AtomicUsize; 2],
}

#[derive(Debug, Default)]
struct Bucket {
    phase: AtomicUsize,
    counts: [Count; STRIPES],
    /// How many wait for it to be empty.
    waiting: AtomicUsize,
    turn: Mutex<()>,
    quiet: Mutex<()>,
    left: Condvar,
}

type Buckets = [Bucket; BUCKETS];

/// The counters, as guards of one stripe hold on to them; the count of these has lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Handle(Arc<Buckets>);

/// All counters of a volume.
#[derive(Debug)]
pub(crate) struct Writers {
    handles: [Arc<Handle>; STRIPES],
}

impl Default for Writers {
    fn default() -> Self {
        let buckets = Arc::<Buckets>::default();
        Self { handles: std::array::from_fn(|_| Arc::new(Handle(Arc::clone(&buckets)))) }
    }
}

/// Somebody is counted while this lives.
#[derive(Debug)]
pub(crate) struct Counted {
    handle: Arc<Handle>,
    bucket: usize,
    stripe: usize,
    phase: usize,
}

impl Writers {
    /// Counts somebody in; he must look whether the group is read-only afterwards, not before (W1).
    pub(crate) fn enter(&self, group: usize) -> Counted {
        let (bucket, stripe) = (group % BUCKETS, stripe());
        let handle = Arc::clone(&self.handles[stripe]);
        let counters = &handle.0[bucket];
        let phase = counters.phase.load(SeqCst) & 1;
        counters.counts[stripe].phases[phase].fetch_add(1, SeqCst);
        Counted { handle, bucket, stripe, phase }
    }

    /// Waits until everybody is gone who entered `group`, or one of its bucket, before this was called.
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
        let was = bucket.counts[self.stripe].phases[self.phase].fetch_sub(1, SeqCst);
        debug_assert!(was > 0, "W3: left where nobody had entered");
        // Who waits said so before he looked at the count: either he saw it fall, or this sees him.
        if was == 1 && bucket.waiting.load(SeqCst) > 0 {
            drop(bucket.quiet.lock());
            bucket.left.notify_all();
        }
    }
}
