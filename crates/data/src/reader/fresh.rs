//! Counts the dirty bytes of a file that have no space on disk yet.
//!
//! # Invariants
//!
//! - **F1** Dirty data over existing extents counts as no new space: the inode's item includes that
//!   space. This holds for preallocated extents, and for data that is overwritten.

use std::ops::Range;

use crate::file::File;
use crate::reader::Reader;

/// The maximum number of runs that are looked at one by one. If there are more, all dirty bytes
/// count.
const RUNS_MAX: usize = 1024;

impl Reader {
    /// Bytes that wait for writeback, or are in writeback, at offsets without space on disk (F1).
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

/// The number of bytes of sorted runs that lie in a range.
fn overlap(runs: &[Range<u64>], range: Range<u64>) -> u64 {
    let first = runs.partition_point(|run| run.end <= range.start);
    let touched = runs[first..].iter().take_while(|run| run.start < range.end);
    touched.map(|run| run.end.min(range.end) - run.start.max(range.start)).sum()
}
