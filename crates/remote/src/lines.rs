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
    /// Keys in the order of eviction by the clock algorithm. A line that was used gets a second
    /// round.
    face: VecDeque<Key>,
    bytes: usize,
}

/// Lines of objects: content with verified checksums. The checksums themselves are left out.
#[derive(Debug)]
pub(crate) struct Lines {
    shards: [Ranked<Shard>; SHARDS],
    budget: usize,
    /// For each object, the end of its last read with its readahead, and the length of that
    /// readahead.
    runs: Ranked<HashMap<ObjectNumber, (u32, u32)>>,
    /// The maximum readahead of a sequential reader, in lines.
    ahead_max: u32,
}

/// The maximum readahead with much memory: a whole object of 8 MiB. Lines that were read ahead must
/// stay until they are used, so they are at most an eighth of the memory.
const AHEAD_MAX: u64 = 128;
const AHEAD_PART: u64 = 8;
const AHEAD_MIN: u32 = 4;
const RUNS_MAX: usize = 4096;

impl Lines {
    pub(crate) fn new(budget: u64) -> Self {
        let shards = std::array::from_fn(|_| Ranked::new(Rank::Leaf, Shard::default()));
        let runs = Ranked::new(Rank::Leaf, HashMap::new());
        let most = (budget / AHEAD_PART / LINE_BYTES as u64).min(AHEAD_MAX);
        let ahead_max = (most as u32).max(AHEAD_MIN);
        Self { shards, budget: budget as usize / SHARDS, runs, ahead_max }
    }

    fn shard(&self, key: Key) -> &Ranked<Shard> {
        let mixed = (key.0.0 ^ (u64::from(key.1) << 20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 60) as usize]
    }

    pub(crate) fn get(&self, key: Key) -> Option<Arc<[u8]>> {
        let mut shard = self.shard(key).lock();
        let (line, used) = shard.lines.get_mut(&key)?;
        *used = true;
        Some(Arc::clone(line))
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

    /// Records a read that lacks lines, and returns how many further lines to read with it. The
    /// number grows with each sequential read. A read at the start of an object continues the run
    /// of the preceding object, since sequential writes fill one object after the other.
    pub(crate) fn ahead(&self, object: ObjectNumber, first: u32, end: u32) -> u32 {
        let mut runs = self.runs.lock();
        if runs.len() > RUNS_MAX {
            runs.clear();
        }
        let before = ObjectNumber(object.0.wrapping_sub(1));
        let ahead = match runs.get(&object) {
            // The read may begin in lines that were read ahead.
            Some(&(last, ahead)) if last == first + 1 || (first..=end).contains(&last) => {
                (ahead * 2).clamp(AHEAD_MIN, self.ahead_max)
            }
            _ if first == 0 => runs.get(&before).map_or(0, |&(_, ahead)| ahead),
            _ => 0,
        };
        runs.insert(object, (end + ahead, ahead));
        ahead
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

    /// A sequential reader waits for few requests. This holds across the ends of objects, and if a
    /// read begins in lines that were read ahead. A random reader reads nothing ahead.
    #[test]
    fn a_sequential_reader_waits_seldom() {
        let lines = Lines::new(128 << 20);
        let (mut waits, mut there) = (0, 0);
        const OBJECT: u32 = 128;
        for read in 0..16 * OBJECT / 16 {
            let (object, first) = (u64::from(read * 16 / OBJECT), read * 16 % OBJECT);
            there = if first == 0 { 0 } else { there };
            if there < first + 16 {
                let ahead = lines.ahead(ObjectNumber(object), first, first + 16);
                there = (first + 16 + ahead).min(OBJECT);
                waits += 1;
            }
        }
        assert!(waits < 16 + 8, "{waits} waits for 16 objects");
        for first in [70, 3, 90, 40, 7] {
            assert_eq!(lines.ahead(ObjectNumber(99), first, first + 1), 0);
        }
        let small = Lines::new(8 << 20);
        for read in 0..40 {
            assert!(small.ahead(ObjectNumber(1), read * 2, read * 2 + 2) <= 16);
        }
    }
}
