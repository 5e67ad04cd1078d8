//! Records of the local log, and the first bytes of its files.
//!
//! # Format
//!
//! A record has 64 bytes, then extents and frames as data objects have them:
//!
//! ```text
//! offset length
//!      0      8  "BUTTRLOG"
//!      8      2  kind: 1 data, 2 a cut
//!     10      2  version of the format
//!     12      4  crc32c of these 64 bytes, with this field zero, and of the extents
//!     16      8  length of the whole record
//!     24      8  tag of the log
//!     32      8  sequence: one more than that of the record before
//!     40      8  position: the log and the records before it have all writes up to here
//!     48      8  number of the object that the frames belong to; of a cut, its time
//!     56      4  first frame
//!     60      4  count of frames
//! ```
//!
//! # Invariants
//!
//! - **N1** A record that was decoded is whole: its header, extents and frames have right
//!   checksums, and frames and extents agree.
//! - **N2** Magic, version, checksum, length and count of frames stay where they are in every
//!   version. So a record of a newer version can be told from a damaged record.

use std::path::Path;

use crate::envelope::{u32_at, u64_at};
use crate::error::{Error, Result};
use crate::segment::{self, Extent, FRAME, Fixed};
use crate::units::ObjectNumber;

/// The version that this program writes and reads.
pub(crate) const VERSION: u16 = 1;
/// Bytes before extents and frames.
pub(crate) const HEADER: usize = 64;
/// The first bytes of every record.
pub(crate) const MAGIC: &[u8; 8] = b"BUTTRLOG";
/// No record is longer: a data object has at most 1 GiB.
const RECORD_MAX: u64 = 2 << 30;

/// The content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    /// Sectors of the device, as frames of an object.
    Data { object: ObjectNumber, first_frame: u32, frames: u32 },
    /// A cut: all writes before it were made durable together. The time is in milliseconds since
    /// 1970.
    Cut { time_ms: u64 },
}

/// The fixed part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) tag: u64,
    pub(crate) sequence: u64,
    pub(crate) position: u64,
    pub(crate) says: Says,
}

/// A whole record.
#[derive(Debug)]
pub(crate) struct Whole<'b> {
    pub(crate) record: Record,
    pub(crate) extents: Vec<Extent>,
    pub(crate) frames: &'b [u8],
    /// Its length in bytes.
    pub(crate) len: usize,
}

/// The tag of a writer's log: a part of the id that fits into a record.
pub(crate) fn tag(id: &str) -> u64 {
    id.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

impl Record {
    /// A record of fixed frames.
    pub(crate) fn of_data(object: ObjectNumber, fixed: &Fixed) -> Says {
        Says::Data { object, first_frame: fixed.first_frame, frames: fixed.frames }
    }

    /// The header and the extents; the frames follow them.
    pub(crate) fn encode(&self, extents: &[Extent]) -> Vec<u8> {
        let (kind, subject, first, frames) = match self.says {
            Says::Data { object, first_frame, frames } => (1_u16, object.0, first_frame, frames),
            Says::Cut { time_ms } => (2, time_ms, 0, 0),
        };
        let extents = segment::encode_extents(extents);
        let len = HEADER + extents.len() + frames as usize * FRAME;
        let mut bytes = Vec::with_capacity(HEADER + extents.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        for value in [len as u64, self.tag, self.sequence, self.position, subject] {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        bytes.extend_from_slice(&first.to_le_bytes());
        bytes.extend_from_slice(&frames.to_le_bytes());
        bytes.extend_from_slice(&extents);
        let crc = crc_fast::crc32_iscsi(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// Splits the start of `bytes` into the header and the raw extents of a record of any version, and
/// returns its version. `None` if their checksum is wrong.
fn parts(bytes: &[u8]) -> Option<(&[u8], &[u8], u16)> {
    let header = bytes.get(..HEADER)?;
    if &header[..8] != MAGIC {
        return None;
    }
    let len = u64_at(header, 16);
    let of_frames = u64::from(u32_at(header, 60)) * FRAME as u64;
    let of_extents = len.checked_sub(HEADER as u64)?.checked_sub(of_frames)?;
    if len > RECORD_MAX || !of_extents.is_multiple_of(segment::EXTENT as u64) {
        return None;
    }
    let end = HEADER + of_extents as usize;
    let raw = bytes.get(HEADER..end)?;
    let mut checked = bytes[..end].to_vec();
    checked[12..16].fill(0);
    let version = u16::from_le_bytes([header[10], header[11]]);
    (crc_fast::crc32_iscsi(&checked) == u32_at(header, 12)).then_some((header, raw, version))
}

/// Refuses a record of a newer version at the start of `bytes`, in the file `path` (N2).
///
/// # Errors
///
/// [`Error::Version`].
pub(crate) fn check_version(path: &Path, bytes: &[u8]) -> Result<()> {
    match parts(bytes) {
        Some((_, _, found)) if found > VERSION => {
            Err(Error::Version { name: path.display().to_string(), found, known: VERSION })
        }
        _ => Ok(()),
    }
}

/// Reads the header and the extents at the start of `bytes`, and returns the length of the record.
/// Frames are not checked.
pub(crate) fn head(bytes: &[u8]) -> Option<(Record, Vec<Extent>, usize)> {
    let (header, raw, version) = parts(bytes)?;
    if version != VERSION {
        return None;
    }
    let (kind, len) = (u16::from_le_bytes([header[8], header[9]]), u64_at(header, 16));
    let frames = u32_at(header, 60);
    let subject = u64_at(header, 48);
    let says = match kind {
        1 => {
            let (object, first_frame) = (ObjectNumber(subject), u32_at(header, 56));
            Says::Data { object, first_frame, frames }
        }
        2 if len == HEADER as u64 => Says::Cut { time_ms: subject },
        _ => return None,
    };
    let (tag, sequence, position) = (u64_at(header, 24), u64_at(header, 32), u64_at(header, 40));
    let extents = segment::decode_extents(raw);
    Some((Record { tag, sequence, position, says }, extents, len as usize))
}

/// Reads the whole record at the start of `bytes`, if there is one (N1).
pub(crate) fn whole(bytes: &[u8]) -> Option<Whole<'_>> {
    let (record, extents, len) = head(bytes)?;
    let frames = bytes.get(HEADER + extents.len() * segment::EXTENT..len)?;
    if let Says::Data { object, first_frame, frames: count } = record.says {
        let is_possible = |extent: &Extent| {
            extent.count > 0 && extent.first.0.checked_add(extent.count).is_some()
        };
        let with_data = extents.iter().filter(|extent| !extent.is_hole);
        let sum = with_data.fold(0_u64, |sum, extent| sum.saturating_add(extent.count));
        if !extents.iter().all(is_possible)
            || sum != u64::from(count)
            || first_frame.checked_add(count).is_none()
            || !segment::are_whole(object, first_frame, frames)
        {
            return None;
        }
    }
    Some(Whole { record, extents, frames, len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Segment;
    use crate::units::{SECTOR, Sector};

    fn encoded() -> Vec<u8> {
        let mut segment = Segment::new(ObjectNumber(7));
        segment.push(Sector(5), &[1; SECTOR as usize]);
        segment.fix();
        segment.push(Sector(6), &[2; SECTOR as usize]);
        segment.hole(Sector(100), 9);
        let fixed = segment.fix();
        let says = Record::of_data(ObjectNumber(7), &fixed);
        let record = Record { tag: 3, sequence: 4, position: 5, says };
        let mut bytes = record.encode(&fixed.extents);
        bytes.extend_from_slice(segment.frames(fixed.first_frame, fixed.frames));
        bytes
    }

    /// A record can be read back. A truncated record, or a record with a changed bit, is not
    /// accepted.
    #[test]
    fn a_record_shows_every_changed_bit() {
        let bytes = encoded();
        let found = whole(&bytes).expect("whole");
        assert_eq!((found.record.sequence, found.record.position, found.len), (4, 5, bytes.len()));
        assert_eq!(found.extents.len(), 2);
        for len in (0..bytes.len()).step_by(7) {
            assert!(whole(&bytes[..len]).is_none(), "cut at {len}");
        }
        for bit in (0..bytes.len() * 8).step_by(5) {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(whole(&other).is_none(), "bit {bit}");
        }
    }
}
