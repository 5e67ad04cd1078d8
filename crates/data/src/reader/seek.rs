//! Searches for data and holes.

use std::ops::Range;

use crate::error::Result;
use crate::file::File;
use crate::reader::Reader;

impl Reader {
    /// The first offset at or after `offset` that holds data; `None` when only a hole follows.
    ///
    /// # Errors
    ///
    /// An error from reading the trees.
    pub fn seek_data(&self, file: &File, offset: u64) -> Result<Option<u64>> {
        let _extents = file.extents.read();
        let size = file.size();
        let found = self.next_data(file, offset, size)?;
        Ok(found.map(|range| range.start.max(offset)).filter(|start| *start < size))
    }

    /// The first offset at or after `offset` in a hole. The end of the file counts as a hole.
    /// `None` at or past the end of the file.
    ///
    /// # Errors
    ///
    /// An error from reading the trees.
    pub fn seek_hole(&self, file: &File, offset: u64) -> Result<Option<u64>> {
        let _extents = file.extents.read();
        let size = file.size();
        if offset >= size {
            return Ok(None);
        }
        let mut at = offset;
        while at < size {
            match self.next_data(file, at, size)? {
                Some(range) if range.start <= at => at = range.end,
                _ => break,
            }
        }
        Ok(Some(at.min(size)))
    }

    /// The first range of data that ends after `offset`, dirty or on disk. Preallocated space
    /// without data is a hole.
    fn next_data(&self, file: &File, offset: u64, size: u64) -> Result<Option<Range<u64>>> {
        let dirty = file.dirty.lock().next_data(offset);
        let view = self.engine.view();
        let mut found = None;
        let end = self.params.ceil(size);
        if offset < end {
            self.params.for_each_mapping(&view, file, offset..end, |mapping| {
                if !mapping.is_hole() && !mapping.is_prealloc() {
                    found = Some(mapping.offset..mapping.end);
                }
                Ok(found.is_none())
            })?;
        }
        Ok(dirty.into_iter().chain(found).min_by_key(|range| range.start))
    }
}
