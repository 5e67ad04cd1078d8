//! A data object while it is filled, and in its final form.
//!
//! # Format
//!
//! A data object has an envelope, then frames, then extents. A frame is a crc32c and 4096 bytes.
//! The checksum includes the number of the object and of the frame, so a misplaced frame is
//! detected. An extent has 16 bytes: its first sector on the device, and a count of sectors. The
//! highest bit of the count marks a hole. The frames belong to the extents with data, in the same
//! order. Holes have no frames.
//!
//! # Invariants
//!
//! - **G1** A sealed segment never changes. Frames and extents that the local log has are fixed: a
//!   later write of a sector in a fixed frame takes a new frame.
//! - **G2** Applying the extents in order restores the content of the device at the moment of the
//!   seal.

use std::collections::HashMap;
use std::sync::Arc;

use crate::envelope::{self, Envelope, Kind, LEN, VolumeId, damaged};
use crate::error::Result;
use crate::spare::Spare;
use crate::units::{ObjectNumber, SECTOR, Sector};

/// Bytes of a frame.
pub(crate) const FRAME: usize = 4 + SECTOR as usize;
pub(crate) const EXTENT: usize = 16;
const HOLE: u64 = 1 << 63;

/// A run of sectors of the device, in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) first: Sector,
    pub(crate) count: u64,
    pub(crate) is_hole: bool,
}

/// A data object in memory.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: ObjectNumber,
    /// Envelope and frames; sealing adds the checksums.
    bytes: Vec<u8>,
    extents: Vec<Extent>,
    sectors: u32,
    /// The newest frame of each sector; no entry after a hole.
    newest: HashMap<u64, u32>,
    /// The number of fixed frames, which have their checksums, and the number of fixed extents
    /// (G1).
    fixed_frames: u32,
    fixed_extents: usize,
    /// Gets the memory back.
    spare: Option<Arc<Spare>>,
}

/// The part of a segment that was fixed at one time.
#[derive(Debug)]
pub(crate) struct Fixed {
    pub(crate) first_frame: u32,
    pub(crate) frames: u32,
    pub(crate) extents: Vec<Extent>,
}

/// The size of a data object, as counts that a manifest records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) sectors: u32,
    pub(crate) extents: u32,
}

impl Shape {
    /// The length of the object in bytes.
    pub(crate) fn len(self) -> u64 {
        frame_at(self.sectors) + u64::from(self.extents) * EXTENT as u64
    }
}

/// Where a frame begins in its object.
pub(crate) fn frame_at(frame: u32) -> u64 {
    LEN as u64 + u64::from(frame) * FRAME as u64
}

impl Segment {
    /// A segment without content. Its memory goes back to `spare` at its end.
    pub(crate) fn new(number: ObjectNumber, spare: &Arc<Spare>) -> Self {
        let mut bytes = spare.take();
        bytes.resize(LEN, 0);
        Self::of_parts(number, bytes, Vec::new(), 0).in_memory_of(spare)
    }

    /// The segment, with memory that was taken from `spare` and goes back there.
    pub(crate) fn in_memory_of(mut self, spare: &Arc<Spare>) -> Self {
        self.spare = Some(Arc::clone(spare));
        self
    }

    /// The segment of a reader, which gets no content.
    pub(crate) fn empty(number: ObjectNumber) -> Self {
        Self::of_parts(number, vec![0; LEN], Vec::new(), 0)
    }

    /// A segment of frames that have their checksums. `bytes` begins with room for the envelope.
    pub(crate) fn of_parts(
        number: ObjectNumber,
        bytes: Vec<u8>,
        extents: Vec<Extent>,
        sectors: u32,
    ) -> Self {
        let (fixed_frames, fixed_extents) = (sectors, extents.len());
        let newest = HashMap::new();
        let spare = None;
        Self { number, bytes, extents, sectors, newest, fixed_frames, fixed_extents, spare }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    pub(crate) fn sectors(&self) -> u32 {
        self.sectors
    }

    pub(crate) fn shape(&self) -> Shape {
        Shape { sectors: self.sectors, extents: self.extents.len() as u32 }
    }

    /// Overwrites a sector that was added before, if its newest frame is not fixed.
    pub(crate) fn overwrite(&mut self, sector: Sector, content: &[u8]) -> bool {
        let frame = self.newest.get(&sector.0).copied();
        let Some(frame) = frame.filter(|&frame| frame >= self.fixed_frames) else { return false };
        let at = frame_at(frame) as usize + 4;
        self.bytes[at..at + content.len()].copy_from_slice(content);
        true
    }

    /// Adds one sector, and returns its frame.
    pub(crate) fn push(&mut self, sector: Sector, content: &[u8]) -> u32 {
        let frame = self.sectors;
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(content);
        self.newest.insert(sector.0, frame);
        self.sectors += 1;
        match self.extents[self.fixed_extents..].last_mut() {
            Some(last) if !last.is_hole && last.first.0 + last.count == sector.0 => last.count += 1,
            _ => self.extents.push(Extent { first: sector, count: 1, is_hole: false }),
        }
        frame
    }

    /// Adds a hole.
    pub(crate) fn hole(&mut self, first: Sector, count: u64) {
        if count < self.newest.len() as u64 {
            for sector in first.0..first.0 + count {
                self.newest.remove(&sector);
            }
        } else {
            self.newest.retain(|sector, _| !(first.0..first.0 + count).contains(sector));
        }
        match self.extents[self.fixed_extents..].last_mut() {
            Some(last) if last.is_hole && last.first.0 + last.count == first.0 => {
                last.count += count;
            }
            _ => self.extents.push(Extent { first, count, is_hole: true }),
        }
    }

    /// Reads a frame that is in memory.
    pub(crate) fn read(&self, frame: u32, content: &mut [u8]) -> bool {
        let at = frame_at(frame) as usize + 4;
        let Some(found) = self.bytes.get(at..at + content.len()) else { return false };
        content.copy_from_slice(found);
        true
    }

    /// Fixes all frames and extents so far, and returns the newly fixed ones (G1).
    pub(crate) fn fix(&mut self) -> Fixed {
        let first_frame = self.fixed_frames;
        for frame in first_frame..self.sectors {
            let at = frame_at(frame) as usize;
            let crc = frame_crc(self.number, frame, &self.bytes[at + 4..at + FRAME]);
            self.bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        }
        let extents = self.extents[self.fixed_extents..].to_vec();
        self.fixed_frames = self.sectors;
        self.fixed_extents = self.extents.len();
        Fixed { first_frame, frames: self.sectors - first_frame, extents }
    }

    /// Frames with their checksums.
    pub(crate) fn frames(&self, first: u32, count: u32) -> &[u8] {
        &self.bytes[frame_at(first) as usize..frame_at(first + count) as usize]
    }

    /// All extents, in their order.
    pub(crate) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Finishes the object: adds checksums, extents and envelope (G1).
    pub(crate) fn seal(&mut self, volume: VolumeId, epoch: u32) {
        self.fix();
        let tail = self.bytes.len();
        self.bytes.extend_from_slice(&encode_extents(&self.extents));
        let envelope = Envelope {
            version: envelope::VERSION,
            kind: Kind::Data,
            len: self.bytes.len() as u64,
            volume,
            number: self.number.0,
            epoch,
            sectors: self.sectors,
            extents: self.extents.len() as u32,
            body_crc: crc_fast::crc32_iscsi(&self.bytes[tail..]),
        };
        self.bytes[..LEN].copy_from_slice(&envelope.encode());
        self.newest = HashMap::new();
        self.give_room_back();
    }

    /// A small segment moves to memory of its size. It may wait for long to be sent, with others.
    fn give_room_back(&mut self) {
        if self.bytes.len() < self.bytes.capacity() / 2
            && let Some(spare) = &self.spare
        {
            let small = self.bytes.as_slice().into();
            spare.exchange(std::mem::replace(&mut self.bytes, small));
        }
    }

    /// The checksum of the extents, once sealed.
    pub(crate) fn extents_crc(&self) -> u32 {
        envelope::u32_at(&self.bytes, 60)
    }

    /// The whole object, once sealed.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if let Some(spare) = &self.spare {
            spare.put(std::mem::take(&mut self.bytes));
        }
    }
}

/// Extents as bytes.
pub(crate) fn encode_extents(extents: &[Extent]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(extents.len() * EXTENT);
    for extent in extents {
        let count = extent.count | if extent.is_hole { HOLE } else { 0 };
        bytes.extend_from_slice(&extent.first.0.to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
    }
    bytes
}

fn frame_crc(number: ObjectNumber, frame: u32, content: &[u8]) -> u32 {
    let seed = crc_fast::crc32_iscsi(content);
    let mut place = [0; 16];
    place[..4].copy_from_slice(&seed.to_le_bytes());
    place[4..8].copy_from_slice(&frame.to_le_bytes());
    place[8..].copy_from_slice(&number.0.to_le_bytes());
    crc_fast::crc32_iscsi(&place)
}

/// Checks a run of frames, and copies their content into `to`.
pub(crate) fn unframe(
    name: &str,
    number: ObjectNumber,
    first: u32,
    frames: &[u8],
    to: &mut [u8],
) -> Result<()> {
    let pairs = frames.chunks_exact(FRAME).zip(to.chunks_exact_mut(SECTOR as usize));
    for (frame, (raw, content)) in (first..).zip(pairs) {
        if frame_crc(number, frame, &raw[4..]) != envelope::u32_at(raw, 0) {
            return Err(damaged(name, format!("the checksum of frame {frame} is wrong")));
        }
        content.copy_from_slice(&raw[4..]);
    }
    Ok(())
}

/// Says whether the checksums of a run of frames are right.
pub(crate) fn are_whole(number: ObjectNumber, first: u32, frames: &[u8]) -> bool {
    let mut pairs = (first..).zip(frames.chunks_exact(FRAME));
    pairs.all(|(frame, raw)| frame_crc(number, frame, &raw[4..]) == envelope::u32_at(raw, 0))
}

/// The range of the extents in an object of this shape.
pub(crate) fn tail(shape: Shape) -> std::ops::Range<u64> {
    frame_at(shape.sectors)..shape.len()
}

/// Extents from bytes, without a check.
pub(crate) fn decode_extents(bytes: &[u8]) -> Vec<Extent> {
    let each = |raw: &[u8]| {
        let count = envelope::u64_at(raw, 8);
        let first = Sector(envelope::u64_at(raw, 0));
        Extent { first, count: count & !HOLE, is_hole: count & HOLE != 0 }
    };
    bytes.chunks_exact(EXTENT).map(each).collect()
}

/// Reads the extents of a data object from its tail, and checks them against `crc`.
pub(crate) fn extents(name: &str, shape: Shape, crc: u32, tail: &[u8]) -> Result<Vec<Extent>> {
    if crc_fast::crc32_iscsi(tail) != crc {
        return Err(damaged(name, "the checksum of its extents is wrong".to_owned()));
    }
    let all = decode_extents(tail);
    let mut frames = 0_u64;
    for extent in &all {
        if extent.count == 0 || extent.first.0.checked_add(extent.count).is_none() {
            return Err(damaged(name, "an extent has no possible length".to_owned()));
        }
        frames = frames.saturating_add(if extent.is_hole { 0 } else { extent.count });
    }
    if frames != u64::from(shape.sectors) {
        return Err(damaged(name, "its extents and frames differ in number".to_owned()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Content, extents and overwritten sectors can be read back; a frame from another place is
    /// refused.
    #[test]
    fn a_sealed_segment_gives_back_what_was_put_in() {
        let number = ObjectNumber(9);
        let mut segment = Segment::empty(number);
        for sector in [10, 11, 50] {
            segment.push(Sector(sector), &[sector as u8; SECTOR as usize]);
        }
        segment.hole(Sector(11), 3);
        assert!(!segment.overwrite(Sector(11), &[1; SECTOR as usize]));
        assert!(segment.overwrite(Sector(50), &[77; SECTOR as usize]));
        segment.seal(VolumeId::default(), 1);
        let (bytes, shape) = (segment.bytes(), segment.shape());
        assert_eq!(bytes.len() as u64, shape.len());
        let tail = &bytes[tail(shape).start as usize..];
        let found = extents("x", shape, segment.extents_crc(), tail).expect("whole");
        let data = |first, count| Extent { first: Sector(first), count, is_hole: false };
        let hole = Extent { first: Sector(11), count: 3, is_hole: true };
        assert_eq!(found, [data(10, 2), data(50, 1), hole]);
        let mut content = [0; SECTOR as usize];
        let frame = &bytes[frame_at(2) as usize..frame_at(3) as usize];
        unframe("x", number, 2, frame, &mut content).expect("whole");
        assert_eq!(content, [77; SECTOR as usize]);
        unframe("x", number, 1, frame, &mut content).expect_err("of another place");
        unframe("x", ObjectNumber(8), 2, frame, &mut content).expect_err("of another object");
    }

    /// A small segment keeps no memory of a full one. A full one gives its memory back at its end.
    #[test]
    fn memory_goes_back() {
        let spare = Arc::new(Spare::new(64 * SECTOR, 2));
        let address = |segment: &Segment| segment.bytes.as_ptr();
        let mut small = Segment::new(ObjectNumber(1), &spare);
        let first = address(&small);
        small.push(Sector(0), &[1; SECTOR as usize]);
        small.seal(VolumeId::default(), 1);
        assert!(small.bytes.capacity() < 2 * FRAME);
        let mut full = Segment::new(ObjectNumber(2), &spare);
        assert_eq!(address(&full), first);
        (0..64).for_each(|sector| {
            full.push(Sector(sector), &[2; SECTOR as usize]);
        });
        full.seal(VolumeId::default(), 1);
        drop((small, full));
        assert_eq!(address(&Segment::new(ObjectNumber(3), &spare)), first);
    }
}
