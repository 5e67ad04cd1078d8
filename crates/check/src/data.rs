//! Verifies data against its checksums: every copy of every sector that has one.
//!
//! # Invariants
//!
//! - **D1** A piece lies within one chunk, so all its sectors have the same number of copies.
//! - **D2** Each thread needs memory for a few pieces only.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use buttress_format::Logical;
use buttress_volume::Error as VolumeError;
use parking_lot::Mutex;

use crate::context::{Context, Tree};
use crate::csums::Ranges;
use crate::issue::Issue;

/// Bytes that are read in one go.
const PIECE_BYTES: u64 = 1 << 20;
/// The most pieces in the queue to the workers.
const PIECES_AHEAD: usize = 16;

struct Piece {
    at: Logical,
    /// One checksum after the other, of one sector each.
    sums: Vec<u8>,
}

/// Verifies all data. Returns the number of verified bytes; each copy counts.
pub(crate) fn verify(context: &Context<'_>, tree: &Tree) -> u64 {
    let (pieces, taken) = sync_channel::<Piece>(PIECES_AHEAD);
    let taken = Mutex::new(taken);
    let verified = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..context.threads {
            let (taken, verified) = (&taken, &verified);
            scope.spawn(move || work(context, taken, verified));
        }
        let mut ranges = Ranges::new(context, tree, false);
        while let Some((range, sums)) = ranges.next_with_sums() {
            let csum_size = context.superblock.csum_type.size();
            let mut at = range.start;
            let mut rest = &sums[..];
            while !rest.is_empty() {
                let left = (rest.len() / csum_size) as u64 * context.sectorsize();
                let chunk_left = context
                    .volume
                    .chunk_at(at)
                    .map_or(left, |chunk| chunk.logical.end(chunk.len).distance(at));
                let len = left.min(PIECE_BYTES).min(chunk_left).max(context.sectorsize());
                let count = (len / context.sectorsize()) as usize * csum_size;
                let (now, later) = rest.split_at(count.min(rest.len()));
                // Sending cannot fail: the workers receive until `pieces` is dropped.
                let _ = pieces.send(Piece { at, sums: now.to_vec() });
                at = at.end(len);
                rest = later;
            }
        }
        drop(pieces);
    });
    verified.load(Ordering::Relaxed)
}

fn work(context: &Context<'_>, taken: &Mutex<Receiver<Piece>>, verified: &AtomicU64) {
    let mut buf = Vec::new();
    loop {
        let piece = taken.lock().recv();
        let Ok(piece) = piece else { return };
        let copies = context.volume.mirrors(piece.at);
        if copies == 0 {
            let why = VolumeError::NotMapped { logical: piece.at }.to_string();
            context.add(Issue::DataUnreadable { at: piece.at, mirror: 0, why });
        }
        for mirror in 0..copies {
            let bytes = verify_copy(context, &piece, mirror, &mut buf);
            verified.fetch_add(bytes, Ordering::Relaxed);
        }
        let sectors = (piece.sums.len() / context.superblock.csum_type.size()) as u64;
        context.progress.advance(sectors * context.sectorsize());
    }
}

fn verify_copy(context: &Context<'_>, piece: &Piece, mirror: u32, buf: &mut Vec<u8>) -> u64 {
    let csum = context.superblock.csum_type;
    let sector = context.sectorsize() as usize;
    let count = piece.sums.len() / csum.size();
    buf.resize(count * sector, 0);
    let whole = context.volume.read_mirror(piece.at, buf, mirror).is_ok();
    let mut verified = 0;
    for (index, (bytes, sum)) in
        buf.chunks_exact_mut(sector).zip(piece.sums.chunks_exact(csum.size())).enumerate()
    {
        let at = piece.at.end((index * sector) as u64);
        // The whole piece could not be read. Reads each sector alone, so that a bad sector does not
        // hide the others.
        if !whole && let Err(error) = context.volume.read_mirror(at, bytes, mirror) {
            let why = error.to_string();
            context.add(Issue::DataUnreadable { at, mirror, why });
            continue;
        }
        if csum.digest(bytes)[..csum.size()] != *sum {
            context.add(Issue::DataDamaged { at, mirror });
        }
        verified += sector as u64;
    }
    verified
}
