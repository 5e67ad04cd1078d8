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
//! In a sealed record 16 random bytes follow, then the sealed extents, and the frames in sealed
//! pieces ([`RecordSeal`]). The checksum is that of the 64 bytes, the random bytes and the sealed
//! extents.
//!
//! # Invariants
//!
//! - **N1** A record that was decoded is whole: its header, extents and frames have right
//!   checksums, and frames and extents agree.
//! - **N2** Magic, version, checksum, length and count of frames stay where they are in every
//!   version. So a record of a newer version can be told from a damaged record.

use std::borrow::Cow;
use std::path::Path;

use crate::cache_seal::{CacheSeal, DRAWN, HEADER, RecordSeal, TAG, sealed_frames};
use crate::envelope::{u32_at, u64_at};
use crate::error::{Error, Result};
use crate::random;
use crate::segment::{self, Extent, FRAME, Fixed};
use crate::units::ObjectNumber;

/// The version of a record in clear text, and that of a sealed record. The second is the newest
/// that this program reads.
const VERSION: u16 = 1;
const VERSION_SEALED: u16 = 2;
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
    pub(crate) frames: Cow<'b, [u8]>,
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

    /// Returns the header and the extents; the frames follow them. With `seal`, the extents are
    /// sealed, and the second result seals the frames.
    pub(crate) fn encode(
        &self,
        extents: &[Extent],
        seal: Option<&CacheSeal>,
    ) -> (Vec<u8>, Option<RecordSeal>) {
        let (kind, subject, first, frames) = match self.says {
            Says::Data { object, first_frame, frames } => (1_u16, object.0, first_frame, frames),
            Says::Cut { time_ms } => (2, time_ms, 0, 0),
        };
        let mut extents = segment::encode_extents(extents);
        let (version, more) = match seal {
            None => (VERSION, frames as usize * FRAME),
            Some(_) => (VERSION_SEALED, DRAWN + TAG + sealed_frames(frames) as usize),
        };
        let len = HEADER + extents.len() + more;
        let mut bytes = Vec::with_capacity(HEADER + extents.len() + DRAWN + TAG);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        for value in [len as u64, self.tag, self.sequence, self.position, subject] {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        bytes.extend_from_slice(&first.to_le_bytes());
        bytes.extend_from_slice(&frames.to_le_bytes());
        let seal = seal.and_then(|seal| {
            let drawn = random::bytes();
            let seal = RecordSeal::new(seal, drawn, &bytes, frames)?;
            bytes.extend_from_slice(&drawn);
            extents = seal.seal_extents(&extents);
            Some(seal)
        });
        bytes.extend_from_slice(&extents);
        let crc = crc_fast::crc32_iscsi(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        (bytes, seal)
    }
}

/// Splits the start of `bytes` into the stored header and extents of a record of any version.
/// Returns also the version. `None` if the checksum is wrong.
fn parts(bytes: &[u8]) -> Option<(&[u8], &[u8], u16)> {
    let header = bytes.get(..HEADER)?;
    if &header[..8] != MAGIC {
        return None;
    }
    let version = u16::from_le_bytes([header[10], header[11]]);
    let (len, frames) = (u64_at(header, 16), u32_at(header, 60));
    let of_frames = match version {
        VERSION_SEALED => sealed_frames(frames),
        _ => u64::from(frames) * FRAME as u64,
    };
    let of_extents = len.checked_sub(HEADER as u64)?.checked_sub(of_frames)?;
    // Each extent has 16 bytes. In a sealed record the random bytes before the extents and the tag
    // after them have 16 bytes each, too.
    if len > RECORD_MAX || !of_extents.is_multiple_of(segment::EXTENT as u64) {
        return None;
    }
    let end = HEADER + of_extents as usize;
    let raw = bytes.get(HEADER..end)?;
    let mut checked = bytes[..end].to_vec();
    checked[12..16].fill(0);
    (crc_fast::crc32_iscsi(&checked) == u32_at(header, 12)).then_some((header, raw, version))
}

/// Refuses a record of a newer version at the start of `bytes`, in the file `path` (N2).
///
/// # Errors
///
/// [`Error::Version`].
pub(crate) fn check_version(path: &Path, bytes: &[u8]) -> Result<()> {
    match parts(bytes) {
        Some((_, _, found)) if found > VERSION_SEALED => {
            Err(Error::Version { name: path.display().to_string(), found, known: VERSION_SEALED })
        }
        _ => Ok(()),
    }
}

/// The header of a record, and its extents.
struct Head {
    record: Record,
    extents: Vec<Extent>,
    /// Where the frames begin, and the length of the whole record.
    frames_at: usize,
    len: usize,
    /// Opens the frames of a sealed record.
    seal: Option<RecordSeal>,
}

/// Reads the header and the extents at the start of `bytes`. With `seal` only a sealed record
/// counts, and without it only one in clear text. Frames are not checked.
fn read_head(bytes: &[u8], seal: Option<&CacheSeal>) -> Option<Head> {
    let (header, raw, version) = parts(bytes)?;
    let frames = u32_at(header, 60);
    let frames_at = HEADER + raw.len();
    let (extents, seal) = match (seal, version) {
        (None, VERSION) => (Cow::Borrowed(raw), None),
        (Some(seal), VERSION_SEALED) => {
            let (drawn, sealed) = raw.split_first_chunk::<DRAWN>()?;
            let seal = RecordSeal::new(seal, *drawn, header, frames)?;
            (Cow::Owned(seal.open_extents(sealed)?), Some(seal))
        }
        _ => return None,
    };
    let (kind, len) = (u16::from_le_bytes([header[8], header[9]]), u64_at(header, 16));
    let subject = u64_at(header, 48);
    let says = match kind {
        1 => {
            let (object, first_frame) = (ObjectNumber(subject), u32_at(header, 56));
            Says::Data { object, first_frame, frames }
        }
        2 if frames == 0 && extents.is_empty() => Says::Cut { time_ms: subject },
        _ => return None,
    };
    let (tag, sequence, position) = (u64_at(header, 24), u64_at(header, 32), u64_at(header, 40));
    let record = Record { tag, sequence, position, says };
    let extents = segment::decode_extents(&extents);
    Some(Head { record, extents, frames_at, len: len as usize, seal })
}

/// Reads the record at the start of `bytes` without its frames, as [`whole`] does.
pub(crate) fn head(bytes: &[u8], seal: Option<&CacheSeal>) -> Option<Record> {
    read_head(bytes, seal).map(|head| head.record)
}

/// Reads the whole record at the start of `bytes`, if there is one (N1). With `seal` only a sealed
/// record counts, and without it only one in clear text.
pub(crate) fn whole<'b>(bytes: &'b [u8], seal: Option<&CacheSeal>) -> Option<Whole<'b>> {
    let Head { record, extents, frames_at, len, seal } = read_head(bytes, seal)?;
    let stored = bytes.get(frames_at..len)?;
    let frames = match seal {
        None => Cow::Borrowed(stored),
        Some(seal) => Cow::Owned(seal.open_frames(0, stored)?),
    };
    if let Says::Data { object, first_frame, frames: count } = record.says {
        let is_possible = |extent: &Extent| {
            extent.count > 0 && extent.first.0.checked_add(extent.count).is_some()
        };
        let with_data = extents.iter().filter(|extent| !extent.is_hole);
        let sum = with_data.fold(0_u64, |sum, extent| sum.saturating_add(extent.count));
        if !extents.iter().all(is_possible)
            || sum != u64::from(count)
            || first_frame.checked_add(count).is_none()
            || !segment::are_whole(object, first_frame, &frames)
        {
            return None;
        }
    }
    Some(Whole { record, extents, frames, len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::VolumeId;
    use crate::keys::Master;
    use crate::segment::Segment;
    use crate::units::{SECTOR, Sector};

    fn seal() -> CacheSeal {
        CacheSeal::new(&Master([1; 32]), VolumeId([2; 16])).expect("keys")
    }

    fn encoded(seal: Option<&CacheSeal>) -> Vec<u8> {
        let mut segment = Segment::empty(ObjectNumber(7));
        segment.push(Sector(5), &[1; SECTOR as usize]);
        segment.fix();
        segment.push(Sector(6), &[2; SECTOR as usize]);
        segment.hole(Sector(100), 9);
        let fixed = segment.fix();
        let says = Record::of_data(ObjectNumber(7), &fixed);
        let record = Record { tag: 3, sequence: 4, position: 5, says };
        let (mut bytes, seal) = record.encode(&fixed.extents, seal);
        let frames = segment.frames(fixed.first_frame, fixed.frames);
        match seal {
            Some(seal) => bytes.extend(seal.seal_frames(frames)),
            None => bytes.extend_from_slice(frames),
        }
        bytes
    }

    /// A record can be read back. A truncated record, or one with a changed bit, is not accepted. A
    /// reader of sealed records accepts none in clear text, and a reader of clear text accepts no
    /// sealed record.
    #[test]
    fn a_record_shows_every_changed_bit() {
        let key = seal();
        for seal in [None, Some(&key)] {
            let bytes = encoded(seal);
            let found = whole(&bytes, seal).expect("whole");
            let record = found.record;
            assert_eq!((record.sequence, record.position, found.len), (4, 5, bytes.len()));
            assert_eq!((found.extents.len(), found.frames.len()), (2, FRAME));
            let other = if seal.is_none() { Some(&key) } else { None };
            assert!(whole(&bytes, other).is_none());
            for len in (0..bytes.len()).step_by(7) {
                assert!(whole(&bytes[..len], seal).is_none(), "cut at {len}");
            }
            for bit in (0..bytes.len() * 8).step_by(5) {
                let mut other = bytes.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert!(whole(&other, seal).is_none(), "bit {bit}");
            }
        }
        assert_ne!(encoded(Some(&key)), encoded(Some(&key)), "no nonce is used twice");
    }
}
