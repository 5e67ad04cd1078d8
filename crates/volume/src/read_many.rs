//! Reads several ranges with as few waits as the devices allow.
//!
//! # Invariants
//!
//! - **M1** The answers are the same as those of single reads. Where a batch fails, single reads
//!   are made.
//! - **M2** Batches are made only where devices gain by them. On other devices no failed batch is
//!   repeated by single reads, and every request is counted once.

use std::ops::Range;
use std::sync::Arc;

use buttress_base::activity::{self, Cause};
use buttress_block::Read;
use buttress_format::{Extent, Logical};

use crate::device::VolumeDevice;
use crate::error::Error;
use crate::volume::Volume;

/// The most bytes that [`Volume::read_soon`] reads in advance.
pub const SOON_MAX: u64 = 4 << 20;

/// The reads of one device.
type Reads<'b> = (Arc<VolumeDevice>, Vec<Read<'b>>);

impl Volume {
    /// Reads one copy of several ranges, each as [`Volume::read_mirror`] does. The answers are in
    /// the order of the ranges. Each device is asked for all of its parts at once.
    pub fn read_mirror_many(
        &self,
        wants: &mut [(Logical, &mut [u8])],
        mirror: u32,
    ) -> Vec<Result<(), Error>> {
        if wants.len() > 1 && self.gains_by_batches() {
            let each = wants.iter_mut().map(|(at, buf)| (*at, &mut **buf, mirror));
            if self.read_at_once(each) {
                return wants.iter().map(|_| Ok(())).collect();
            }
        }
        wants.iter_mut().map(|(at, buf)| self.read_mirror(*at, buf, mirror)).collect()
    }

    /// Reads in advance ranges that callers will read one by one. Reads only if some device answers
    /// several reads in the time of one. A failure is ignored, since the reads of the callers will
    /// find it.
    pub fn read_soon(&self, extents: &[Extent]) {
        if extents.len() < 2 || !self.gains_by_batches() {
            return;
        }
        let mut room = SOON_MAX;
        let fits = |extent: &&Extent| {
            let is_first = room >= extent.len;
            room = room.saturating_sub(extent.len);
            is_first
        };
        let extents: Vec<_> = extents.iter().take_while(fits).collect();
        let mut bufs: Vec<Vec<u8>> = extents.iter().map(|e| vec![0; e.len as usize]).collect();
        let places = extents.iter().map(|extent| extent.start);
        self.read_at_once(places.zip(&mut bufs).map(|(at, buf)| (at, &mut buf[..], 0)));
    }

    /// Reads all copies of ranges in advance, as [`Volume::read_soon`] reads the first copies. The
    /// caller ensures that all these copies together have at most [`SOON_MAX`] bytes.
    pub fn read_copies_soon(&self, extents: &[Extent]) {
        if !self.gains_by_batches() {
            return;
        }
        let copies: Vec<(Extent, u32)> = extents
            .iter()
            .flat_map(|extent| (0..self.mirrors(extent.start)).map(|mirror| (*extent, mirror)))
            .collect();
        let mut bufs: Vec<Vec<u8>> = copies.iter().map(|(e, _)| vec![0; e.len as usize]).collect();
        let each = copies.iter().zip(&mut bufs);
        self.read_at_once(
            each.map(|((extent, mirror), buf)| (extent.start, &mut buf[..], *mirror)),
        );
    }

    /// How many bytes ahead of a sequential reader a caller should say by [`Volume::expect`] what
    /// comes. Zero if no device gains by it.
    #[must_use]
    pub fn ahead_bytes(&self) -> u64 {
        let each = self.devices().iter().map(|device| device.device.ahead_bytes()).max();
        each.unwrap_or(0)
    }

    /// Says which extents a reader will probably ask for soon, in this order. Returns at once. The
    /// devices may read the first copies of all, of a part, or of none.
    pub fn expect(&self, extents: &[Extent]) {
        let mut all: Vec<(Arc<VolumeDevice>, Vec<Range<u64>>)> = Vec::new();
        for extent in extents {
            let map = self.map_of(*extent);
            let (mut at, end) = (extent.start, extent.end());
            while at < end {
                let Ok(entry) = map.find(at) else { break };
                let piece = entry.piece(at, end.0 - at.0);
                if entry.layout.has_parity() {
                    break;
                }
                let Ok(place) = self.place(entry, &piece, at, 0) else { break };
                let range = place.offset..place.offset + piece.len;
                match all.iter_mut().find(|(device, _)| device.id == place.device.id) {
                    Some((_, ranges)) => ranges.push(range),
                    None => all.push((Arc::clone(place.device), vec![range])),
                }
                at = at.end(piece.len);
            }
        }
        all.iter().for_each(|(device, ranges)| device.device.expect(ranges));
    }

    /// Whether some device answers several reads in the time of one (M2).
    #[must_use]
    pub fn gains_by_batches(&self) -> bool {
        self.devices().iter().any(|device| device.device.reads_at_once())
    }

    /// Reads copies of ranges, or returns false if single reads have to do it (M1).
    fn read_at_once<'b>(&self, wants: impl Iterator<Item = (Logical, &'b mut [u8], u32)>) -> bool {
        let mut all: Vec<Reads<'b>> = Vec::new();
        for (at, buf, mirror) in wants {
            if !self.divide(at, buf, mirror, &mut all) {
                return false;
            }
        }
        for (device, reads) in &mut all {
            let _waiting = activity::wait(Cause::DeviceRead);
            if device.device.read_many(reads).is_err() {
                // The single reads that follow are counted instead.
                return false;
            }
            reads.iter().for_each(|read| self.counters.read(read.buf.len() as u64));
        }
        true
    }

    /// Divides a range into the reads of its devices. Returns false for a range that is rebuilt
    /// from parity, or that lacks the copy `mirror`.
    fn divide<'b>(
        &self,
        at: Logical,
        buf: &'b mut [u8],
        mirror: u32,
        all: &mut Vec<Reads<'b>>,
    ) -> bool {
        let map = self.map_of(Extent::new(at, buf.len() as u64));
        let mut at = at;
        let mut rest = buf;
        while !rest.is_empty() {
            let Ok(entry) = map.find(at) else { return false };
            if entry.layout.has_parity() {
                return false;
            }
            let piece = entry.piece(at, rest.len() as u64);
            let Ok(place) = self.place(entry, &piece, at, mirror) else { return false };
            let (part, after) = rest.split_at_mut(piece.len as usize);
            let read = Read { offset: place.offset, buf: part };
            match all.iter_mut().find(|(device, _)| device.id == place.device.id) {
                Some((_, reads)) => reads.push(read),
                None => all.push((Arc::clone(place.device), vec![read])),
            }
            rest = after;
            at = at.end(piece.len);
        }
        true
    }
}
