//! Changes to the reference counts of data extents, summed until the commit (T5).
//!
//! # Invariants
//!
//! - **D1** Operations never touch the extent tree: they add here, in the transaction that they are
//!   part of (T11).
//! - **D2** An extent born in this transaction whose references come to nothing leaves no trace.
//!
//! # Locks
//!
//! One short lock a shard.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use buttress_format::{Extent, Ino, Logical, TreeId};
use parking_lot::Mutex;

/// Who uses a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataRef {
    /// The subvolume.
    pub root: TreeId,
    /// The file.
    pub ino: Ino,
    /// File offset of the extent's first byte: key offset of the file extent less its offset within
    /// the extent, wrapping.
    pub offset: u64,
}

/// What a transaction does to one extent.
#[derive(Clone, Debug)]
pub(crate) struct ExtentChange {
    pub(crate) extent: Extent,
    /// Allocated in this transaction: there is no extent item yet.
    pub(crate) born: bool,
    pub(crate) deltas: Vec<(DataRef, i64)>,
}

const SHARDS: usize = 16;

/// The changes of one transaction.
#[derive(Debug)]
pub(crate) struct DelayedRefs {
    shards: Vec<Mutex<HashMap<Logical, ExtentChange>>>,
    len: AtomicU64,
}

impl Default for DelayedRefs {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), len: AtomicU64::new(0) }
    }
}

impl DelayedRefs {
    fn shard(&self, at: Logical) -> &Mutex<HashMap<Logical, ExtentChange>> {
        let hash = (at.0 >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(hash >> 60) as usize % SHARDS]
    }

    /// Adds to the count of one user. True when the extent vanished: born here, used by nobody.
    pub(crate) fn change(&self, extent: Extent, who: DataRef, delta: i64, born: bool) -> bool {
        let mut shard = self.shard(extent.start).lock();
        let entry = shard.entry(extent.start).or_insert_with(|| {
            self.len.fetch_add(1, Ordering::Relaxed);
            ExtentChange { extent, born, deltas: Vec::new() }
        });
        assert_eq!(entry.extent.len, extent.len, "one extent at {} has one length", extent.start);
        match entry.deltas.iter_mut().find(|(r, _)| *r == who) {
            Some((_, n)) => *n += delta,
            None => entry.deltas.push((who, delta)),
        }
        entry.deltas.retain(|(_, n)| *n != 0);
        let vanished = entry.born && entry.deltas.is_empty();
        if entry.deltas.is_empty() {
            shard.remove(&extent.start);
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
        vanished
    }

    /// What this transaction does to an extent.
    pub(crate) fn find(&self, at: Logical) -> Option<ExtentChange> {
        self.shard(at).lock().get(&at).cloned()
    }

    /// Every change, by address.
    pub(crate) fn sorted(&self) -> Vec<ExtentChange> {
        let mut all: Vec<_> = self
            .shards
            .iter()
            .flat_map(|s| s.lock().values().cloned().collect::<Vec<_>>())
            .collect();
        all.sort_unstable_by_key(|c| c.extent.start);
        all
    }

    /// Number of extents changed.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
