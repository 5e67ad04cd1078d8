//! Encryption of the local cache of an encrypted volume.
//!
//! # Invariants
//!
//! - **Q1** The cache has the content of an encrypted volume only in sealed form. Each key follows
//!   from the master key of the volume, the identity of the volume in the store, and the use of the
//!   key. So the keys open nothing of another volume, and nothing in the store.
//! - **Q2** No nonce is used twice with a key. A nonce is 16 random bytes, drawn for each record
//!   and each line, followed by the number of the piece. So no counter has to survive a crash or a
//!   replay.
//! - **Q3** A piece opens only at its place. The associated data has the header of the record, or
//!   the key and the slot of the line. The nonce has the number of the piece. So a piece that was
//!   moved, or that is of an older log, does not open.
//!
//! # Format
//!
//! `docs/format/remote.md`. The cipher is XChaCha20-Poly1305, as in `seal`.

use std::fmt;
use std::sync::Arc;

use blake2::Blake2bMac;
use blake2::digest::Mac;
use blake2::digest::consts::U32;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

use crate::envelope::VolumeId;
use crate::keys::Master;
use crate::random;
use crate::segment::FRAME;

/// Bytes of the header of a record of the log.
pub(crate) const HEADER: usize = 64;
/// Random bytes of a record or a line, and the bytes that sealing adds to a piece.
pub(crate) const DRAWN: usize = 16;
pub(crate) const TAG: usize = 16;
/// Frames of one piece of a record.
const PIECE_FRAMES: usize = 16;
const PIECE: usize = PIECE_FRAMES * FRAME;

/// The random bytes of a record or a line.
pub(crate) type Drawn = [u8; DRAWN];

/// The keys of a volume's caches.
#[derive(Clone)]
pub(crate) struct CacheSeal {
    log: Arc<XChaCha20Poly1305>,
    lines: Arc<XChaCha20Poly1305>,
}

impl fmt::Debug for CacheSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheSeal").finish_non_exhaustive()
    }
}

fn derived(master: &Master, volume: VolumeId, purpose: &str) -> Option<Arc<XChaCha20Poly1305>> {
    let mut mac = <Blake2bMac<U32> as Mac>::new_from_slice(&master.0).ok()?;
    mac.update(b"buttress local cache ");
    mac.update(purpose.as_bytes());
    mac.update(&[0]);
    mac.update(&volume.0);
    let key: [u8; 32] = mac.finalize().into_bytes().into();
    Some(Arc::new(XChaCha20Poly1305::new(&key.into())))
}

fn nonce(drawn: &Drawn, piece: u64) -> XNonce {
    let mut nonce = [0; 24];
    nonce[..DRAWN].copy_from_slice(drawn);
    nonce[DRAWN..].copy_from_slice(&piece.to_le_bytes());
    XNonce::from(nonce)
}

fn seal(cipher: &XChaCha20Poly1305, drawn: &Drawn, piece: u64, aad: &[u8], msg: &[u8]) -> Vec<u8> {
    // The cipher fails only for a message of 256 GiB and more.
    cipher.encrypt(&nonce(drawn, piece), Payload { msg, aad }).unwrap_or_default()
}

fn open(
    cipher: &XChaCha20Poly1305,
    drawn: &Drawn,
    piece: u64,
    aad: &[u8],
    msg: &[u8],
) -> Option<Vec<u8>> {
    cipher.decrypt(&nonce(drawn, piece), Payload { msg, aad }).ok()
}

impl CacheSeal {
    /// The keys for the caches of a volume with this master key. `None` if they cannot be derived.
    pub(crate) fn new(master: &Master, volume: VolumeId) -> Option<Self> {
        let of = |purpose| derived(master, volume, purpose);
        Some(Self { log: of("log")?, lines: of("lines")? })
    }

    /// Seals the head of a file of the log: the random bytes, and a tag.
    pub(crate) fn seal_file(&self, head: &[u8]) -> Vec<u8> {
        let drawn = random::bytes();
        [&drawn[..], &seal(&self.log, &drawn, 0, &file_aad(head), b"")].concat()
    }

    /// Whether the head of a file was sealed with these keys.
    pub(crate) fn opens_file(&self, head: &[u8], sealed: &[u8]) -> bool {
        let Some((drawn, tag)) = sealed.split_first_chunk::<DRAWN>() else { return false };
        open(&self.log, drawn, 0, &file_aad(head), tag).is_some()
    }

    /// Seals one line of the read cache. `place` names the line and its slot.
    pub(crate) fn seal_line(&self, place: &[u8], line: &[u8]) -> Vec<u8> {
        let drawn = random::bytes();
        [&drawn[..], &seal(&self.lines, &drawn, 0, place, line)].concat()
    }

    /// Opens a line. `None` if the bytes were not sealed for this place.
    pub(crate) fn open_line(&self, place: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (drawn, msg) = sealed.split_first_chunk::<DRAWN>()?;
        open(&self.lines, drawn, 0, place, msg)
    }
}

/// The associated data for the head of a file. The first bytes of this data differ from the header
/// of a record.
fn file_aad(head: &[u8]) -> Vec<u8> {
    [b"file ", head].concat()
}

/// Seals and opens the pieces of one record of the log.
#[derive(Clone, Debug)]
pub(crate) struct RecordSeal {
    seal: CacheSeal,
    drawn: Drawn,
    /// The header of the record, with its checksum zero.
    header: [u8; HEADER],
    frames: u32,
}

/// The length of sealed frames, in bytes.
pub(crate) fn sealed_frames(frames: u32) -> u64 {
    let frames = u64::from(frames);
    frames * FRAME as u64 + frames.div_ceil(PIECE_FRAMES as u64) * TAG as u64
}

impl RecordSeal {
    /// For a record with this header and these random bytes.
    pub(crate) fn new(seal: &CacheSeal, drawn: Drawn, header: &[u8], frames: u32) -> Option<Self> {
        let mut header: [u8; HEADER] = header.get(..HEADER)?.try_into().ok()?;
        header[12..16].fill(0);
        Some(Self { seal: seal.clone(), drawn, header, frames })
    }

    /// Seals the extents of the record.
    pub(crate) fn seal_extents(&self, extents: &[u8]) -> Vec<u8> {
        seal(&self.seal.log, &self.drawn, 0, &self.header, extents)
    }

    /// Opens the extents of the record.
    pub(crate) fn open_extents(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        open(&self.seal.log, &self.drawn, 0, &self.header, sealed)
    }

    /// Seals all frames of the record.
    pub(crate) fn seal_frames(&self, frames: &[u8]) -> Vec<u8> {
        let mut sealed = Vec::with_capacity(sealed_frames(self.frames) as usize);
        for (piece, msg) in (1..).zip(frames.chunks(PIECE)) {
            sealed.extend(seal(&self.seal.log, &self.drawn, piece, &self.header, msg));
        }
        sealed
    }

    /// Returns the range of sealed bytes that holds some frames, and the number of frames before
    /// that range. The range counts from the record's first sealed frame on.
    pub(crate) fn range(&self, first: u32, count: u32) -> (std::ops::Range<u64>, u32) {
        let (piece, frames) = (PIECE_FRAMES as u32, self.frames);
        let from = first / piece;
        let end = (first + count).div_ceil(piece).saturating_mul(piece).min(frames);
        (sealed_frames(from * piece)..sealed_frames(end), from * piece)
    }

    /// Opens pieces of frames, the first of which begins with frame `first` of the record.
    pub(crate) fn open_frames(&self, first: u32, sealed: &[u8]) -> Option<Vec<u8>> {
        let mut frames = Vec::with_capacity(sealed.len());
        let from = u64::from(first) / PIECE_FRAMES as u64 + 1;
        for (piece, msg) in (from..).zip(sealed.chunks(PIECE + TAG)) {
            frames.extend(open(&self.seal.log, &self.drawn, piece, &self.header, msg)?);
        }
        Some(frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(master: u8, volume: u8) -> CacheSeal {
        CacheSeal::new(&Master([master; 32]), VolumeId([volume; 16])).expect("keys")
    }

    /// Q1 to Q3: a line opens only with its key and only at its place. Two seals of a line differ.
    #[test]
    fn a_line_opens_at_its_place_alone() {
        let sealed = keys(1, 1).seal_line(b"here", b"a line of content");
        assert_eq!(keys(1, 1).open_line(b"here", &sealed).expect("right"), b"a line of content");
        assert!(keys(1, 1).open_line(b"there", &sealed).is_none());
        assert!(keys(2, 1).open_line(b"here", &sealed).is_none());
        assert!(keys(1, 2).open_line(b"here", &sealed).is_none());
        assert_ne!(keys(1, 1).seal_line(b"here", b"a line of content"), sealed);
        for bit in 0..sealed.len() * 8 {
            let mut other = sealed.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(keys(1, 1).open_line(b"here", &other).is_none(), "bit {bit}");
        }
        let log = keys(1, 1).seal_file(b"here");
        assert!(keys(1, 1).opens_file(b"here", &log) && !keys(1, 1).opens_file(b"her", &log));
        assert!(keys(1, 1).open_line(b"file here", &log).is_none(), "a key for each use");
    }

    /// Q3: each range of frames is opened alone, and a piece of another record is refused.
    #[test]
    fn frames_open_by_pieces_and_in_their_record() {
        let frames: Vec<u8> = (0..37 * FRAME).map(|at| (at / 11) as u8).collect();
        let of = |sequence: u8, drawn: Drawn| {
            RecordSeal::new(&keys(3, 3), drawn, &[sequence; HEADER], 37).expect("a header")
        };
        let (this, other) = (of(1, [9; 16]), of(2, [9; 16]));
        let sealed = this.seal_frames(&frames);
        assert_eq!(sealed.len() as u64, sealed_frames(37));
        for (first, count) in [(0, 1), (0, 37), (15, 2), (16, 16), (36, 1), (20, 17), (5, 0)] {
            let (range, before) = this.range(first, count);
            let part = &sealed[range.start as usize..range.end as usize];
            let found = this.open_frames(before, part).expect("right");
            let skip = (first - before) as usize * FRAME;
            let from = first as usize * FRAME;
            let len = count as usize * FRAME;
            assert_eq!(found[skip..skip + len], frames[from..from + len], "{first} {count}");
            assert!(part.is_empty() || other.open_frames(before, part).is_none());
            assert!(part.is_empty() || this.open_frames(before + 16, part).is_none());
        }
        let extents = this.seal_extents(b"where");
        assert_eq!(this.open_extents(&extents).expect("right"), b"where");
        assert!(of(1, [8; 16]).open_extents(&extents).is_none());
    }
}
