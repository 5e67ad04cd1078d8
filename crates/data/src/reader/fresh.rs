//! How much of what waits for writeback has no space on disk yet.
//!
//! # Invariants
//!
//! - **F1** What waits where the file has space already needs no more when it is counted: the space
//!   is in the inode's item. That is so of preallocated extents, and of data that is written over.

use std::ops::Range;

use crate::file::File;
use crate::reader::Reader;

/// Runs that are looked at one by one; where more wait, all that waits is counted.
const RUNS_MAX: usize = 1024;

impl Reader {
    /// Bytes that wait for writeback, or are on their way, where the file has no space on disk
    /// (F1).
    #[must_use]
    pub fn fresh_bytes(&self, file: &File) -> u64 {
        let all = file.dirty_bytes();
        if all == 0 || file.known_end() == Some(0) {
            return all;
        }
        let _extents = file.extents.read();
        let runs = file.dirty.lock().runs(RUNS_MAX);
        let Some((first, last)) = runs.first().zip(runs.last()) else { return all };
        if file.known_end().is_some_and(|end| end <= first.start) {
            return all;
        }
        let mut covered = 0;
        let view = self.engine.view();
        let looked = self.params.for_each_mapping(&view, file, first.start..last.end, |mapping| {
            if !mapping.is_hole() {
                covered += overlap(&runs, mapping.offset..mapping.end);
            }
            Ok(true)
        });
        let total: u64 = runs.iter().map(|run| run.end - run.start).sum();
        if looked.is_err() { all } else { total.saturating_sub(covered) }
    }
}

/// How many bytes of sorted runs lie in a range.
fn overlap(runs: &[Range<u64>], range: Range<u64>) -> u64 {
    let first = runs.partition_point(|run| run.end <= range.start);
    let touched = runs[first..].iter().take_while(|run| run.start < range.end);
    touched.map(|run| run.end.min(range.end) - run.start.max(range.start)).sum()
}
