//! Verifies data against its checksums: every copy of every sector that has one.
//!
//! # Invariants
//!
//! - **D1** A piece lies within one chunk, so all its sectors have the same number of copies.
//! - **D2** Each thread needs memory for a few pieces only.

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::queue::{self, Receiver};
use buttress_base::thread;
use buttress_format::Logical;
use buttress_volume::Error as VolumeError;

use crate::context::{Context, Tree};
use crate::csums::Ranges;
use buttress_issue::Issue;

/// Bytes of one read.
const PIECE_BYTES: u64 = 1 << 20;
/// The most pieces in the queue to the workers.
const PIECES_AHEAD: usize = 16;
/// The most pieces that a worker reads together.
const PIECES_AT_ONCE: usize = 8;

struct Piece {
    at: Logical,
    /// The checksums of the sectors, one after the other.
    sums: Vec<u8>,
}

/// Verifies all data. Returns the number of verified bytes; each copy counts.
pub(crate) fn verify_all(context: &Context<'_>, tree: &Tree) -> u64 {
    let (pieces, taken) = queue::bounded::<Piece>(PIECES_AHEAD);
    let verified = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..context.threads {
            let (taken, verified) = (taken.clone(), &verified);
            scope.spawn(move || work(context, &taken, verified));
        }
        // If all workers have panicked, sending fails, and does not wait for room.
        drop(taken);
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
                // Sending fails only if all workers have panicked. The panic is passed on.
                let _ = pieces.send(Piece { at, sums: now.to_vec() });
                at = at.end(len);
                rest = later;
            }
        }
        drop(pieces);
    });
    verified.load(Ordering::Relaxed)
}

/// Verifies every copy of some sectors. Returns the number of verified bytes; each copy counts.
pub(crate) fn verify_at(context: &Context<'_>, at: Logical, sums: Vec<u8>) -> u64 {
    let count = sums.len() / context.superblock.csum_type.size();
    let mut buf = vec![0; count * context.sectorsize() as usize];
    let piece = Piece { at, sums };
    let copies = 0..context.volume.mirrors(at);
    // Each sector is read alone: a log has little data, and its extents may end with their chunk.
    copies.map(|mirror| verify(context, &piece, mirror, &mut buf, false)).sum()
}

/// Waits for one piece, and also takes pieces that are queued by then. Returns at most
/// [`PIECES_AT_ONCE`] pieces; an empty list if no more pieces will come.
fn take(taken: &Receiver<Piece>) -> Vec<Piece> {
    let first = taken.recv();
    let others = std::iter::from_fn(|| taken.try_recv());
    first.into_iter().chain(others).take(PIECES_AT_ONCE).collect()
}

fn work(context: &Context<'_>, taken: &Receiver<Piece>, verified: &AtomicU64) {
    let mut bufs: Vec<Vec<u8>> = Vec::new();
    loop {
        let pieces = take(taken);
        if pieces.is_empty() {
            return;
        }
        for piece in pieces.iter().filter(|piece| context.volume.mirrors(piece.at) == 0) {
            let why = VolumeError::NotMapped { logical: piece.at }.to_string();
            context.add(Issue::DataUnreadable { at: piece.at, mirror: 0, why });
        }
        bufs.resize_with(pieces.len(), Vec::new);
        let most = pieces.iter().map(|piece| context.volume.mirrors(piece.at)).max();
        for mirror in 0..most.unwrap_or(0) {
            let has = |piece: &Piece| mirror < context.volume.mirrors(piece.at);
            let pieces = pieces.iter().filter(|piece| has(piece));
            let bytes = verify_copies(context, pieces.collect(), mirror, &mut bufs);
            verified.fetch_add(bytes, Ordering::Relaxed);
        }
        let sums: usize = pieces.iter().map(|piece| piece.sums.len()).sum();
        let sectors = (sums / context.superblock.csum_type.size()) as u64;
        context.progress.advance(sectors * context.sectorsize());
    }
}

/// Reads one copy of some pieces with as few waits as the devices allow, and verifies it.
fn verify_copies(
    context: &Context<'_>,
    pieces: Vec<&Piece>,
    mirror: u32,
    bufs: &mut [Vec<u8>],
) -> u64 {
    let mut wants = Vec::with_capacity(pieces.len());
    for (piece, buf) in pieces.iter().zip(bufs.iter_mut()) {
        let count = piece.sums.len() / context.superblock.csum_type.size();
        buf.resize(count * context.sectorsize() as usize, 0);
        wants.push((piece.at, &mut buf[..]));
    }
    let answers = context.volume.read_mirror_many(&mut wants, mirror);
    let parts = pieces.into_iter().zip(bufs).zip(answers);
    parts.map(|((piece, buf), answer)| verify(context, piece, mirror, buf, answer.is_ok())).sum()
}

fn verify(context: &Context<'_>, piece: &Piece, mirror: u32, buf: &mut [u8], whole: bool) -> u64 {
    let csum = context.superblock.csum_type;
    let sector = context.sectorsize() as usize;
    let mut verified = 0;
    for (index, (bytes, sum)) in
        buf.chunks_exact_mut(sector).zip(piece.sums.chunks_exact(csum.size())).enumerate()
    {
        let at = piece.at.end((index * sector) as u64);
        // If the whole piece cannot be read, each sector is read alone, so that a bad sector does
        // not hide the others.
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
