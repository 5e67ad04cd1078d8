//! Sorted runs, in memory and on disk, and the merge that reads them all at once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A record: words that are compared from the first to the last.
pub type Record<const N: usize> = [u64; N];

/// A sorted run.
#[derive(Debug)]
pub(crate) enum Run<const N: usize> {
    Memory(Vec<Record<N>>),
    Disk { file: File, len: usize },
}

impl<const N: usize> Run<N> {
    pub(crate) fn is_on_disk(&self) -> bool {
        matches!(self, Self::Disk { .. })
    }
}

/// A run while it is merged.
#[derive(Debug)]
struct Source<const N: usize> {
    records: Vec<Record<N>>,
    next: usize,
    rest: Option<Rest>,
}

/// The part of a run that is on disk.
#[derive(Debug)]
struct Rest {
    file: File,
    /// The number of records read so far, of all records, and of those of one block.
    read: usize,
    len: usize,
    block: usize,
}

impl<const N: usize> Source<N> {
    fn new(run: Run<N>, block: usize) -> Self {
        match run {
            Run::Memory(records) => Self { records, next: 0, rest: None },
            Run::Disk { file, len } => {
                let records = Vec::with_capacity(block.min(len));
                Self { records, next: 0, rest: Some(Rest { file, read: 0, len, block }) }
            }
        }
    }

    fn next(&mut self) -> io::Result<Option<Record<N>>> {
        if self.next == self.records.len()
            && let Some(Rest { file, read, len, block }) = &mut self.rest
        {
            let count = (*block).min(*len - *read);
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
    /// Merges runs. `block` is the number of records that one read of a run on disk gets.
    pub(crate) fn new(runs: Vec<Run<N>>, block: usize) -> io::Result<Self> {
        let len = |run: &Run<N>| match run {
            Run::Memory(records) => records.len() as u64,
            Run::Disk { len, .. } => *len as u64,
        };
        let total = runs.iter().map(len).sum();
        let mut sources: Vec<Source<N>> =
            runs.into_iter().map(|run| Source::new(run, block)).collect();
        let mut heads = BinaryHeap::with_capacity(sources.len());
        for (index, source) in sources.iter_mut().enumerate() {
            if let Some(record) = source.next()? {
                heads.push(Reverse((record, index)));
            }
        }
        Ok(Self { sources, heads, total })
    }

    /// Returns the memory of the runs, emptied.
    pub(crate) fn into_buffers(self) -> Vec<Vec<Record<N>>> {
        let emptied = |mut source: Source<N>| {
            source.records.clear();
            source.records
        };
        self.sources.into_iter().map(emptied).collect()
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
                PeekMut::pop(head);
            }
        }
        Ok(Some(record))
    }
}
