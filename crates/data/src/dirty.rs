//! Data of one file that is newer than its extents. It waits for writeback, or is being written.
//!
//! # Invariants
//!
//! - **P1** Pieces are disjoint, start on a sector and are whole sectors long. No piece is longer
//!   than [`PIECE_BYTES`], unless it was put in as one piece.
//! - **P2** Every sector in `pieces` has its data space in `reserved`, or is in `in_place`. A
//!   sector in `in_place` will be written where its extent lies, so it needs no new space. The
//!   token `unreserved` proves that the sectors in `in_place` need no new space.
//! - **P3** A sector that is being written stays readable here until its extent item is visible and
//!   its data is on the device. `unwritten` has the data of items that became visible first.
//! - **P4** Bytes at or after the file's length are zero.
//! - **P5** For every piece there is metadata in `metadata` to make the extent of this piece
//!   visible.
//! - **P6** All of this metadata is for the file's own items. If it covers many items, it counts as
//!   the leaves that can hold these items, not as one path for each item.
//!
//! # Locks
//!
//! The dirty map is under one short lock of its file; no I/O happens under this lock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use buttress_base::RangeSet;
use buttress_format::Logical;
use buttress_txn::{DataReservation, InPlaceToken, InodeReserve, MetaReservation};

use crate::buffers::BufferPool;
use crate::error::Error;

/// Largest buffer that grows by appending. A run of such buffers becomes one extent.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

#[derive(Debug, Default)]
pub(crate) struct Dirty {
    pieces: BTreeMap<u64, Vec<u8>>,
    writing: BTreeMap<u64, Arc<Vec<u8>>>,
    /// Data that has its extents and is still to be written (P3).
    unwritten: BTreeMap<u64, Arc<Vec<u8>>>,
    bytes: u64,
    /// Bytes in `writing` and in `unwritten`.
    writing_bytes: u64,
    /// The data space that is reserved for `pieces` (P2).
    pub(crate) reserved: Option<DataReservation>,
    /// Sectors of `pieces` that have a place on disk and no reservation (P2).
    in_place: RangeSet,
    unreserved: Option<InPlaceToken>,
    /// The metadata that is reserved for `pieces` (P5). A job that writes a part of the pieces
    /// takes all of this metadata, and gives the rest back when the job's extents are finished.
    pub(crate) metadata: Option<MetaReservation>,
    /// The inode's reserve. A large `metadata` is counted through this reserve (P6).
    pub(crate) reserve: Option<Arc<InodeReserve>>,
    /// Parts of `metadata`. `inline` is the number of bytes of the first sector that may become an
    /// inline extent. `splits` is the number of new extents that may each split an old item.
    pub(crate) inline: u32,
    pub(crate) splits: u32,
    /// Whether the last write found no data space, but sectors that can be written in place. The
    /// next write then looks for such sectors before it reserves space.
    pub(crate) prefers_in_place: bool,
    /// Whether a thread holds the writeback claim.
    pub(crate) busy: bool,
    /// The best address for the next extent of this file.
    pub(crate) goal: Option<Logical>,
    /// The first failure of background writes that was not reported yet.
    pub(crate) error: Option<Error>,
}

/// A contiguous run taken for writing.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) pieces: Vec<Arc<Vec<u8>>>,
    pub(crate) len: u64,
    /// The token for the part that is to be written in place. Space is reserved for the rest of the
    /// run.
    pub(crate) unreserved: Option<InPlaceToken>,
}

impl Run {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// The parts of the pieces that make up `range` of the file, in order.
    pub(crate) fn slices(&self, range: Range<u64>) -> Vec<&[u8]> {
        self.parts(range).map(|(piece, part)| &piece[part]).collect()
    }

    /// As [`slices`](Self::slices), but returns pieces that the caller can keep, each with its used
    /// part.
    pub(crate) fn parts(
        &self,
        range: Range<u64>,
    ) -> impl Iterator<Item = (&Arc<Vec<u8>>, Range<usize>)> {
        let mut at = self.offset;
        self.pieces.iter().filter_map(move |piece| {
            let start = at;
            at += piece.len() as u64;
            let (low, high) = (range.start.max(start), range.end.min(at));
            (low < high).then(|| (piece, (low - start) as usize..(high - start) as usize))
        })
    }
}

impl Dirty {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn writing_bytes(&self) -> u64 {
        self.writing_bytes
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.pieces.is_empty() && self.writing.is_empty() && self.unwritten.is_empty()
    }

    /// Copies the data of this map into `buf`, which holds the file from `offset` on. Adds each
    /// missing part to `gaps`.
    pub(crate) fn copy_out(&self, offset: u64, buf: &mut [u8], gaps: &mut Vec<Range<u64>>) {
        let range = offset..offset + buf.len() as u64;
        if self.is_clean() {
            gaps.push(range);
            return;
        }
        let mut missing = Vec::new();
        overlay(&self.pieces, |piece| piece.as_slice(), range, offset, buf, &mut missing);
        let mut still_missing = Vec::new();
        for gap in missing {
            overlay(&self.writing, |piece| piece.as_slice(), gap, offset, buf, &mut still_missing);
        }
        for gap in still_missing {
            overlay(&self.unwritten, |piece| piece.as_slice(), gap, offset, buf, gaps);
        }
    }

    /// Whether the sector at `offset` waits for writeback.
    pub(crate) fn is_dirty_at(&self, offset: u64) -> bool {
        before(&self.pieces, offset)
            .is_some_and(|(start, piece)| offset - start < piece.len() as u64)
    }

    /// Returns the sector at `offset`, if it is being written to the device.
    pub(crate) fn in_writeback(&self, offset: u64, sector: usize) -> Option<&[u8]> {
        [&self.writing, &self.unwritten].into_iter().find_map(|map| {
            let (start, piece) = before(map, offset)?;
            let from = (offset - start) as usize;
            piece.get(from..from + sector)
        })
    }

    /// Bytes of whole sectors in `range` that do not wait for writeback yet.
    #[cfg(test)]
    fn missing(&self, range: Range<u64>) -> u64 {
        let mut missing = 0;
        self.for_each_gap(range, |gap, _| missing += gap.end - gap.start);
        missing
    }

    /// Visits the parts of `range` that do not wait for writeback yet. All parts have whole
    /// sectors. `visit` also gets the number of pieces that a put of the part would make.
    pub(crate) fn for_each_gap(&self, range: Range<u64>, mut visit: impl FnMut(Range<u64>, usize)) {
        let first = before(&self.pieces, range.start);
        let mut at = range.start;
        // The room in the piece that ends at the start of the gap.
        let mut room = 0;
        let mut gap = |low: u64, high: u64, room: usize| {
            if low < high {
                let fresh = (high - low).saturating_sub(room as u64);
                visit(low..high, fresh.div_ceil(PIECE_BYTES as u64) as usize);
            }
        };
        let from = first.map_or(range.start, |(start, _)| start);
        for (start, piece) in self.pieces.range(from..range.end) {
            let end = start + piece.len() as u64;
            if end < at {
                continue;
            }
            gap(at, (*start).max(at), room);
            at = end.max(at);
            room = PIECE_BYTES.saturating_sub(piece.len());
        }
        gap(at, range.end, room);
    }

    /// Returns the ranges that wait or are being written, sorted and joined. Returns none if there
    /// are more than `limit` pieces.
    pub(crate) fn runs(&self, limit: usize) -> Vec<Range<u64>> {
        if self.pieces.len() + self.writing.len() + self.unwritten.len() > limit {
            return Vec::new();
        }
        let of = |at: &u64, len: usize| *at..*at + len as u64;
        let mut all: Vec<Range<u64>> = self.pieces.iter().map(|(at, b)| of(at, b.len())).collect();
        all.extend(self.writing.iter().chain(&self.unwritten).map(|(at, b)| of(at, b.len())));
        all.sort_unstable_by_key(|run| run.start);
        let mut runs: Vec<Range<u64>> = Vec::with_capacity(all.len());
        for run in all {
            match runs.last_mut() {
                Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
                _ => runs.push(run),
            }
        }
        runs
    }

    /// Returns the number of buffers that touch a range, including buffers that are being written.
    pub(crate) fn pieces_in(&self, range: &Range<u64>) -> usize {
        in_range(&self.pieces, range, Vec::len) + self.writing_in(range)
    }

    /// Returns the number of buffers that touch a range and are being written.
    pub(crate) fn writing_in(&self, range: &Range<u64>) -> usize {
        in_range(&self.writing, range, |piece| piece.len())
    }

    /// Returns the number of extents beyond `splits` if each piece becomes `each` extents. The
    /// reservation does not cover the splits of old items by these extents.
    pub(crate) fn unsplit(&self, each: u32) -> u32 {
        (self.pieces.len() as u32 * each).saturating_sub(self.splits)
    }

    /// Returns whether forgetting `range` splits one piece in two.
    pub(crate) fn is_within_one(&self, range: &Range<u64>) -> bool {
        before(&self.pieces, range.start).is_some_and(|(start, piece)| {
            start < range.start && range.end < start + piece.len() as u64
        })
    }

    /// Records sectors that have their place on disk (P2), and takes their token.
    pub(crate) fn mark_in_place(&mut self, range: Range<u64>, token: InPlaceToken) {
        let all = self.in_place.total() + token.bytes();
        self.in_place.insert(range);
        assert_eq!(self.in_place.total(), all, "P2: each sector has one token");
        match &mut self.unreserved {
            Some(unreserved) => unreserved.merge(token),
            none => *none = Some(token),
        }
    }

    /// Forgets the places on disk of the sectors in `range`. Returns the token of these sectors, if
    /// there were any.
    pub(crate) fn unmark_in_place(&mut self, range: Range<u64>) -> Option<InPlaceToken> {
        let before = self.in_place.total();
        self.in_place.remove(range);
        let left = self.in_place.total();
        if left == before {
            return None;
        }
        if left == 0 {
            return self.unreserved.take();
        }
        self.unreserved.as_mut().map(|unreserved| unreserved.split(before - left))
    }

    /// Puts whole sectors. They may replace sectors that wait already. Returns the number of new
    /// bytes.
    pub(crate) fn put(&mut self, pool: &BufferPool, offset: u64, data: &[u8]) -> u64 {
        let end = offset + data.len() as u64;
        let part = |low: u64, high: u64| &data[(low - offset) as usize..(high - offset) as usize];
        let mut at = offset;
        let mut new = 0;
        while at < end {
            let over = match before_mut(&mut self.pieces, at) {
                Some((start, piece)) if at - start < piece.len() as u64 => {
                    let from = (at - start) as usize;
                    let high = end.min(start + piece.len() as u64);
                    piece[from..from + (high - at) as usize].copy_from_slice(part(at, high));
                    high
                }
                _ => at,
            };
            if over > at {
                at = over;
                continue;
            }
            let next = self.pieces.range(at..).next().map_or(end, |(start, _)| end.min(*start));
            self.append(pool, at, part(at, next));
            new += next - at;
            at = next;
        }
        self.bytes += new;
        new
    }

    /// Puts sectors where none wait.
    fn append(&mut self, pool: &BufferPool, mut offset: u64, mut data: &[u8]) {
        if let Some((start, piece)) = before_mut(&mut self.pieces, offset)
            && start + piece.len() as u64 == offset
            && piece.len() < PIECE_BYTES
        {
            let take = data.len().min(PIECE_BYTES - piece.len());
            if piece.capacity() - piece.len() < take && piece.len() + take > PIECE_BYTES / 8 {
                // The file is being written in order. Move the piece to a buffer of full size, so
                // that it moves only once.
                let mut large = pool.take();
                large.extend_from_slice(piece);
                *piece = large;
            }
            piece.extend_from_slice(&data[..take]);
            offset += take as u64;
            data = &data[take..];
        }
        for chunk in data.chunks(PIECE_BYTES) {
            let piece = if chunk.len() > PIECE_BYTES / 8 {
                let mut large = pool.take();
                large.extend_from_slice(chunk);
                large
            } else {
                chunk.to_vec()
            };
            self.pieces.insert(offset, piece);
            offset += chunk.len() as u64;
        }
    }

    /// Writes into sectors that wait already.
    pub(crate) fn patch(&mut self, offset: u64, data: &[u8]) {
        let (start, piece) =
            before_mut(&mut self.pieces, offset).expect("the caller saw the sector wait");
        let from = (offset - start) as usize;
        piece[from..from + data.len()].copy_from_slice(data);
    }

    /// Takes whole pieces inside `range` for writing, in runs, up to `limit` bytes.
    pub(crate) fn take(&mut self, range: Range<u64>, limit: u64) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut taken = 0;
        let first = before(&self.pieces, range.start)
            .filter(|(start, piece)| start + piece.len() as u64 > range.start)
            .map_or(range.start, |(start, _)| start);
        let starts: Vec<u64> =
            self.pieces.range(first..range.end).map(|(start, _)| *start).collect();
        for start in starts {
            if taken >= limit {
                break;
            }
            let piece = Arc::new(self.pieces.remove(&start).expect("its start was just listed"));
            let len = piece.len() as u64;
            taken += len;
            self.writing.insert(start, Arc::clone(&piece));
            match runs.last_mut() {
                Some(run) if run.end() == start => {
                    run.pieces.push(piece);
                    run.len += len;
                }
                _ => runs.push(Run { offset: start, pieces: vec![piece], len, unreserved: None }),
            }
        }
        for run in &mut runs {
            run.unreserved = self.unmark_in_place(run.offset..run.end());
        }
        let pieces: usize = runs.iter().map(|run| run.pieces.len()).sum();
        self.splits = self.splits.saturating_sub(pieces as u32);
        self.note_gone();
        self.bytes -= taken;
        self.writing_bytes += taken;
        runs
    }

    /// Forgets a run that was being written, with extents or without. Returns its length.
    pub(crate) fn end_writeback(&mut self, run: &Run) -> u64 {
        let mut at = run.offset;
        for piece in &run.pieces {
            self.writing.remove(&at);
            self.unwritten.remove(&at);
            at += piece.len() as u64;
        }
        self.writing_bytes -= run.len;
        run.len
    }

    /// Records that a run has its extents before its data is written.
    pub(crate) fn note_extents(&mut self, run: &Run) {
        let mut at = run.offset;
        for piece in &run.pieces {
            self.writing.remove(&at);
            self.unwritten.insert(at, Arc::clone(piece));
            at += piece.len() as u64;
        }
    }

    /// Whether extents have data that is still to be written.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Returns the start of the first piece that ends after `offset` and has no extent yet. Data
    /// in `unwritten` has extents, so it does not count.
    pub(crate) fn first_ending_after(&self, offset: u64) -> Option<u64> {
        let pieces = first_ending_after(&self.pieces, offset, Vec::len);
        let writing = first_ending_after(&self.writing, offset, |piece| piece.len());
        pieces.into_iter().chain(writing).min()
    }

    /// Returns the first range at or after `offset` that waits or is being written.
    pub(crate) fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        let ranges = |low: u64, len: usize| low..low + len as u64;
        let piece = ending_after(&self.pieces, offset, Vec::len).map(|(s, l)| ranges(s, l));
        let writing = ending_after(&self.writing, offset, |p| p.len()).map(|(s, l)| ranges(s, l));
        piece.into_iter().chain(writing).min_by_key(|range| range.start)
    }

    /// Forgets whole sectors in `range`. Returns the number of forgotten bytes.
    pub(crate) fn forget(&mut self, range: Range<u64>) -> u64 {
        let mut gone = 0;
        if let Some((start, piece)) = before(&self.pieces, range.start)
            && start < range.start
            && start + piece.len() as u64 > range.start
        {
            let mut head = self.pieces.remove(&start).expect("it was just found");
            let tail = head.split_off((range.start - start) as usize);
            self.pieces.insert(start, head);
            self.pieces.insert(range.start, tail);
        }
        let starts: Vec<u64> = self.pieces.range(range.clone()).map(|(start, _)| *start).collect();
        for start in starts {
            let mut piece = self.pieces.remove(&start).expect("its start was just listed");
            let end = start + piece.len() as u64;
            if end > range.end {
                let tail = piece.split_off((range.end - start) as usize);
                self.pieces.insert(range.end, tail);
            }
            gone += piece.len() as u64;
        }
        self.note_gone();
        self.bytes -= gone;
        gone
    }

    /// Resets `inline` when the first sector no longer waits, and `splits` when no piece waits.
    fn note_gone(&mut self) {
        if !self.is_dirty_at(0) {
            self.inline = 0;
        }
        if self.pieces.is_empty() {
            self.splits = 0;
        }
    }
}

fn before<V>(map: &BTreeMap<u64, V>, offset: u64) -> Option<(u64, &V)> {
    map.range(..=offset).next_back().map(|(start, value)| (*start, value))
}

fn before_mut<V>(map: &mut BTreeMap<u64, V>, offset: u64) -> Option<(u64, &mut V)> {
    map.range_mut(..=offset).next_back().map(|(start, value)| (*start, value))
}

fn ending_after<V>(
    map: &BTreeMap<u64, V>,
    offset: u64,
    len: impl Fn(&V) -> usize,
) -> Option<(u64, usize)> {
    before(map, offset)
        .filter(|(start, value)| start + len(value) as u64 > offset)
        .or_else(|| map.range(offset..).next().map(|(start, value)| (*start, value)))
        .map(|(start, value)| (start, len(value)))
}

fn in_range<V>(map: &BTreeMap<u64, V>, range: &Range<u64>, len: impl Fn(&V) -> usize) -> usize {
    let reaches = |(start, value): &(u64, &V)| start + len(value) as u64 > range.start;
    let before = before(map, range.start).filter(|found| found.0 < range.start && reaches(found));
    usize::from(before.is_some()) + map.range(range.clone()).count()
}

fn first_ending_after<V>(
    map: &BTreeMap<u64, V>,
    offset: u64,
    len: impl Fn(&V) -> usize,
) -> Option<u64> {
    ending_after(map, offset, len).map(|(start, _)| start)
}

/// Copies the parts of `range` that `map` has, and lists the parts that it lacks.
fn overlay<V>(
    map: &BTreeMap<u64, V>,
    bytes: impl Fn(&V) -> &[u8],
    range: Range<u64>,
    offset: u64,
    buf: &mut [u8],
    gaps: &mut Vec<Range<u64>>,
) {
    let first = before(map, range.start).map_or(range.start, |(start, _)| start);
    let mut at = range.start;
    for (start, value) in map.range(first..range.end) {
        let data = bytes(value);
        let (low, high) = ((*start).max(at), (start + data.len() as u64).min(range.end));
        if low >= high {
            continue;
        }
        if at < low {
            gaps.push(at..low);
        }
        buf[(low - offset) as usize..(high - offset) as usize]
            .copy_from_slice(&data[(low - start) as usize..(high - start) as usize]);
        at = high;
    }
    if at < range.end {
        gaps.push(at..range.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P1, P3: a sector that is written again during writeback shows the newer bytes, and its
    /// neighbours show the older ones.
    #[test]
    fn newer_bytes_win() {
        let (mut dirty, pool) = (Dirty::default(), BufferPool::new());
        assert_eq!(dirty.put(&pool, 0, &[1; 12288]), 12288);
        let runs = dirty.take(0..u64::MAX, u64::MAX);
        assert_eq!(runs.len(), 1);
        assert_eq!(dirty.put(&pool, 4096, &[2; 4096]), 4096);
        let mut buf = vec![9; 16384];
        let mut gaps = Vec::new();
        dirty.copy_out(0, &mut buf, &mut gaps);
        assert_eq!(gaps.as_slice(), std::slice::from_ref(&(12288..16384)));
        assert!(buf[..4096].iter().all(|b| *b == 1));
        assert!(buf[4096..8192].iter().all(|b| *b == 2));
        assert!(buf[8192..12288].iter().all(|b| *b == 1));
        assert_eq!(dirty.end_writeback(&runs[0]), 12288);
        assert_eq!(dirty.bytes(), 4096);
    }

    /// P1: forgetting the middle of a piece leaves its two ends.
    #[test]
    fn forgetting_splits() {
        let (mut dirty, pool) = (Dirty::default(), BufferPool::new());
        dirty.put(&pool, 0, &[1; 5 * 4096]);
        assert_eq!(dirty.forget(4096..8192), 4096);
        assert!(dirty.is_dirty_at(0) && !dirty.is_dirty_at(4096) && dirty.is_dirty_at(8192));
        assert_eq!(dirty.missing(0..5 * 4096), 4096);
        assert_eq!(dirty.put(&pool, 0, &[3; 5 * 4096]), 4096);
        assert_eq!(dirty.bytes(), 5 * 4096);
    }
}
