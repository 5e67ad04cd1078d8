//! The local log, on a disk of this machine: the writes that are not in a commit yet.
//!
//! # Invariants
//!
//! - **L1** Records are in the order of the writes. A cut, the record of an acknowledged flush, is
//!   written after all data that the flush covers.
//! - **L2** A new file is begun only when the file before it is durable. So an incomplete record is
//!   the end of the log. If a later record shows that the incomplete record was durable once, the
//!   log is damaged instead. The head of a file is durable before its first record.
//! - **L3** A file is removed when a commit has all writes in the file.
//! - **L4** After a failed write or sync nothing more is written to the log.
//! - **L5** The log of an encrypted volume is sealed: extents, frames, and the heads of its files
//!   (`cache_seal`). The manifest says whether the log is sealed. If the newest manifest says that
//!   the log is sealed, a log in clear text is not replayed.
//!
//! # Format
//!
//! `docs/format/remote.md`. A file begins with an envelope and 24 bytes: tag, position and sequence
//! before its first record.

pub(crate) mod record;
pub(crate) mod scan;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::clock;
use buttress_base::sync::Mutex;

use self::record::{Record, Says};
use crate::cache_seal::{CacheSeal, DRAWN, RecordSeal, TAG};
use crate::envelope::{self, Kind, VolumeId};
use crate::segment::{FRAME, Fixed, Segment};
use crate::units::ObjectNumber;

/// Bytes at the start of a file. In a sealed log 16 random bytes and a tag follow.
pub(crate) const FILE_HEAD: usize = envelope::LEN + 24;
pub(crate) const FILE_HEAD_SEALED: usize = FILE_HEAD + DRAWN + TAG;

/// A part of a segment that the log does not have yet.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) object: ObjectNumber,
    pub(crate) fixed: Fixed,
    pub(crate) body: Body,
    /// Once the log has this tail, it has all writes up to this position.
    pub(crate) position: u64,
}

/// The frames of a tail: in a segment that gets no more frames, or in a copy.
#[derive(Debug)]
pub(crate) enum Body {
    Sealed(Arc<Segment>),
    Copied(Vec<u8>),
}

impl Tail {
    /// Whether the tail keeps a whole segment in memory.
    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self.body, Body::Sealed(_))
    }

    fn frames(&self) -> &[u8] {
        match &self.body {
            Body::Sealed(segment) => segment.frames(self.fixed.first_frame, self.fixed.frames),
            Body::Copied(bytes) => bytes,
        }
    }
}

/// Frames of a segment in the log.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) first_frame: u32,
    pub(crate) frames: u32,
    file: Arc<File>,
    offset: u64,
    /// Opens the frames, if the log is sealed.
    seal: Option<Arc<RecordSeal>>,
}

impl Place {
    /// Reads `count` frames of the record, from its frame `first` on. Does not check their
    /// checksums.
    pub(crate) fn read(&self, first: u32, count: u32) -> io::Result<Vec<u8>> {
        let len = count as usize * FRAME;
        let Some(seal) = &self.seal else {
            let mut frames = vec![0; len];
            self.file.read_exact_at(&mut frames, self.offset + u64::from(first) * FRAME as u64)?;
            return Ok(frames);
        };
        let (range, before) = seal.range(first, count);
        let mut sealed = vec![0; (range.end - range.start) as usize];
        self.file.read_exact_at(&mut sealed, self.offset + range.start)?;
        let wrong = || io::Error::other("the local log has something else where a record was");
        let frames = seal.open_frames(before, &sealed).ok_or_else(wrong)?;
        let skip = (first - before) as usize * FRAME;
        frames.get(skip..skip + len).map(<[u8]>::to_vec).ok_or_else(wrong)
    }
}

/// A file of the log.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    file: Arc<File>,
    len: u64,
    position: u64,
}

/// The state that each added record changes.
#[derive(Debug)]
pub(crate) struct Inside {
    parts: VecDeque<Part>,
    next_file: u64,
    sequence: u64,
    position: u64,
    /// Whether an earlier write failed (L4).
    is_broken: bool,
}

/// The log of one writer.
#[derive(Debug)]
pub(crate) struct Log {
    folder: PathBuf,
    volume: VolumeId,
    epoch: u32,
    tag: u64,
    /// The keys, if the volume is encrypted.
    seal: Option<CacheSeal>,
    /// A file takes records until it has this many bytes.
    file_max: u64,
    /// Writers wait while the log has this many bytes or more.
    pub(crate) limit: u64,
    /// Bytes in all files.
    bytes: AtomicU64,
    /// Unranked: held across I/O. A thread that also needs `Core::state` takes this lock first.
    pub(crate) inside: Mutex<Inside>,
}

impl Log {
    /// Begins a log in an empty folder, after `position`.
    pub(crate) fn begin(
        folder: &Path,
        seal: Option<CacheSeal>,
        volume: VolumeId,
        epoch: u32,
        writer: &str,
        position: u64,
        limit: u64,
    ) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let inside = Inside {
            parts: VecDeque::new(),
            next_file: 1,
            sequence: 0,
            position,
            is_broken: false,
        };
        Ok(Self {
            folder: folder.to_owned(),
            volume,
            epoch,
            tag: record::tag(writer),
            seal,
            file_max: (limit / 8).clamp(1 << 20, 64 << 20),
            limit,
            bytes: AtomicU64::new(0),
            inside: Mutex::new(inside),
        })
    }

    /// Bytes of the log on the disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether writers must wait for the store, since the log is too long.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes() >= self.limit
    }

    /// Whether a commit should be made so that the log can shrink.
    pub(crate) fn is_long(&self) -> bool {
        self.bytes() >= self.limit / 2
    }

    /// Adds a tail (L1), and returns where its frames are.
    pub(crate) fn append(&self, inside: &mut Inside, tail: &Tail) -> io::Result<Place> {
        let says = Record::of_data(tail.object, &tail.fixed);
        let place = self.add(inside, tail.position, says, tail)?;
        inside.position = inside.position.max(tail.position);
        Ok(place)
    }

    /// Adds a cut, and makes everything durable (L1).
    pub(crate) fn cut(&self, inside: &mut Inside, position: u64) -> io::Result<()> {
        let says = Says::Cut { time_ms: clock::wall().as_millis() as u64 };
        let fixed = Fixed { first_frame: 0, frames: 0, extents: Vec::new() };
        let body = Body::Copied(Vec::new());
        let none = Tail { object: ObjectNumber(0), fixed, body, position };
        self.add(inside, position, says, &none)?;
        inside.position = inside.position.max(position);
        let synced = match inside.parts.back() {
            Some(part) => part.file.sync_data(),
            None => Ok(()),
        };
        inside.is_broken |= synced.is_err();
        synced
    }

    fn add(
        &self,
        inside: &mut Inside,
        position: u64,
        says: Says,
        tail: &Tail,
    ) -> io::Result<Place> {
        if inside.is_broken {
            return Err(io::Error::other("an earlier write of the local log failed"));
        }
        let added = self.add_whole(inside, position, says, tail);
        inside.is_broken |= added.is_err();
        added
    }

    fn add_whole(
        &self,
        inside: &mut Inside,
        position: u64,
        says: Says,
        tail: &Tail,
    ) -> io::Result<Place> {
        if inside.parts.back().is_none_or(|part| part.len >= self.file_max) {
            self.add_file(inside)?;
        }
        inside.sequence += 1;
        let record = Record { tag: self.tag, sequence: inside.sequence, position, says };
        let (head, seal) = record.encode(&tail.fixed.extents, self.seal.as_ref());
        if seal.is_some() != self.seal.is_some() {
            return Err(io::Error::other("a record cannot be sealed"));
        }
        let seal = seal.map(Arc::new);
        let Some(part) = inside.parts.back_mut() else {
            return Err(io::Error::other("the local log has no file"));
        };
        let frames = match &seal {
            Some(seal) => Cow::Owned(seal.seal_frames(tail.frames())),
            None => Cow::Borrowed(tail.frames()),
        };
        let offset = part.len + head.len() as u64;
        part.file.write_all_at(&head, part.len)?;
        part.file.write_all_at(&frames, offset)?;
        let len = (head.len() + frames.len()) as u64;
        part.len += len;
        part.position = part.position.max(position);
        self.bytes.fetch_add(len, Ordering::Relaxed);
        let (first_frame, frames) = (tail.fixed.first_frame, tail.fixed.frames);
        Ok(Place { first_frame, frames, file: Arc::clone(&part.file), offset, seal })
    }

    /// Begins a file, once the preceding file is durable (L2).
    fn add_file(&self, inside: &mut Inside) -> io::Result<()> {
        if let Some(last) = inside.parts.back() {
            last.file.sync_data()?;
        }
        let mut body = Vec::with_capacity(24);
        for value in [self.tag, inside.position, inside.sequence] {
            body.extend_from_slice(&value.to_le_bytes());
        }
        let numbers = (inside.next_file, self.epoch);
        let is_sealed = self.seal.is_some();
        let mut head = envelope::wrap_local(is_sealed, Kind::Log, self.volume, numbers, &body);
        if let Some(seal) = &self.seal {
            let sealed = seal.seal_file(&head);
            head.extend(sealed);
        }
        let path = self.folder.join(format!("{:016x}", inside.next_file));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        file.write_all_at(&head, 0)?;
        file.sync_all()?;
        File::open(&self.folder)?.sync_all()?;
        inside.next_file += 1;
        self.bytes.fetch_add(head.len() as u64, Ordering::Relaxed);
        let (file, len, position) = (Arc::new(file), head.len() as u64, inside.position);
        inside.parts.push_back(Part { path, file, len, position });
        Ok(())
    }

    /// Removes each file if a commit has all writes in it (L3).
    pub(crate) fn release(&self, committed: u64) {
        let mut inside = self.inside.lock();
        while let Some(first) = inside.parts.front() {
            let is_last = inside.parts.len() == 1;
            if first.position > committed || is_last && first.len < self.file_max / 2 {
                break;
            }
            if let Err(error) = std::fs::remove_file(&first.path) {
                tracing::warn!(path = %first.path.display(), %error, "a file of the log stays");
            }
            self.bytes.fetch_sub(first.len, Ordering::Relaxed);
            inside.parts.pop_front();
        }
    }

    /// Removes all files, once the volume is closed and a commit has everything.
    pub(crate) fn clear(&self) -> io::Result<()> {
        let mut inside = self.inside.lock();
        inside.is_broken = true;
        inside.parts.clear();
        self.bytes.store(0, Ordering::Relaxed);
        remove_files(&self.folder)
    }
}

/// Removes the files of a log.
pub(crate) fn remove_files(folder: &Path) -> io::Result<()> {
    for path in scan::files(folder)? {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
