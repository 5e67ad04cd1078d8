//! The partition table of UEFI: a header with a list, at the beginning of a disk and again at its
//! end.

use super::{Guid, Kind, Partition, broken, field, u32_at, u64_at};
use crate::device::Device;
use crate::error::Error;

/// The sector sizes that a table may use as its unit, in bytes. The reader tries each size.
const SECTORS: [u64; 2] = [512, 4096];
const SIGNATURE: &[u8; 8] = b"EFI PART";
/// The least length of a header, in bytes.
const HEADER_MIN: u32 = 92;
/// The shortest entry that the format allows, and the longest that the reader accepts, in bytes.
const ENTRY_MIN: u32 = 128;
const ENTRY_MAX: u32 = 4096;
/// The most bytes that a list of entries may have.
const LIST_MAX: u64 = 1 << 20;

/// Reads the first copy that is whole.
pub(super) fn read(disk: &dyn Device) -> Result<Vec<Partition>, Error> {
    let mut why = None;
    for sector in SECTORS {
        let last = (disk.len() / sector).saturating_sub(1);
        for at in [1, last] {
            match copy(disk, sector, at)? {
                Outcome::Whole(found) => return Ok(found),
                Outcome::None => {}
                Outcome::Damaged(what) => why = why.or(Some(what)),
            }
        }
    }
    let what = why.unwrap_or("the MBR says that there is a GPT, and there is none");
    Err(broken(disk, what))
}

enum Outcome {
    Whole(Vec<Partition>),
    None,
    Damaged(&'static str),
}

/// Reads the copy that has its header in sector number `at`. `sector` is the size of a sector in
/// bytes.
fn copy(disk: &dyn Device, sector: u64, at: u64) -> Result<Outcome, Error> {
    let Some(header) = bytes(disk, at.checked_mul(sector), sector)? else {
        return Ok(Outcome::None);
    };
    if !header.starts_with(SIGNATURE) {
        return Ok(Outcome::None);
    }
    let len = u32_at(&header, 12);
    if len < HEADER_MIN || u64::from(len) > sector {
        return Ok(Outcome::Damaged("the header of the GPT has a wrong length"));
    }
    let mut summed = header[..len as usize].to_vec();
    summed[16..20].fill(0);
    if crc32(&summed) != u32_at(&header, 16) || u64_at(&header, 24) != at {
        return Ok(Outcome::Damaged("the header of the GPT is damaged"));
    }
    let (first, last) = (u64_at(&header, 40), u64_at(&header, 48));
    let (list, count, entry) = (u64_at(&header, 72), u32_at(&header, 80), u32_at(&header, 84));
    let list_len = u64::from(count) * u64::from(entry);
    if !(ENTRY_MIN..=ENTRY_MAX).contains(&entry) || list_len > LIST_MAX {
        return Ok(Outcome::Damaged("the GPT has entries of a wrong length"));
    }
    let Some(list) = bytes(disk, list.checked_mul(sector), list_len)? else {
        return Ok(Outcome::Damaged("the list of the GPT lies past the end of the disk"));
    };
    if crc32(&list) != u32_at(&header, 88) {
        return Ok(Outcome::Damaged("the list of the GPT is damaged"));
    }
    let mut found = Vec::new();
    for (number, entry) in (1..).zip(list.chunks_exact(entry as usize)) {
        let kind = guid(entry, 0);
        if kind == [0; 16] {
            continue;
        }
        let (begin, end) = (u64_at(entry, 32), u64_at(entry, 40));
        // The first two sectors are the MBR and the header, even if `first` is lower.
        let is_usable = first.max(2) <= begin && begin <= end && end <= last;
        let count = end.wrapping_sub(begin).checked_add(1);
        let len = count.and_then(|count| count.checked_mul(sector));
        let start = begin.checked_mul(sector).filter(|_| is_usable);
        let (Some(start), Some(len)) = (start, len) else {
            return Ok(Outcome::Damaged("a partition of the GPT lies outside of its bounds"));
        };
        found.push(Partition {
            number,
            start,
            len,
            kind: Kind::Gpt(kind),
            label: label(&entry[56..ENTRY_MIN as usize]),
            id: Some(guid(entry, 16)),
        });
    }
    Ok(Outcome::Whole(found))
}

/// Reads bytes of the disk, if it has them.
fn bytes(disk: &dyn Device, at: Option<u64>, len: u64) -> Result<Option<Vec<u8>>, Error> {
    let Some(at) = at else { return Ok(None) };
    if at.checked_add(len).is_none_or(|end| end > disk.len()) {
        return Ok(None);
    }
    let mut found = vec![0; len as usize];
    disk.read_at(at, &mut found)?;
    Ok(Some(found))
}

/// Reads an identifier. On the disk its first three numbers are little-endian.
fn guid(bytes: &[u8], at: usize) -> Guid {
    const ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let raw: Guid = field(bytes, at);
    ORDER.map(|from| raw[from])
}

/// Reads a name in UTF-16, which ends at a zero.
fn label(bytes: &[u8]) -> String {
    let units = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let units = units.take_while(|&unit| unit != 0);
    char::decode_utf16(units).map(|found| found.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

/// The checksum of a GPT: CRC-32 as in zlib.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, bytes) as u32
}
