//! Buffered writes: bytes become dirty sectors with reserved space. No data is written to a device.
//!
//! # Place
//!
//! A write is planned under the locks of the item and of the dirty map. The plan lists missing
//! content and reservations. The writer acquires the content and the reservations without the
//! locks, and plans again. A plan that lacks nothing is applied under the same locks.
//!
//! # Invariants
//!
//! - **W1** A full disk is reported here, not when the data is written back. A sector becomes dirty
//!   only after two reservations: its data space, and the metadata that will make it visible
//!   ([`crate::placement`]).
//! - **W2** A partly written sector is read first if the write keeps some of its bytes below the
//!   file's length. Bytes past the file's length count as zeros, whatever the disk holds.
//! - **W3** A file may grow past the sector of its last byte. In that case the bytes of the sector
//!   after the old length become zero. An inline extent also becomes dirty, so that writeback makes
//!   a regular extent of it.

use std::ops::Range;

use buttress_base::RankedGuard;
use buttress_format::{InodeFlags, InodeItem};
use buttress_txn::MetaReservation;

use crate::dirty::Dirty;
use crate::error::{Error, Result};
use crate::file::{File, Meta};
use crate::files::Files;
use crate::packing::PACKED_PER_PIECE;
use crate::placement::{PieceBounds, ReclaimEffort, Reservation, Shortfall, join};

/// Largest length of a file. Offsets are signed in all layers above.
pub(crate) const SIZE_MAX: u64 = i64::MAX as u64 & !0xfff;

/// A sector that is written in part, and its old content.
struct Edge {
    sector: u64,
    content: Option<Vec<u8>>,
}

/// The content and reservation that a write lacks before it can be put into memory.
#[derive(Default)]
struct Missing {
    /// Indexes of the edges with content that must be read.
    content: Vec<usize>,
    reservation: Option<Shortfall>,
}

impl Missing {
    fn is_nothing(&self) -> bool {
        self.content.is_empty() && self.reservation.is_none()
    }
}

/// A write that is not in memory yet.
struct Writing<'w> {
    file: &'w File,
    /// The end of the write, and the file's length before it.
    end: u64,
    old_size: u64,
    /// The whole sectors that the write touches.
    range: Range<u64>,
    edges: Vec<Edge>,
    reservation: Reservation<'w>,
    effort: ReclaimEffort,
}

impl Files {
    /// Writes all of `data` at `offset` into memory; `stamp` sets the times in the same step.
    ///
    /// The caller keeps other threads from changing the file's length or content meanwhile.
    ///
    /// # Errors
    ///
    /// No space (W1), [`Error::TooBig`], or an error from reading a partly written sector.
    pub fn write(
        &self,
        file: &File,
        offset: u64,
        data: &[u8],
        effort: ReclaimEffort,
        stamp: impl FnOnce(&mut InodeItem),
    ) -> Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= SIZE_MAX);
        let end = end.ok_or(Error::TooBig)?;
        if data.is_empty() {
            return Ok(());
        }
        let old_size = file.size();
        if self.params.floor(offset) > self.params.floor(old_size) {
            self.secure_tail(file, old_size)?;
        }
        let mut writing = Writing {
            file,
            end,
            old_size,
            range: self.params.floor(offset)..self.params.ceil(end),
            edges: self.edges(offset, end, old_size),
            reservation: Reservation::default(),
            effort,
        };
        loop {
            let meta = file.meta();
            let dirty = file.dirty.lock();
            let missing = self.plan_write(&mut writing, &meta, &dirty);
            if missing.is_nothing() {
                self.apply_write(writing, (offset, data), meta, dirty, stamp);
                return Ok(());
            }
            drop(dirty);
            drop(meta);
            self.acquire_for_write(&mut writing, missing)?;
        }
    }

    /// Reads missing content and reserves missing space. The caller holds none of the locks of the
    /// plan.
    fn acquire_for_write(&self, writing: &mut Writing<'_>, missing: Missing) -> Result<()> {
        for index in missing.content {
            let sector = writing.edges[index].sector;
            let content = self.load_sector(writing.file, sector, writing.old_size)?;
            writing.edges[index].content = Some(content);
        }
        let Some(shortfall) = missing.reservation else { return Ok(()) };
        let Writing { file, range, reservation, effort, .. } = writing;
        self.placement.acquire(reservation, file, range, shortfall, *effort)
    }

    /// Puts the bytes into memory, and changes the item in the same step.
    fn apply_write(
        &self,
        writing: Writing<'_>,
        (offset, data): (u64, &[u8]),
        mut meta: RankedGuard<'_, Meta>,
        mut dirty: RankedGuard<'_, Dirty>,
        stamp: impl FnOnce(&mut InodeItem),
    ) {
        let Writing { file, end, range, mut edges, reservation, .. } = writing;
        let claim = self.placement.keep_reservation(file, &mut dirty, &range, reservation);
        let new = self.store(&mut dirty, offset, data, &mut edges);
        drop(dirty);
        self.counters.count_dirty(new);
        meta.item.size = meta.item.size.max(end);
        stamp(&mut meta.item);
        drop(meta);
        drop(claim);
    }

    /// The sectors at both ends of a write that the write covers only in part.
    fn edges(&self, offset: u64, end: u64, old_size: u64) -> Vec<Edge> {
        let mut edges = Vec::new();
        let (head, tail) = (self.params.floor(offset), self.params.floor(end));
        let mut edge = |sector: u64| {
            // The write covers all live bytes of the sector, so the sector need not be read.
            let covers = offset <= sector && end >= old_size;
            let blank =
                (covers || sector >= old_size).then(|| vec![0; self.params.sector as usize]);
            edges.push(Edge { sector, content: blank });
        };
        if head < offset {
            edge(head);
        }
        if tail < end && (tail > head || head == offset) {
            edge(tail);
        }
        edges
    }

    /// Returns the content and reservation that a write lacks. The item and the dirty map are
    /// locked.
    fn plan_write(&self, writing: &mut Writing<'_>, meta: &Meta, dirty: &Dirty) -> Missing {
        let Writing { range, edges, reservation, end, .. } = writing;
        let mut content = Vec::new();
        for (index, edge) in edges.iter_mut().enumerate() {
            if edge.content.is_some() || dirty.is_dirty_at(edge.sector) {
                continue;
            }
            match dirty.in_writeback(edge.sector, self.params.sector as usize) {
                Some(bytes) => edge.content = Some(bytes.to_vec()),
                None => content.push(index),
            }
        }
        let packs = self.params.choice(meta.item.flags, meta.codec).is_some();
        // Content that may become inline needs metadata, too, even if it lies in an extent now.
        let inline = self.params.inline_bytes(meta, (*end).max(meta.item.size));
        // Preallocated extents may lie past the length.
        let prealloc = meta.item.flags & InodeFlags::PREALLOC != 0;
        let disk_end = if prealloc {
            u64::MAX
        } else {
            self.params.ceil(meta.disk_size.max(meta.ordered_end))
        };
        // The sectors at the ends become separate pieces.
        let extra =
            if range.end - range.start > self.params.sector { edges.len() as u32 } else { 0 };
        let each = if packs { PACKED_PER_PIECE } else { 1 };
        let size = PieceBounds { extra, each, inline };
        let reservation = self.placement.shortfall(reservation, dirty, range, disk_end, size);
        Missing { content, reservation }
    }

    fn store(&self, dirty: &mut Dirty, offset: u64, data: &[u8], edges: &mut [Edge]) -> u64 {
        let end = offset + data.len() as u64;
        let mut new = 0;
        let (mut low, mut high) = (offset, end);
        for edge in edges {
            let (from, to) = (offset.max(edge.sector), end.min(edge.sector + self.params.sector));
            let part = &data[(from - offset) as usize..(to - offset) as usize];
            if dirty.is_dirty_at(edge.sector) {
                dirty.patch(from, part);
            } else {
                let content = edge.content.as_mut().expect("what lacked was loaded");
                let at = (from - edge.sector) as usize;
                content[at..at + part.len()].copy_from_slice(part);
                new += dirty.put(&self.pool, edge.sector, content);
            }
            if edge.sector <= low {
                low = to;
            } else {
                high = edge.sector;
            }
        }
        if low < high {
            new += dirty.put(
                &self.pool,
                low,
                &data[(low - offset) as usize..(high - offset) as usize],
            );
        }
        new
    }

    /// Reads a sector from its extents, with zeros past the file's length (W2).
    fn load_sector(&self, file: &File, sector: u64, size: u64) -> Result<Vec<u8>> {
        let mut content = vec![0; self.params.sector as usize];
        let _extents = file.extents.read();
        let view = self.engine.view();
        self.reader.read_extents(&view, file, sector..sector + self.params.sector, &mut content)?;
        if size < sector + self.params.sector {
            content[size.saturating_sub(sector) as usize..].fill(0);
        }
        Ok(content)
    }

    /// Prepares a file that is about to grow past the sector of its last byte (W3).
    pub(crate) fn secure_tail(&self, file: &File, old_size: u64) -> Result<()> {
        let sector = self.params.floor(old_size);
        if sector == old_size {
            return Ok(());
        }
        {
            let dirty = file.dirty.lock();
            let sector_len = self.params.sector as usize;
            let leaves = dirty.in_writeback(sector, sector_len).is_some();
            // The sector is in memory and its tail is zero, so writeback writes zeros
            // (`dirty::P4`). One case needs more: writeback may be making an inline extent of the
            // first sector. In that case the sector must become dirty again (W3).
            if dirty.is_dirty_at(sector) || (leaves && sector > 0) {
                return Ok(());
            }
            if !leaves {
                drop(dirty);
                let _extents = file.extents.read();
                let view = self.engine.view();
                let there =
                    self.params.mappings(&view, file, sector..sector + self.params.sector, 1)?;
                if there.iter().all(|mapping| mapping.is_hole() || mapping.is_prealloc()) {
                    return Ok(());
                }
            }
        }
        self.dirty_sector(file, sector, old_size)
    }

    /// Makes a sector dirty without changing its content.
    pub(crate) fn dirty_sector(&self, file: &File, sector: u64, size: u64) -> Result<()> {
        let mut writing = Writing {
            file,
            end: size,
            old_size: size,
            range: sector..sector + self.params.sector,
            edges: vec![Edge { sector, content: None }],
            reservation: Reservation::default(),
            effort: ReclaimEffort::Last,
        };
        loop {
            let meta = file.meta();
            let mut dirty = file.dirty.lock();
            if dirty.is_dirty_at(sector) {
                return Ok(());
            }
            let missing = self.plan_write(&mut writing, &meta, &dirty);
            if missing.is_nothing() {
                let Writing { range, edges, reservation, .. } = writing;
                let claim = self.placement.keep_reservation(file, &mut dirty, &range, reservation);
                let content = edges[0].content.as_ref().expect("what lacked was loaded");
                let new = dirty.put(&self.pool, sector, content);
                self.counters.count_dirty(new);
                drop(dirty);
                drop(meta);
                drop(claim);
                return Ok(());
            }
            drop(dirty);
            drop(meta);
            self.acquire_for_write(&mut writing, missing)?;
        }
    }

    /// Writes zeros over a part of one sector, unless it reads as zeros already.
    pub(crate) fn zero_part(&self, file: &File, range: Range<u64>) -> Result<()> {
        let sector = self.params.floor(range.start);
        let waits = {
            let dirty = file.dirty.lock();
            dirty.is_dirty_at(sector)
                || dirty.in_writeback(sector, self.params.sector as usize).is_some()
        };
        if !waits {
            let _extents = file.extents.read();
            let view = self.engine.view();
            let there =
                self.params.mappings(&view, file, sector..sector + self.params.sector, 1)?;
            if there.iter().all(|mapping| mapping.is_hole() || mapping.is_prealloc()) {
                return Ok(());
            }
        }
        let zeros = vec![0; (range.end - range.start) as usize];
        self.write(file, range.start, &zeros, ReclaimEffort::Full, |_| ())
    }

    /// Forgets dirty sectors of `range` and gives their reservation back. `ends` is the reservation
    /// for the ends of a piece that stay dirty ([`Placement::reserve_ends`]).
    pub(crate) fn forget(
        &self,
        dirty: &mut Dirty,
        range: Range<u64>,
        ends: Option<MetaReservation>,
    ) {
        if let Some(ends) = ends {
            join(&mut dirty.metadata, ends);
            dirty.splits += 1;
        }
        let gone = dirty.forget(range.clone());
        if gone == 0 {
            return;
        }
        self.counters.count_clean(gone);
        let in_place = dirty.unmark_in_place(range).map_or(0, |token| token.bytes());
        if dirty.bytes() == 0 {
            dirty.reserved = None;
            dirty.metadata = None;
        } else if let Some(reserved) = &mut dirty.reserved {
            drop(reserved.split(gone - in_place));
        }
    }
}
