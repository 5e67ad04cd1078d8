//! The names in a host directory, sorted, without all of them in memory.
//!
//! # Invariants
//!
//! - **N1** The names come in the order of their bytes, whatever order the host lists them in. So
//!   two runs make the same volume.
//! - **N2** [`Names`] holds at most [`PART`] bytes of names in memory, and one block for each part
//!   in the file. The rest is in a temporary file, which has no name and does not outlive the
//!   program.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;

use buttress_control::exit::{Context, Result};
use rustix::fs::Dir;

/// Bytes of names that a directory may hold in memory, including the overhead of each name.
const PART: usize = 1 << 20;
/// Bytes of a written part that are read at a time. A block has room for the longest name and its
/// length.
const BLOCK: usize = 16 << 10;
/// Bytes of the length that stands before a name.
const HEAD: usize = size_of::<u16>();

/// The names in a directory that were not taken yet.
pub(crate) struct Names {
    from: Merge,
}

impl Names {
    /// Reads the names of a directory, without the names that `skip` accepts.
    pub(crate) fn of(dir: &OwnedFd, skip: &dyn Fn(&[u8]) -> bool) -> Result<Self> {
        let mut all = Sorter::new(PART);
        for entry in Dir::read_from(dir).context(|| "reading a folder")? {
            let entry = entry.context(|| "reading a folder")?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." && !skip(name) {
                all.put(name).context(|| "writing names to a temporary file")?;
            }
        }
        let from = all.merge().context(|| "reading names from a temporary file")?;
        Ok(Self { from })
    }

    /// Takes the next name.
    pub(crate) fn next(&mut self) -> Result<Option<OsString>> {
        let name = self.from.next().context(|| "reading names from a temporary file")?;
        Ok(name.map(OsString::from_vec))
    }
}

/// Collects names.
struct Sorter {
    /// The most bytes of a part.
    most: usize,
    part: Part,
    written: Option<Written>,
}

/// Names one after the other, each behind its length.
#[derive(Default)]
struct Part {
    bytes: Vec<u8>,
    /// Where each name begins.
    starts: Vec<u32>,
}

/// Sorted parts in a file.
struct Written {
    file: File,
    /// Where each part ends. A part begins where the previous part ends.
    ends: Vec<u64>,
}

impl Part {
    fn size(&self) -> usize {
        self.bytes.len() + self.starts.len() * size_of::<u32>()
    }

    fn put(&mut self, name: &[u8]) {
        // A name has at most 255 bytes, and a part has at most `PART` bytes and one name, so both
        // numbers fit their types.
        self.starts.push(self.bytes.len() as u32);
        self.bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(name);
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        self.starts.sort_unstable_by_key(|start| at(bytes, *start as usize));
    }
}

/// The name that stands at `start`, behind its length.
fn at(bytes: &[u8], start: usize) -> &[u8] {
    let name = start + HEAD;
    let len = u16::from_le_bytes([bytes[start], bytes[start + 1]]);
    &bytes[name..name + usize::from(len)]
}

impl Sorter {
    fn new(most: usize) -> Self {
        Self { most, part: Part::default(), written: None }
    }

    fn put(&mut self, name: &[u8]) -> io::Result<()> {
        if self.part.size() + size_of::<u32>() + HEAD + name.len() > self.most
            && !self.part.starts.is_empty()
        {
            self.spill()?;
        }
        self.part.put(name);
        Ok(())
    }

    /// Writes the part to the file, sorted.
    fn spill(&mut self) -> io::Result<()> {
        self.part.sort();
        let mut written = match self.written.take() {
            Some(written) => written,
            None => Written { file: tempfile::tempfile()?, ends: Vec::new() },
        };
        let mut end = written.ends.last().copied().unwrap_or(0);
        let mut block = Vec::with_capacity(BLOCK);
        for start in &self.part.starts {
            let name = at(&self.part.bytes, *start as usize);
            if block.len() + HEAD + name.len() > BLOCK {
                written.file.write_all_at(&block, end)?;
                end += block.len() as u64;
                block.clear();
            }
            block.extend_from_slice(&(name.len() as u16).to_le_bytes());
            block.extend_from_slice(name);
        }
        written.file.write_all_at(&block, end)?;
        written.ends.push(end + block.len() as u64);
        self.written = Some(written);
        self.part.bytes.clear();
        self.part.starts.clear();
        Ok(())
    }

    /// Returns all names in order (N1).
    fn merge(mut self) -> io::Result<Merge> {
        if self.written.is_some() {
            self.spill()?;
            // The blocks of the written parts need this memory.
            self.part = Part::default();
        }
        self.part.sort();
        self.part.bytes.shrink_to_fit();
        self.part.starts.shrink_to_fit();
        let Some(Written { file, ends }) = self.written else {
            let taken = 0;
            return Ok(Merge::Memory { part: self.part, taken });
        };
        let mut start = 0;
        let mut runs = Vec::with_capacity(ends.len());
        for end in ends {
            runs.push(Run { next: start, end, block: Vec::new(), at: 0 });
            start = end;
        }
        let mut first = BinaryHeap::with_capacity(runs.len());
        for (index, run) in runs.iter_mut().enumerate() {
            first.extend(run.take(&file)?.map(|name| Reverse((name, index))));
        }
        Ok(Merge::Disk { file, runs, first })
    }
}

/// Sorted names.
enum Merge {
    /// All names are in memory.
    Memory { part: Part, taken: usize },
    /// Parts in a file, and the first name of each that was not taken yet.
    Disk { file: File, runs: Vec<Run>, first: BinaryHeap<Reverse<(Vec<u8>, usize)>> },
}

/// A sorted part in a file.
struct Run {
    /// Where the next block begins, and where the part ends.
    next: u64,
    end: u64,
    block: Vec<u8>,
    /// Where the next name begins in the block.
    at: usize,
}

impl Run {
    fn take(&mut self, file: &File) -> io::Result<Option<Vec<u8>>> {
        if !self.holds_a_name() {
            self.block.drain(..self.at);
            self.at = 0;
            let have = self.block.len();
            let more = (self.end - self.next).min((BLOCK - have) as u64);
            self.block.resize(have + more as usize, 0);
            file.read_exact_at(&mut self.block[have..], self.next)?;
            self.next += more;
            if !self.holds_a_name() {
                // The part was read to its end.
                self.block = Vec::new();
                return Ok(None);
            }
        }
        let name = at(&self.block, self.at).to_vec();
        self.at += HEAD + name.len();
        Ok(Some(name))
    }

    fn holds_a_name(&self) -> bool {
        let left = &self.block[self.at..];
        match left.first_chunk::<HEAD>() {
            Some(len) => left.len() >= HEAD + usize::from(u16::from_le_bytes(*len)),
            None => false,
        }
    }
}

impl Merge {
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Memory { part, taken } => {
                let Some(start) = part.starts.get(*taken) else { return Ok(None) };
                *taken += 1;
                Ok(Some(at(&part.bytes, *start as usize).to_vec()))
            }
            Self::Disk { file, runs, first } => {
                let Some(Reverse((name, index))) = first.pop() else { return Ok(None) };
                first.extend(runs[index].take(file)?.map(|name| Reverse((name, index))));
                Ok(Some(name))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn merged(most: usize, names: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut sorter = Sorter::new(most);
        for name in names {
            sorter.put(name).expect("put");
            assert!(sorter.part.size() <= most.max(300), "N2");
        }
        let mut merge = sorter.merge().expect("a merge");
        std::iter::from_fn(|| merge.next().expect("a name")).collect()
    }

    proptest! {
        /// N1: names are sorted, no name is lost or comes twice, whatever the number of parts.
        #[test]
        fn names_come_sorted(
            names in vec(vec(1..=255_u8, 1..255), 0..300),
            most in prop::sample::select(vec![1, 500, 4_000, PART]),
        ) {
            let mut sorted = names.clone();
            sorted.sort_unstable();
            prop_assert_eq!(merged(most, &names), sorted);
        }
    }

    /// Tests N1.
    /// A part may have many blocks, which are read one at a time.
    #[test]
    fn parts_of_many_blocks_are_merged() {
        let names: Vec<Vec<u8>> =
            (0..40_000_u32).map(|number| (number * 7_919 % 40_000).to_string().into()).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        assert_eq!(merged(100_000, &names), sorted);
        assert_eq!(merged(PART, &names), sorted);
    }
}
