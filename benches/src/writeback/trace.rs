//! The writes of Linux to an origin, as its dm-log-writes recorded them.
//!
//! # On disk
//!
//! Numbers are little endian. Sector 0 holds a magic number, the version, the number of entries and
//! the bytes of a sector. Everything after sector 0 is in units of a sector. Each entry has a
//! header in a sector of its own: sector, sectors, flags, bytes of data. The data follows, except
//! after a discard. The data is not used here. Entries stand in the order in which writes were
//! done. A mark carries a text behind its header: `steady` begins the measured part, and `flush`
//! begins the flush of everything.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::disk::Disk;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Write { offset: u64, len: u64 },
    Flush,
}

#[derive(Debug, Default)]
pub(super) struct Trace {
    /// From the mark `steady` to the mark `flush`.
    pub(super) steady: Vec<Request>,
    /// After the mark `flush`.
    pub(super) flush: Vec<Request>,
}

impl Trace {
    pub(super) fn writes(&self) -> impl Iterator<Item = (u64, u64)> {
        self.steady.iter().chain(&self.flush).filter_map(|request| match *request {
            Request::Write { offset, len } => Some((offset, len)),
            Request::Flush => None,
        })
    }

    /// Plays the recorded requests on a disk.
    pub(super) fn play(&self, disk: &Disk, requests: &[Request]) {
        for request in requests {
            match *request {
                Request::Write { offset, len } => disk.take(offset, len),
                Request::Flush => disk.settle(),
            }
        }
        disk.settle();
    }
}

/// Reads a log.
pub(super) fn read(path: &Path) -> Result<Trace, String> {
    let of_path = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(of_path)?;
    let words = |offset: u64| -> std::io::Result<[u64; 4]> {
        let mut bytes = [0; 32];
        file.read_exact_at(&mut bytes, offset)?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        Ok([word(0), word(8), word(16), word(24)])
    };
    let [magic, _, entries, sector] = words(0).map_err(of_path)?;
    let sector = sector & 0xffff_ffff;
    if magic != MAGIC || !matches!(sector, 512..=65536) {
        return Err(format!("{}: is no log of dm-log-writes", path.display()));
    }
    let mut trace = Trace::default();
    let mut place = sector;
    let mut into: Option<&mut Vec<Request>> = None;
    for _ in 0..entries {
        let [at, count, flags, data] = words(place).map_err(of_path)?;
        let bytes = |count: u64| count.checked_mul(sector).ok_or("a number is too large");
        if flags & MARK != 0 {
            let mut text = vec![0; data.min(64) as usize];
            file.read_exact_at(&mut text, place + 32).map_err(of_path)?;
            into = match &text[..] {
                text if text.starts_with(b"steady") => Some(&mut trace.steady),
                text if text.starts_with(b"flush") => Some(&mut trace.flush),
                _ => into,
            };
        } else if let Some(into) = into.as_mut() {
            if flags & FLUSH != 0 {
                into.push(Request::Flush);
            }
            if count > 0 && flags & DISCARD == 0 {
                into.push(Request::Write { offset: bytes(at)?, len: bytes(count)? });
            }
        }
        let data = if flags & DISCARD == 0 { bytes(count)? } else { 0 };
        place = place.checked_add(sector + data).ok_or("a number is too large")?;
    }
    Ok(trace)
}
