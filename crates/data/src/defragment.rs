//! Rewrites a file's extents in fewer pieces, or with another compression.
//!
//! # Invariants
//!
//! - **D1** The old extents stay until the new ones are written: a failure in between loses
//!   nothing.
//! - **D2** Rewritten data belongs to the file alone. Extents that the file shared are not changed,
//!   and the file does not share them any more.
//! - **D3** Holes and preallocated space stay unchanged.

use std::ops::Range;

use buttress_format::Compression;

use crate::codec::Codec;
use crate::error::Result;
use crate::extent_map::Mapping;
use crate::file::File;
use crate::files::Files;
use crate::job::Choice;
use crate::pack::PACKED_BYTES_MAX;
use crate::params::Params;

/// The largest number of bytes that are read, and written, at once.
const STEP_BYTES: u64 = 16 << 20;

/// The way of rewriting a file.
#[derive(Clone, Copy, Debug)]
pub struct Defragment {
    /// Extents of at least this length are not rewritten.
    pub extent_bytes: u64,
    /// Compress everything with this codec. If `None`, the settings of the file and the mount
    /// apply.
    pub codec: Option<Codec>,
}

impl Default for Defragment {
    fn default() -> Self {
        Self { extent_bytes: 32 << 20, codec: None }
    }
}

impl Files {
    /// Rewrites the extents of a range that are small and have a neighbour to join. With a codec,
    /// rewrites all extents that are not compressed with this codec. Returns the number of
    /// rewritten bytes.
    ///
    /// The caller keeps other threads from changing the file's length or content meanwhile.
    ///
    /// # Errors
    ///
    /// No space, or an error of reading or writing. The content is then unchanged.
    pub fn defragment(&self, file: &File, range: Range<u64>, how: &Defragment) -> Result<u64> {
        let end = self.params.ceil(range.end.min(file.size()));
        let mut at = self.params.floor(range.start);
        self.writeback.write_back(file, at..end.max(at))?;
        let _claim = file.claim();
        let mut done = 0;
        while at < end {
            let (part, looked) = self.next_part(file, at..end, how)?;
            if let Some(part) = part {
                done += part.end - part.start;
                self.rewrite(file, part, how)?;
            }
            at = looked;
        }
        Ok(done)
    }

    /// Returns the first part of a range that is worth rewriting, and the offset at which the
    /// search ended.
    fn next_part(
        &self,
        file: &File,
        range: Range<u64>,
        how: &Defragment,
    ) -> Result<(Option<Range<u64>>, u64)> {
        let _extents = file.extents.read();
        let view = self.engine.view();
        let mut part: Option<Range<u64>> = None;
        let mut pieces = 0;
        let mut last: Option<Mapping> = None;
        let mut looked = range.end;
        self.params.for_each_mapping(&view, file, range.clone(), |mapping| {
            let wanted = is_candidate(&mapping, how);
            let (low, high) = (mapping.offset.max(range.start), mapping.end.min(range.end));
            match &mut part {
                Some(part) if wanted && part.end == low && part.end - part.start < STEP_BYTES => {
                    part.end = high;
                    pieces += u32::from(!last.as_ref().is_some_and(|l| lie_together(l, &mapping)));
                    last = Some(mapping);
                }
                Some(_) => {
                    looked = low;
                    return Ok(false);
                }
                none if wanted => {
                    *none = Some(low..high);
                    pieces = 1;
                    last = Some(mapping);
                }
                _ => {}
            }
            Ok(true)
        })?;
        let part = part.filter(|_| pieces > 1 || how.codec.is_some());
        Ok((part, looked))
    }

    fn rewrite(&self, file: &File, range: Range<u64>, how: &Defragment) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let part = at..range.end.min(at + STEP_BYTES);
            let mut data = vec![0; (part.end - part.start) as usize];
            let (flags, property) = {
                let meta = file.meta();
                (meta.item.flags, meta.codec)
            };
            {
                let _extents = file.extents.read();
                self.reader.read_extents(&self.engine.view(), file, part.clone(), &mut data)?;
            }
            let choice = match how.codec {
                Some(codec) => Params::may_pack(flags).then(|| Choice::forced(codec)),
                None => self.params.choice(flags, property),
            };
            let placed = self.write_fresh(file, at, &data, choice)?;
            self.writeback.finish(file, &placed, &mut None, |_, _| ())?;
            at = part.end;
        }
        Ok(())
    }
}

/// Returns whether an extent is to be rewritten.
fn is_candidate(mapping: &Mapping, how: &Defragment) -> bool {
    if mapping.is_inline() || mapping.is_hole() || mapping.is_prealloc() {
        return false;
    }
    let len = mapping.end - mapping.offset;
    match (how.codec, mapping.extent.compression) {
        (Some(codec), there) => there != codec.kind(),
        (None, Compression::None) => len < how.extent_bytes,
        (None, _) => len < PACKED_BYTES_MAX.min(how.extent_bytes),
    }
}

/// Whether two neighbours in the file are neighbours on disk too.
fn lie_together(left: &Mapping, right: &Mapping) -> bool {
    let plain = |mapping: &Mapping| mapping.extent.compression == Compression::None;
    let (Some(a), Some(b)) = (left.region(), right.region()) else { return false };
    plain(left) && plain(right) && a.disk.0 + a.offset + a.len == b.disk.0 + b.offset
}
