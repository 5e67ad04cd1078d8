//! A cache in memory for data that was read from objects.
//!
//! # Invariants
//!
//! - **R1** No line in the cache can become wrong: objects never change, and no name is used twice.
//! - **R2** The cache uses at most its budget, and one more line for each thread that adds a line.
//!
//! # Locks
//!
//! Takes [`Rank::Leaf`], one shard at a time.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::{Rank, Ranked};

use crate::units::{ObjectNumber, SECTOR};

/// Frames of a line.
pub(crate) const LINE: u32 = 16;
const SHARDS: usize = 16;

/// A key: the number of an object, and the number of a line in it.
pub(crate) type Key = (ObjectNumber, u32);

#[derive(Debug, Default)]
struct Shard {
    lines: HashMap<Key, (Arc<[u8]>, bool)>,
    /// Keys in the order of eviction by the clock algorithm. A line that was used stays for a
    /// second round.
    face: VecDeque<Key>,
    bytes: usize,
}

/// Lines of objects: content with verified checksums. The checksums themselves are left out.
#[derive(Debug)]
pub(crate) struct Lines {
    shards: [Ranked<Shard>; SHARDS],
    budget: usize,
    /// Lines that a reader found, and lines that it had to read from the local disk or an object.
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Lines {
    pub(crate) fn new(budget: u64) -> Self {
        let shards = std::array::from_fn(|_| Ranked::new(Rank::Leaf, Shard::default()));
        let (hits, misses) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { shards, budget: budget as usize / SHARDS, hits, misses }
    }

    fn shard(&self, key: Key) -> &Ranked<Shard> {
        let mixed = (key.0.0 ^ (u64::from(key.1) << 20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 60) as usize]
    }

    /// Looks a line up for a reader, and counts whether the cache has it.
    pub(crate) fn look_up(&self, key: Key) -> Option<Arc<[u8]>> {
        let found = self.get(key);
        let count = if found.is_some() { &self.hits } else { &self.misses };
        count.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// The lookups of readers that found a line, and those that did not.
    pub(crate) fn lookups(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }

    pub(crate) fn get(&self, key: Key) -> Option<Arc<[u8]>> {
        let mut shard = self.shard(key).lock();
        let (line, used) = shard.lines.get_mut(&key)?;
        *used = true;
        Some(Arc::clone(line))
    }

    /// Whether the cache has a line. This question does not count as a use of the line.
    pub(crate) fn has(&self, key: Key) -> bool {
        self.shard(key).lock().lines.contains_key(&key)
    }

    pub(crate) fn put(&self, key: Key, line: Arc<[u8]>) {
        let mut shard = self.shard(key).lock();
        let shard = &mut *shard;
        let len = line.len();
        match shard.lines.insert(key, (line, false)) {
            Some((old, _)) => shard.bytes = shard.bytes + len - old.len(),
            None => {
                shard.bytes += len;
                shard.face.push_back(key);
            }
        }
        while shard.bytes > self.budget {
            let Some(oldest) = shard.face.pop_front() else { break };
            let is_used = match shard.lines.get_mut(&oldest) {
                Some((_, used)) => std::mem::take(used),
                None => continue,
            };
            if is_used {
                shard.face.push_back(oldest);
            } else if let Some((line, _)) = shard.lines.remove(&oldest) {
                shard.bytes -= line.len();
            }
        }
    }

    /// Returns the memory that the cache uses, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().bytes as u64).sum()
    }
}

/// Bytes of a whole line.
pub(crate) const LINE_BYTES: usize = LINE as usize * SECTOR as usize;
