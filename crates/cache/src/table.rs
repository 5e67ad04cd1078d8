//! The entries of all slots in memory, as the device has them or will have them after a flush.
//!
//! # Invariants
//!
//! - **E1** A slot's sector changes only while its epoch is all ones, and its epoch is set after
//!   the sector. So no written page holds an old epoch with a new sector.
//! - **E2** A page is dirty if its entries changed since it was last written.
//!
//! # Locks
//!
//! The table has no lock: an entry is a pair of atomics. The caller of [`Table::render`] has the
//! lock of metadata writes, so one thread at a time renders. Freeing a slot for reuse needs that
//! lock as well. Without it, a slot could be freed and reused during a rendering, which would break
//! E1.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::layout::{ENTRY_LEN, Geometry, HEADER_LEN, RawEntry, SECTOR};
use crate::units::{Epoch, OriginBlock, Slot};

/// The unit in which the table is written.
pub(crate) const PAGE: u64 = 4096;

#[derive(Debug)]
pub(crate) struct Table {
    geometry: Geometry,
    entries: Box<[Entry]>,
    /// One bit for each page, set if the page is dirty (E2).
    dirty: Box<[AtomicU64]>,
}

#[derive(Debug)]
struct Entry {
    sector: AtomicU64,
    epoch: AtomicU64,
}

impl Table {
    /// Creates a table in which all slots are free and all pages are clean.
    pub(crate) fn new(geometry: Geometry) -> Self {
        let free = || Entry { sector: AtomicU64::new(u64::MAX), epoch: AtomicU64::new(u64::MAX) };
        let pages = geometry.data_start().div_ceil(PAGE).div_ceil(64);
        Self {
            geometry,
            entries: (0..geometry.slots()).map(|_| free()).collect(),
            dirty: (0..pages).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Sets an entry that was found on the device.
    pub(crate) fn load(&mut self, slot: Slot, entry: RawEntry) {
        let cell = &mut self.entries[slot.0 as usize];
        *cell.sector.get_mut() = entry.sector;
        *cell.epoch.get_mut() = entry.epoch.0;
    }

    /// Assigns a free slot to a block.
    pub(crate) fn set(&self, slot: Slot, block: OriginBlock, epoch: Epoch) {
        let cell = &self.entries[slot.0 as usize];
        let before = cell.epoch.load(Ordering::Relaxed);
        assert_eq!(before, Epoch::FREE.0, "E1: slot {slot} is taken");
        let sector = block.0 * (self.geometry.block_size() / SECTOR);
        cell.sector.store(sector, Ordering::Relaxed);
        cell.epoch.store(epoch.0, Ordering::Release);
        self.mark_dirty(slot);
    }

    /// Marks a slot free. The slot may be reused only when the mark is durable.
    pub(crate) fn free(&self, slot: Slot) {
        self.entries[slot.0 as usize].epoch.store(Epoch::FREE.0, Ordering::Release);
        self.mark_dirty(slot);
    }

    fn mark_dirty(&self, slot: Slot) {
        let page = (HEADER_LEN as u64 + u64::from(slot.0) * ENTRY_LEN as u64) / PAGE;
        self.mark_page_dirty(page);
    }

    fn mark_page_dirty(&self, page: u64) {
        self.dirty[(page / 64) as usize].fetch_or(1 << (page % 64), Ordering::AcqRel);
    }

    /// Marks the page of the superblock dirty.
    pub(crate) fn mark_header_dirty(&self) {
        self.mark_page_dirty(0);
    }

    /// Marks everything dirty.
    pub(crate) fn mark_all_dirty(&self) {
        for page in 0..self.geometry.data_start().div_ceil(PAGE) {
            self.mark_page_dirty(page);
        }
    }

    /// Returns the dirty pages as runs of at most `max` bytes each, and marks them clean.
    pub(crate) fn take_dirty(&self, max: u64) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let end = self.geometry.data_start();
        for (index, word) in self.dirty.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let page = index as u64 * 64 + u64::from(bits.trailing_zeros());
                bits &= bits - 1;
                let range = page * PAGE..((page + 1) * PAGE).min(end);
                match runs.last_mut() {
                    Some(last) if last.end == range.start && range.end - last.start <= max => {
                        last.end = range.end;
                    }
                    _ => runs.push(range),
                }
            }
        }
        runs
    }

    /// Returns the bytes of `range` for the device. `header` is the superblock, which is at the
    /// front. The space after the last entry is zero.
    pub(crate) fn render(&self, range: Range<u64>, header: &[u8; HEADER_LEN]) -> Vec<u8> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let mut at = range.start;
        let mut out = &mut bytes[..];
        if at == 0 {
            out[..HEADER_LEN].copy_from_slice(header);
            out = &mut out[HEADER_LEN..];
            at = HEADER_LEN as u64;
        }
        let first = ((at - HEADER_LEN as u64) / ENTRY_LEN as u64) as usize;
        let entries = self.entries.get(first..).unwrap_or_default();
        for (cell, place) in entries.iter().zip(out.chunks_exact_mut(ENTRY_LEN)) {
            // The epoch is read before the sector (E1).
            let epoch = Epoch(cell.epoch.load(Ordering::Acquire));
            let sector = cell.sector.load(Ordering::Relaxed);
            place.copy_from_slice(&RawEntry { sector, epoch }.to_bytes());
        }
        bytes
    }
}
