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
    runs: Ranked<Runs>,
    /// The maximum readahead of a sequential reader, in lines.
    ahead_max: u32,
}

/// The last read of an object.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The line after the last line that was read, or read ahead.
    end: u32,
    /// The number of lines that were read ahead.
    ahead: u32,
    /// Whether the end of the object was reached.
    is_at_end: bool,
    /// The value of [`Runs::count`] at this read.
    at: u64,
}

#[derive(Debug, Default)]
struct Runs {
    of: HashMap<ObjectNumber, Run>,
    /// The number of reads that were recorded, of all objects.
    count: u64,
}

/// A run goes on in the next object only if at most this many other reads came between. After an
/// older run, a read of the next object is probably of another reader.
const RUN_AGE: u64 = 64;

/// The maximum readahead with much memory: a whole object of 8 MiB. Lines that are read ahead must
/// stay until they are used, so they are at most an eighth of the memory.
const AHEAD_MAX: u64 = 128;
const AHEAD_PART: u64 = 8;
const AHEAD_MIN: u32 = 4;
const RUNS_MAX: usize = 4096;

impl Lines {
    pub(crate) fn new(budget: u64) -> Self {
        let shards = std::array::from_fn(|_| Ranked::new(Rank::Leaf, Shard::default()));
        let runs = Ranked::new(Rank::Leaf, Runs::default());
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

    /// Records a read that lacks lines, of an object with `len` lines. Returns how many further
    /// lines to read at the same time. The number grows with each sequential read. A read at the
    /// start of an object goes on with the run that has just reached the end of the preceding
    /// object: sequential writes fill one object after the other.
    pub(crate) fn ahead(&self, object: ObjectNumber, first: u32, end: u32, len: u32) -> u32 {
        let mut runs = self.runs.lock();
        let Runs { of, count } = &mut *runs;
        if of.len() > RUNS_MAX {
            of.clear();
        }
        *count += 1;
        let before = ObjectNumber(object.0.wrapping_sub(1));
        let is_next = |run: &&Run| run.is_at_end && *count - run.at <= RUN_AGE;
        let ahead = match of.get(&object) {
            // The read may begin in lines that were read ahead.
            Some(run) if run.end == first + 1 || (first..=end).contains(&run.end) => {
                (run.ahead * 2).clamp(AHEAD_MIN, self.ahead_max)
            }
            _ if first == 0 => of.get(&before).filter(is_next).map_or(0, |run| run.ahead),
            _ => 0,
        };
        let to = end + ahead;
        of.insert(object, Run { end: to, ahead, is_at_end: to >= len, at: *count });
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
                let ahead = lines.ahead(ObjectNumber(object), first, first + 16, OBJECT);
                there = (first + 16 + ahead).min(OBJECT);
                waits += 1;
            }
        }
        assert!(waits < 16 + 8, "{waits} waits for 16 objects");
        for first in [70, 3, 90, 40, 7] {
            assert_eq!(lines.ahead(ObjectNumber(99), first, first + 1, OBJECT), 0);
        }
        let small = Lines::new(8 << 20);
        for read in 0..40 {
            assert!(small.ahead(ObjectNumber(1), read * 2, read * 2 + 2, OBJECT) <= 16);
        }
    }

    /// A run goes on in the next object only if it has reached the end of its own object not long
    /// ago.
    #[test]
    fn an_old_run_does_not_go_on() {
        let begun = |to: u32| {
            let lines = Lines::new(128 << 20);
            for read in 0..to {
                lines.ahead(ObjectNumber(1), read, read + 1, 128);
            }
            lines
        };
        assert!(begun(128).ahead(ObjectNumber(2), 0, 1, 128) > 0, "it goes on at once");
        let short = begun(8);
        assert_eq!(short.ahead(ObjectNumber(2), 0, 1, 128), 0, "it did not reach the end");
        let old = begun(128);
        for other in 0..=RUN_AGE {
            old.ahead(ObjectNumber(1000 + other * 2), 5, 6, 128);
        }
        assert_eq!(old.ahead(ObjectNumber(2), 0, 1, 128), 0, "it is old");
    }
}
