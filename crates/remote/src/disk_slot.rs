//! The slots of the cache on a local disk, in clear text: pieces of a line with their checksums.
//!
//! # Format
//!
//! A slot has the pieces of a line, one after the other. A piece is a crc32c (4), and then 4096
//! bytes of the line. The last piece may have fewer. So a reader of one sector reads that sector
//! alone. The bytes go from the file to the caller's buffer without a copy in between.
//!
//! # Invariants
//!
//! - **PS1** The checksum includes the volume, the key of the line and the number of the piece. A
//!   slot that has another line gives no bytes, also one of another volume in the same folder.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;

use crate::disk_lines::DiskKey;
use crate::envelope::VolumeId;
use crate::lines::{LINE, LINE_BYTES};
use crate::units::SECTOR;

/// Bytes of a line in a piece, of a checksum, and of a slot.
const PIECE: usize = SECTOR as usize;
const SUM: usize = 4;
const PIECES: usize = LINE as usize;
pub(crate) const SLOT: u64 = (LINE_BYTES + PIECES * SUM) as u64;

/// A line, and its volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) volume: VolumeId,
    pub(crate) key: DiskKey,
}

fn sum(owner: Owner, number: usize, piece: &[u8]) -> [u8; SUM] {
    let Owner { volume, key } = owner;
    let mut place = [0; 40];
    place[..4].copy_from_slice(&crc_fast::crc32_iscsi(piece).to_le_bytes());
    place[4..8].copy_from_slice(&(number as u32).to_le_bytes());
    place[8..16].copy_from_slice(&key.object.0.to_le_bytes());
    place[16..20].copy_from_slice(&key.epoch.to_le_bytes());
    place[20..24].copy_from_slice(&key.line.to_le_bytes());
    place[24..].copy_from_slice(&volume.0);
    crc_fast::crc32_iscsi(&place).to_le_bytes()
}

/// Writes a line of at most [`LINE_BYTES`] bytes into the slot at byte `at`.
pub(crate) fn write(file: &File, at: u64, owner: Owner, line: &[u8]) -> io::Result<()> {
    let pieces = || line.chunks(PIECE);
    let sums: Vec<_> = pieces().enumerate().map(|(n, piece)| sum(owner, n, piece)).collect();
    let both = sums.iter().zip(pieces()).flat_map(|(sum, piece)| [&sum[..], piece]);
    let slices: Vec<_> = both.clone().map(IoSlice::new).collect();
    let written = rustix::io::retry_on_intr(|| rustix::io::pwritev(file, &slices, at))?;
    if written == line.len() + sums.len() * SUM {
        return Ok(());
    }
    // The rest of a short write meets the error that cut it, if there is one.
    let whole: Vec<u8> = both.flatten().copied().collect();
    file.write_all_at(&whole[written..], at + written as u64)
}

/// Reads the bytes of a line from `skip` on into `to`, from the slot at byte `at`. Both ends are
/// ends of pieces. Returns whether the slot has them (PS1).
pub(crate) fn read(file: &File, at: u64, owner: Owner, skip: usize, to: &mut [u8]) -> bool {
    let first = skip / PIECE;
    let count = to.len().div_ceil(PIECE);
    let len = to.len() + count * SUM;
    let mut sums = [[0; SUM]; PIECES];
    let Some(sums) = sums.get_mut(..count) else { return false };
    let both = sums.iter_mut().zip(to.chunks_mut(PIECE));
    let both = both.flat_map(|(sum, piece)| [IoSliceMut::new(sum), IoSliceMut::new(piece)]);
    let mut slices: Vec<_> = both.collect();
    let at = at + (first * (PIECE + SUM)) as u64;
    let got = rustix::io::retry_on_intr(|| rustix::io::preadv(file, &mut slices, at));
    if got.ok() != Some(len) {
        return false;
    }
    drop(slices);
    let mut pieces = (first..).zip(sums.iter().zip(to.chunks(PIECE)));
    pieces.all(|(number, (found, piece))| *found == sum(owner, number, piece))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::ObjectNumber;

    /// Each range of pieces is read back. A slot gives nothing for another key, for another piece,
    /// or after any bit of the range changed.
    #[test]
    fn a_slot_gives_the_bytes_of_its_line_alone() {
        let file = tempfile::tempfile().expect("a file");
        let key = DiskKey { epoch: 3, object: ObjectNumber(9), line: 7 };
        let owner = Owner { volume: VolumeId([5; 16]), key };
        let line: Vec<u8> = (0..10 * PIECE + 100).map(|at| (at * 31 / 7) as u8).collect();
        write(&file, SLOT, owner, &line).expect("a disk");
        let get = |owner, from: usize, end: usize| {
            let mut to = vec![0; end.min(line.len()) - from];
            read(&file, SLOT, owner, from, &mut to).then_some(to)
        };
        for first in 0..11 {
            for end in first + 1..12 {
                let (from, end) = (first * PIECE, (end * PIECE).min(line.len()));
                assert_eq!(get(owner, from, end).as_deref(), Some(&line[from..end]));
            }
        }
        for other in [
            Owner { key: DiskKey { epoch: 4, ..key }, ..owner },
            Owner { key: DiskKey { object: ObjectNumber(8), ..key }, ..owner },
            Owner { key: DiskKey { line: 6, ..key }, ..owner },
            Owner { volume: VolumeId([6; 16]), ..owner },
        ] {
            assert_eq!(get(other, PIECE, 2 * PIECE), None);
        }
        // Piece 5 in the place of piece 4.
        let at = |number: usize| SLOT + (number * (PIECE + SUM)) as u64;
        let mut piece = vec![0; PIECE + SUM];
        file.read_exact_at(&mut piece, at(5)).expect("a disk");
        file.write_all_at(&piece, at(4)).expect("a disk");
        assert_eq!(get(owner, 4 * PIECE, 5 * PIECE), None);
        assert!(get(owner, 5 * PIECE, 6 * PIECE).is_some());
        for at in [0, 3, 4, 100, PIECE + SUM - 1] {
            let mut byte = [0];
            file.read_exact_at(&mut byte, SLOT + at as u64).expect("a disk");
            file.write_all_at(&[byte[0] ^ 16], SLOT + at as u64).expect("a disk");
            assert_eq!(get(owner, 0, PIECE), None, "{at}");
            file.write_all_at(&byte, SLOT + at as u64).expect("a disk");
        }
        assert!(get(owner, 0, PIECE).is_some());
    }
}
