//! The extents of a file as a map, of which ranges can be cut out.

use std::collections::BTreeMap;
use std::ops::Range;

use buttress_format::{Body, FileExtent, Region};

/// An extent in such a map, perhaps with more about it.
pub(crate) trait Piece {
    fn extent(&self) -> &FileExtent;
    /// The same piece with a part of its extent.
    fn with(&self, part: FileExtent) -> Self;
}

impl Piece for FileExtent {
    fn extent(&self) -> &FileExtent {
        self
    }

    fn with(&self, part: FileExtent) -> Self {
        part
    }
}

/// Rounds up to whole sectors.
pub(crate) fn ceil(bytes: u64, sector: u64) -> u64 {
    bytes.checked_next_multiple_of(sector).unwrap_or(u64::MAX)
}

/// The end of an extent in its file, in whole sectors.
pub(crate) fn end(offset: u64, extent: &FileExtent, sector: u64) -> u64 {
    offset.saturating_add(ceil(extent.file_len(), sector))
}

/// Takes a range of whole sectors out of a file's extents.
pub(crate) fn cut<P: Piece>(pieces: &mut BTreeMap<u64, P>, range: Range<u64>, sector: u64) {
    if range.is_empty() {
        return;
    }
    // Extents of a sound file do not overlap. In a damaged file several may reach into the range.
    let touched: Vec<u64> = pieces
        .range(..range.end)
        .rev()
        .take_while(|(offset, piece)| end(**offset, piece.extent(), sector) > range.start)
        .map(|(offset, _)| *offset)
        .collect();
    for offset in touched {
        let Some(piece) = pieces.remove(&offset) else { continue };
        let stop = end(offset, piece.extent(), sector);
        if offset < range.start
            && let Some(head) = part(piece.extent(), 0, range.start - offset)
        {
            pieces.insert(offset, piece.with(head));
        }
        if stop > range.end
            && let Some(tail) = part(piece.extent(), range.end - offset, u64::MAX)
        {
            pieces.insert(range.end, piece.with(tail));
        }
    }
}

/// A part of an extent, of at most `max` bytes. An inline extent has no parts.
fn part(extent: &FileExtent, skip: u64, max: u64) -> Option<FileExtent> {
    let len = extent.file_len().checked_sub(skip).filter(|len| *len > 0)?.min(max);
    let shorter =
        |region: &Region| Region { offset: region.offset.saturating_add(skip), len, ..*region };
    let body = match &extent.body {
        Body::Inline(_) => return None,
        Body::Regular(region) => Body::Regular(shorter(region)),
        Body::Prealloc(region) => Body::Prealloc(shorter(region)),
    };
    Some(FileExtent { body, ..extent.clone() })
}

#[cfg(test)]
mod tests {
    use buttress_format::{Compression, Generation, Logical};

    use super::*;

    fn file() -> BTreeMap<u64, FileExtent> {
        let extent = |disk: u64| FileExtent {
            generation: Generation(7),
            ram_bytes: 16384,
            compression: Compression::None,
            body: Body::Regular(Region {
                disk: Logical(disk),
                disk_len: 16384,
                offset: 0,
                len: 16384,
            }),
        };
        BTreeMap::from([(0, extent(1 << 20)), (16384, extent(2 << 20))])
    }

    fn shape(pieces: &BTreeMap<u64, FileExtent>) -> Vec<(u64, u64, u64, u64)> {
        let plain = |(at, extent): (&u64, &FileExtent)| {
            let region = extent.region()?;
            Some((*at, region.disk.0, region.offset, region.len))
        };
        pieces.iter().filter_map(plain).collect()
    }

    /// A range across two extents leaves the head of one and the tail of the other; a range within
    /// one extent leaves both.
    #[test]
    fn bytes_around_a_range_stay() {
        let mut pieces = file();
        cut(&mut pieces, 12288..20480, 4096);
        assert_eq!(shape(&pieces), [(0, 1 << 20, 0, 12288), (20480, 2 << 20, 4096, 12288)]);
        let mut pieces = file();
        cut(&mut pieces, 4096..8192, 4096);
        let left = [(0, 1 << 20, 0, 4096), (8192, 1 << 20, 8192, 8192), (16384, 2 << 20, 0, 16384)];
        assert_eq!(shape(&pieces), left);
        cut(&mut pieces, 0..u64::MAX, 4096);
        assert!(pieces.is_empty());
    }

    /// An inline extent is one sector, which a range takes as a whole.
    #[test]
    fn inline_content_has_no_parts() {
        let mut pieces = file();
        let inline =
            FileExtent { body: Body::Inline(vec![1; 100]), ram_bytes: 100, ..pieces[&0].clone() };
        pieces.insert(0, inline);
        cut(&mut pieces, 4096..8192, 4096);
        assert!(pieces.contains_key(&0));
        cut(&mut pieces, 0..4096, 4096);
        assert!(!pieces.contains_key(&0));
    }
}
