//! Sorts more records than memory can hold: full buffers become sorted runs in temporary files, and
//! one merge reads all runs.
//!
//! # Invariants
//!
//! - **E1** All writers together never hold more bytes than the sorter may use. During the merge,
//!   each run on disk has one block in memory.
//! - **E2** The merge returns all added records in ascending order. The result does not depend on
//!   the number of threads or on when their buffers were spilled.
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

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use buttress_base::{Rank, Ranked};

/// A record: words that are compared from the first to the last.
pub type Record<const N: usize> = [u64; N];

/// Bytes of one read from a run.
const BLOCK_BYTES: usize = 256 << 10;
/// The number of runs on disk at which these runs are merged into one run, so that the last merge
/// stays small.
const RUNS_MAX: usize = 256;
/// The smallest buffer of a writer, in records, even if the limit is lower. With a few records for
/// each run, sorting would take far too long.
const BUFFER_MIN: usize = 4096;

/// Collects records from many threads.
#[derive(Debug)]
pub struct Sorter<const N: usize> {
    buffer_records: usize,
    runs: Ranked<Vec<Run<N>>>,
}

/// The buffer of one thread. Call [`Writer::finish`]: records in a dropped writer are lost.
#[derive(Debug)]
pub struct Writer<'s, const N: usize> {
    sorter: &'s Sorter<N>,
    records: Vec<Record<N>>,
}

/// A sorted run.
#[derive(Debug)]
enum Run<const N: usize> {
    Memory(Vec<Record<N>>),
    Disk { file: File, len: usize },
}

impl<const N: usize> Sorter<N> {
    /// Creates a sorter for at most `writers` writers at a time, which together hold `bytes`.
    pub fn new(bytes: u64, writers: usize) -> Self {
        let share = bytes / writers.max(1) as u64 / size_of::<Record<N>>() as u64;
        let buffer_records = usize::try_from(share).unwrap_or(usize::MAX).max(BUFFER_MIN);
        Self { buffer_records, runs: Ranked::new(Rank::Leaf, Vec::new()) }
    }

    /// Returns a writer for one thread.
    pub fn writer(&self) -> Writer<'_, N> {
        Writer { sorter: self, records: Vec::new() }
    }

    fn spill(&self, records: &[Record<N>]) -> io::Result<()> {
        let file = tempfile::tempfile()?;
        write_records(&file, 0, records)?;
        let run = Run::Disk { file, len: records.len() };
        let full = {
            let mut runs = self.runs.lock();
            runs.push(run);
            let on_disk = runs.iter().filter(|run| matches!(run, Run::Disk { .. })).count();
            (on_disk >= RUNS_MAX).then(|| std::mem::take(&mut *runs))
        };
        let Some(full) = full else { return Ok(()) };
        let file = tempfile::tempfile()?;
        let mut len = 0;
        let mut block = Vec::with_capacity(block_records::<N>());
        let mut merge = Merge::new(full)?;
        while let Some(record) = merge.next_record()? {
            block.push(record);
            if block.len() == block.capacity() {
                write_records(&file, len, &block)?;
                len += block.len();
                block.clear();
            }
        }
        write_records(&file, len, &block)?;
        len += block.len();
        self.runs.lock().push(Run::Disk { file, len });
        Ok(())
    }

    /// Returns all records, in order.
    ///
    /// # Errors
    ///
    /// When a temporary file cannot be read.
    pub fn merge(self) -> io::Result<Merge<N>> {
        Merge::new(self.runs.into_inner())
    }
}

impl<const N: usize> Writer<'_, N> {
    /// Adds a record.
    ///
    /// # Errors
    ///
    /// When a temporary file cannot be written.
    pub fn put(&mut self, record: Record<N>) -> io::Result<()> {
        if self.records.len() >= self.sorter.buffer_records {
            self.records.sort_unstable();
            self.sorter.spill(&self.records)?;
            self.records.clear();
        }
        self.records.push(record);
        Ok(())
    }

    /// Passes the remaining records to the sorter.
    pub fn finish(mut self) {
        if self.records.is_empty() {
            return;
        }
        self.records.sort_unstable();
        self.sorter.runs.lock().push(Run::Memory(self.records));
    }
}

const fn block_records<const N: usize>() -> usize {
    BLOCK_BYTES / size_of::<Record<N>>()
}

fn write_records<const N: usize>(
    file: &File,
    first: usize,
    records: &[Record<N>],
) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(BLOCK_BYTES);
    let mut at = (first * N * 8) as u64;
    for part in records.chunks(block_records::<N>()) {
        bytes.clear();
        bytes.extend(part.iter().flatten().flat_map(|word| word.to_le_bytes()));
        file.write_all_at(&bytes, at)?;
        at += bytes.len() as u64;
    }
    Ok(())
}

/// A run while it is merged.
#[derive(Debug)]
struct Source<const N: usize> {
    records: Vec<Record<N>>,
    next: usize,
    /// The file, the number of its records read so far, and the number of all its records.
    rest: Option<(File, usize, usize)>,
}

impl<const N: usize> Source<N> {
    fn new(run: Run<N>) -> Self {
        match run {
            Run::Memory(records) => Self { records, next: 0, rest: None },
            Run::Disk { file, len } => {
                Self { records: Vec::new(), next: 0, rest: Some((file, 0, len)) }
            }
        }
    }

    fn next(&mut self) -> io::Result<Option<Record<N>>> {
        if self.next == self.records.len()
            && let Some((file, read, len)) = &mut self.rest
        {
            let count = block_records::<N>().min(*len - *read);
            let mut bytes = vec![0; count * N * 8];
            file.read_exact_at(&mut bytes, (*read * N * 8) as u64)?;
            *read += count;
            self.next = 0;
            self.records.clear();
            for part in bytes.chunks_exact(N * 8) {
                let mut record = [0; N];
                for (word, bytes) in record.iter_mut().zip(part.chunks_exact(8)) {
                    let mut raw = [0; 8];
                    raw.copy_from_slice(bytes);
                    *word = u64::from_le_bytes(raw);
                }
                self.records.push(record);
            }
        }
        let record = self.records.get(self.next).copied();
        self.next += usize::from(record.is_some());
        Ok(record)
    }
}

/// Records in ascending order.
#[derive(Debug)]
pub struct Merge<const N: usize> {
    sources: Vec<Source<N>>,
    heads: BinaryHeap<Reverse<(Record<N>, usize)>>,
    total: u64,
}

impl<const N: usize> Merge<N> {
    fn new(runs: Vec<Run<N>>) -> io::Result<Self> {
        let len = |run: &Run<N>| match run {
            Run::Memory(records) => records.len() as u64,
            Run::Disk { len, .. } => *len as u64,
        };
        let total = runs.iter().map(len).sum();
        let mut sources: Vec<Source<N>> = runs.into_iter().map(Source::new).collect();
        let mut heads = BinaryHeap::with_capacity(sources.len());
        for (index, source) in sources.iter_mut().enumerate() {
            if let Some(record) = source.next()? {
                heads.push(Reverse((record, index)));
            }
        }
        Ok(Self { sources, heads, total })
    }

    /// Bytes of all records.
    pub fn total_bytes(&self) -> u64 {
        self.total * size_of::<Record<N>>() as u64
    }

    /// Returns the next record, or `None` behind the last.
    ///
    /// # Errors
    ///
    /// When a temporary file cannot be read.
    pub fn next_record(&mut self) -> io::Result<Option<Record<N>>> {
        let Some(mut head) = self.heads.peek_mut() else { return Ok(None) };
        let Reverse((record, index)) = *head;
        match self.sources[index].next()? {
            Some(next) => *head = Reverse((next, index)),
            None => {
                std::collections::binary_heap::PeekMut::pop(head);
            }
        }
        Ok(Some(record))
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
            let mut merge = sorter.merge().expect("temporary files");
            let mut found = Vec::new();
            while let Some(record) = merge.next_record().expect("temporary files") {
                found.push(record);
            }
            expected.sort_unstable();
            assert!(found == expected, "E2 with {count} records in {bytes} bytes");
        }
    }
}
