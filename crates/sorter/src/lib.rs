//! Sorts more records than memory can hold: full buffers become sorted runs in temporary files, and
//! one merge reads all runs. A [`spool`] keeps the items that a pass over sorted records makes.
//!
//! # Invariants
//!
//! - **E1** All records in memory never take more bytes than the sorter may use, or than the
//!   smallest buffers need. This counts the buffers of all writers, the records of writers that
//!   have finished, and, during a merge, one block of each run on disk.
//! - **E2** The merge returns all added records in ascending order. The result does not depend on
//!   the number of threads or on when their buffers were spilled.
//!
//! # Memory
//!
//! An eighth of the bytes is for the blocks of a merge. The rest is for records: a writer borrows a
//! share of it for its buffer. The records of finished writers stay in memory, unless less than
//! half of a share would be left for the next writer. A buffer grows by new parts, so that no
//! record is copied. Each part is sorted when it is full.
//!
//! # Failure
//!
//! If a temporary file cannot be written, the caller has an error and must give up: with only some
//! of the records, its result would be wrong. The files have no names, so no file remains after the
//! program.
//!
//! # Why it is written here
//!
//! Published crates for external sorting serialise each record and limit the number of records.
//! Here, records are plain words, and many threads fill one sorter. The limit counts the bytes of
//! all their records (E1).

mod merge;
pub mod spool;

use std::io;
use std::os::unix::fs::FileExt;

use buttress_base::sync::Mutex;
use buttress_base::{Rank, Ranked};

use merge::Run;
pub use merge::{Merge, Record};

/// The most and the fewest bytes of one read from a run.
const BLOCK_BYTES: std::ops::RangeInclusive<usize> = 4 << 10..=256 << 10;
/// The number of runs on disk at which these runs are merged into one run, so that the last merge
/// stays small.
const RUNS_MAX: usize = 256;
/// The smallest buffer of a writer, in records, even if the limit is lower. With a few records for
/// each run, sorting would take far too long.
const BUFFER_MIN: usize = 4096;

/// Collects records from many threads.
#[derive(Debug)]
pub struct Sorter<const N: usize> {
    /// Records that fit into memory.
    most: usize,
    writers: usize,
    /// Records in a block of a run on disk.
    block: usize,
    state: Ranked<State<N>>,
    /// Held while a writer borrows its share, and while runs go to disk for that. Unranked: only
    /// `state` is locked under it.
    borrowing: Mutex<()>,
}

#[derive(Debug)]
struct State<const N: usize> {
    runs: Vec<Run<N>>,
    /// The size of the runs in memory, in records.
    kept: usize,
    /// Records that writers may hold, and the number of these writers.
    lent: usize,
    borrowers: usize,
}

/// The buffer of one thread. Call [`Writer::finish`]: records in a dropped writer are lost.
#[derive(Debug)]
pub struct Writer<'s, const N: usize> {
    sorter: &'s Sorter<N>,
    /// Parts of the buffer. Those before `filled` are full and sorted, and those after it are
    /// empty.
    parts: Vec<Vec<Record<N>>>,
    filled: usize,
    /// Records that all parts together may hold. Zero before the first record.
    share: usize,
}

impl<const N: usize> Sorter<N> {
    /// Creates a sorter for at most `writers` writers at a time, which together hold `bytes`.
    pub fn new(bytes: u64, writers: usize) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let block = (bytes / 8 / RUNS_MAX).clamp(*BLOCK_BYTES.start(), *BLOCK_BYTES.end());
        Self {
            most: (bytes - bytes / 8) / size_of::<Record<N>>(),
            writers: writers.max(1),
            block: (block / size_of::<Record<N>>()).max(1),
            state: Ranked::new(
                Rank::Leaf,
                State { runs: Vec::new(), kept: 0, lent: 0, borrowers: 0 },
            ),
            borrowing: Mutex::new(()),
        }
    }

    /// Returns a writer for one thread.
    pub fn writer(&self) -> Writer<'_, N> {
        Writer { sorter: self, parts: Vec::new(), filled: 0, share: 0 }
    }

    /// Lends a writer its share (E1), in records.
    fn lend(&self) -> io::Result<usize> {
        let _alone = self.borrowing.lock();
        let is_tight = {
            let state = self.state.lock();
            state.kept > 0 && self.share(&state) < self.most / self.writers / 2
        };
        if is_tight {
            let (runs, freed) = {
                let mut state = self.state.lock();
                let all = std::mem::take(&mut state.runs);
                let (on_disk, runs) = all.into_iter().partition(Run::is_on_disk);
                state.runs = on_disk;
                (runs, state.kept)
            };
            self.keep_on_disk(&mut Merge::new(runs, self.block)?)?;
            self.state.lock().kept -= freed;
        }
        let mut state = self.state.lock();
        let share = self.share(&state).max(BUFFER_MIN);
        state.lent += share;
        state.borrowers += 1;
        Ok(share)
    }

    /// The share of the next writer: an equal part of what is left for it and the writers after it.
    fn share(&self, state: &State<N>) -> usize {
        let left = self.most.saturating_sub(state.kept + state.lent);
        left / self.writers.saturating_sub(state.borrowers).max(1)
    }

    /// Writes a run to disk. Merges all runs there if they are too many.
    fn keep_on_disk(&self, records: &mut Merge<N>) -> io::Result<()> {
        let run = self.write_run(records)?;
        let full = {
            let mut state = self.state.lock();
            state.runs.push(run);
            let on_disk = state.runs.iter().filter(|run| run.is_on_disk()).count();
            (on_disk >= RUNS_MAX).then(|| {
                let all = std::mem::take(&mut state.runs);
                let (full, rest) = all.into_iter().partition(Run::is_on_disk);
                state.runs = rest;
                full
            })
        };
        let Some(full) = full else { return Ok(()) };
        let run = self.write_run(&mut Merge::new(full, self.block)?)?;
        self.state.lock().runs.push(run);
        Ok(())
    }

    fn write_run(&self, records: &mut Merge<N>) -> io::Result<Run<N>> {
        let file = tempfile::tempfile()?;
        let block = self.block * size_of::<Record<N>>();
        let (mut len, mut at, mut bytes) = (0, 0, Vec::with_capacity(block));
        while let Some(record) = records.next_record()? {
            bytes.extend(record.iter().flat_map(|word| word.to_le_bytes()));
            len += 1;
            if bytes.len() >= block {
                file.write_all_at(&bytes, at)?;
                at += bytes.len() as u64;
                bytes.clear();
            }
        }
        file.write_all_at(&bytes, at)?;
        Ok(Run::Disk { file, len })
    }

    /// Returns all records, in order.
    ///
    /// # Errors
    ///
    /// When a temporary file cannot be read.
    pub fn merge(self) -> io::Result<Merge<N>> {
        Merge::new(self.state.into_inner().runs, self.block)
    }
}

impl<const N: usize> Writer<'_, N> {
    /// Adds a record.
    ///
    /// # Errors
    ///
    /// When a temporary file cannot be written.
    pub fn put(&mut self, record: Record<N>) -> io::Result<()> {
        if self.parts.get(self.filled).is_none_or(|part| part.len() == part.capacity()) {
            self.next_part()?;
        }
        self.parts[self.filled].push(record);
        Ok(())
    }

    /// Makes room for a record.
    fn next_part(&mut self) -> io::Result<()> {
        if self.share == 0 {
            self.share = self.sorter.lend()?;
        }
        if let Some(full) = self.parts.get_mut(self.filled) {
            full.sort_unstable();
            self.filled += 1;
        }
        if self.filled < self.parts.len() {
            return Ok(());
        }
        let held: usize = self.parts.iter().map(Vec::capacity).sum();
        if held >= self.share {
            let runs = std::mem::take(&mut self.parts).into_iter().map(Run::Memory).collect();
            let mut merge = Merge::new(runs, self.sorter.block)?;
            self.sorter.keep_on_disk(&mut merge)?;
            self.parts = merge.into_buffers();
            self.filled = 0;
            return Ok(());
        }
        self.parts.push(Vec::with_capacity(held.max(BUFFER_MIN).min(self.share - held)));
        Ok(())
    }

    /// Passes the remaining records to the sorter.
    pub fn finish(mut self) {
        if self.share == 0 {
            return;
        }
        self.parts.truncate(self.filled + 1);
        if let Some(last) = self.parts.last_mut() {
            last.sort_unstable();
        }
        let mut state = self.sorter.state.lock();
        state.lent -= self.share;
        state.borrowers -= 1;
        for part in self.parts.into_iter().filter(|part| !part.is_empty()) {
            state.kept += part.capacity();
            state.runs.push(Run::Memory(part));
        }
    }
}

#[cfg(test)]
mod tests {
    use buttress_base::Rng;

    use super::*;

    /// E2: for any bound the result is the sorted input, also with more runs than are merged at
    /// once.
    #[test]
    fn sorts_within_any_bound() {
        for (count, bytes) in [(0, 1), (10, 1 << 20), (50_000, 1), (1_200_000, 1)] {
            let mut rng = Rng::new(count);
            let mut expected: Vec<Record<2>> =
                (0..count).map(|_| [rng.below(1000), rng.next_u64()]).collect();
            let sorter = Sorter::<2>::new(bytes, 3);
            let parts: Vec<_> = expected.chunks(expected.len() / 3 + 1).collect();
            std::thread::scope(|scope| {
                for part in parts {
                    let sorter = &sorter;
                    scope.spawn(move || {
                        let mut writer = sorter.writer();
                        for record in part {
                            writer.put(*record).expect("temporary files");
                        }
                        writer.finish();
                    });
                }
            });
            // Another writer finds the memory in use by those before.
            let mut last = sorter.writer();
            for record in 0..count.min(10_000) {
                last.put([record, 0]).expect("temporary files");
                expected.push([record, 0]);
            }
            last.finish();
            let mut merge = sorter.merge().expect("temporary files");
            let mut found = Vec::new();
            while let Some(record) = merge.next_record().expect("temporary files") {
                found.push(record);
            }
            expected.sort_unstable();
            assert!(found == expected, "E2 with {count} records in {bytes} bytes");
        }
    }

    /// E1: writers that come after others have no more memory together with them.
    #[test]
    fn holds_what_it_may() {
        let (writers, bytes) = (3, 3 << 20);
        let sorter = Sorter::<2>::new(bytes, writers);
        let held = |open: &[Writer<'_, 2>]| {
            let parts = open.iter().flat_map(|writer| &writer.parts);
            (sorter.state.lock().kept + parts.map(Vec::capacity).sum::<usize>()) * 16
        };
        let most = (bytes - bytes / 8) as usize;
        let mut rng = Rng::new(7);
        let mut fullest = 0;
        for count in [100_000, 10, 100_000, 30_000, 30_000, 100_000] {
            let mut open: Vec<_> = (0..writers).map(|_| sorter.writer()).collect();
            for number in 0..count {
                for writer in &mut open {
                    writer.put([rng.next_u64(), number]).expect("temporary files");
                }
                if number % 1000 == 0 {
                    fullest = fullest.max(held(&open));
                }
            }
            fullest = fullest.max(held(&open));
            open.into_iter().for_each(Writer::finish);
            fullest = fullest.max(held(&[]));
        }
        assert!((most / 4 * 3..=most).contains(&fullest), "{fullest} of {most} bytes");
        let state = sorter.state.lock();
        let on_disk = state.runs.iter().filter(|run| run.is_on_disk()).count();
        assert!((1..state.runs.len()).contains(&on_disk), "{on_disk} runs on disk");
    }
}
