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

/// How often a line was used since it came, or since the last round of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineHeat {
    /// Not yet: it was read ahead of a reader that will soon ask for it.
    Awaited,
    Once,
    Again,
}

#[derive(Debug, Default)]
struct Shard {
    lines: HashMap<Key, (Arc<[u8]>, LineHeat)>,
    /// Keys in the order of eviction by the clock algorithm. A line stays for a second round if it
    /// is awaited, or was used more than once. So a reader of a long file evicts the lines behind
    /// it, and not those ahead of it.
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
        *used = if *used == LineHeat::Awaited { LineHeat::Once } else { LineHeat::Again };
        Some(Arc::clone(line))
    }

    /// Whether the cache has a line. This question does not count as a use of the line.
    pub(crate) fn has(&self, key: Key) -> bool {
        self.shard(key).lock().lines.contains_key(&key)
    }

    /// Adds a line, and evicts others if the cache is full.
    pub(crate) fn put(&self, key: Key, line: Arc<[u8]>, used: LineHeat) {
        let mut shard = self.shard(key).lock();
        let shard = &mut *shard;
        let len = line.len();
        match shard.lines.insert(key, (line, used)) {
            Some((old, _)) => shard.bytes = shard.bytes + len - old.len(),
            None => {
                shard.bytes += len;
                shard.face.push_back(key);
            }
        }
        while shard.bytes > self.budget {
            let Some(oldest) = shard.face.pop_front() else { break };
            let used = match shard.lines.get_mut(&oldest) {
                Some((_, used)) => std::mem::replace(used, LineHeat::Once),
                None => continue,
            };
            if used != LineHeat::Once {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache of lines of one shard, in the order of their numbers.
    fn keys(lines: &Lines, count: usize) -> Vec<Key> {
        let all = (0..).map(|line| (ObjectNumber(1), line));
        let first = std::ptr::from_ref(&lines.shards[0]);
        all.filter(|key| std::ptr::eq(lines.shard(*key), first)).take(count).collect()
    }

    /// The lines behind a sequential reader are evicted before those ahead of it. A line that is
    /// used again and again stays.
    #[test]
    fn lines_ahead_of_a_reader_stay() {
        const WINDOW: usize = 4;
        let lines = Lines::new((SHARDS * 3 * WINDOW * LINE_BYTES) as u64);
        let line: Arc<[u8]> = vec![0; LINE_BYTES].into();
        let keys = keys(&lines, 40 * WINDOW);
        let often = keys[0];
        lines.put(often, Arc::clone(&line), LineHeat::Once);
        for (at, key) in keys.iter().enumerate().skip(1) {
            lines.put(*key, Arc::clone(&line), LineHeat::Awaited);
            assert!(lines.get(often).is_some(), "evicted at {at}");
            if at > WINDOW {
                assert!(lines.get(keys[at - WINDOW]).is_some(), "evicted before its use at {at}");
            }
        }
        assert!(lines.bytes() <= (3 * WINDOW * LINE_BYTES) as u64);
    }
}
