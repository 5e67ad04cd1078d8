//! Reads a local log after a crash.
//!
//! # Invariants
//!
//! - **S1** Only records up to the last whole cut are used. Writes after that cut were not
//!   acknowledged.
//! - **S2** An incomplete record ends the log. If a cut and one more record follow it, or if a
//!   newer file follows, later writes were acknowledged. In that case the incomplete record is
//!   damage.
//! - **S3** The head of a file is durable before its first record. So a file with records and an
//!   unreadable head is damage, unless a later file follows. A head of a newer version is an error.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::record::{self, MAGIC, Record, Says, Whole};
use super::{FILE_HEAD, FILE_HEAD_SEALED};
use crate::cache_seal::CacheSeal;
use crate::envelope::{Envelope, Kind, VERSION_SEALED, VolumeId, damaged, u64_at, unwrap};
use crate::error::{Error, Result};
use crate::unsent::Unsent;

/// A local log as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScannedLog {
    /// The position before its first record.
    pub(crate) begins: u64,
    /// The position of its last whole cut; zero if there is no whole cut.
    pub(crate) position: u64,
    /// The sequence of the last whole cut.
    pub(crate) sequence: u64,
    /// Cuts that a commit lacks, and their bytes.
    pub(crate) cuts: u64,
    pub(crate) bytes: u64,
    /// The times of the first and the last of these cuts, in milliseconds since 1970.
    pub(crate) first_ms: u64,
    pub(crate) last_ms: u64,
    /// Why the log ends before its last acknowledged cut, if it does (S2).
    pub(crate) damage: Option<String>,
}

impl ScannedLog {
    /// Whether a replay over a commit with the writes up to `committed` applies a record: the
    /// commit lacks it, and the last whole cut covers it.
    pub(crate) fn adds(&self, record: &Record, committed: u64) -> bool {
        record.position > committed && record.sequence <= self.sequence
    }

    /// The acknowledged writes of the log that no commit has.
    pub(crate) fn unsent(&self) -> Unsent {
        let &Self { cuts, bytes, first_ms, last_ms, .. } = self;
        Unsent { cuts, bytes, first_ms, last_ms }
    }
}

/// The log that a scan expects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) volume: VolumeId,
    pub(crate) tag: u64,
    /// The keys, if the volume is encrypted.
    pub(crate) seal: Option<&'a CacheSeal>,
    /// Whether the log may be in clear text although the volume is encrypted: an earlier program
    /// wrote it.
    pub(crate) may_be_plain: bool,
}

impl Wanted<'_> {
    fn failed(&self, error: &io::Error) -> Error {
        Error::Cache { dir: self.folder.display().to_string(), why: error.to_string() }
    }
}

/// How the records of a file end.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Whole,
    Torn,
    Damaged,
}

/// The files of a log, in their order.
pub(crate) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = paths.collect::<io::Result<Vec<_>>>()?;
    let is_file = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.len() == 16 && u64::from_str_radix(name, 16).is_ok())
    };
    paths.retain(is_file);
    paths.sort_unstable();
    Ok(paths)
}

/// Scans the whole log. `committed` is the position up to which a commit has all writes.
pub(crate) fn look(wanted: Wanted<'_>, committed: u64) -> Result<ScannedLog> {
    let mut found = ScannedLog::default();
    let mut pending = 0;
    let (begins, damage) = walk(wanted, &mut |whole| {
        match whole.record.says {
            Says::Data { .. } if whole.record.position <= committed => {}
            Says::Data { .. } => pending += whole.frames.len() as u64,
            Says::Cut { time_ms } => {
                found.position = whole.record.position;
                found.sequence = whole.record.sequence;
                if whole.record.position > committed {
                    found.cuts += 1;
                    found.bytes += pending;
                    found.last_ms = time_ms;
                    if found.cuts == 1 {
                        found.first_ms = time_ms;
                    }
                }
                pending = 0;
            }
        }
        Ok(())
    })?;
    found.begins = begins;
    found.damage = damage;
    Ok(found)
}

/// Calls `visit` with every whole record. Returns the position before the first record, and the
/// damage, if there is any.
pub(crate) fn walk(
    wanted: Wanted<'_>,
    visit: &mut dyn FnMut(&Whole<'_>) -> Result<()>,
) -> Result<(u64, Option<String>)> {
    let failed = |error| wanted.failed(&error);
    let Newest { files, unreadable } = newest_run(wanted, files(wanted.folder).map_err(failed)?)?;
    let mut begins = 0;
    for (index, (path, head)) in files.iter().enumerate() {
        if index == 0 {
            begins = head.position;
        }
        let bytes = std::fs::read(path).map_err(failed)?;
        let mut last = head.sequence;
        let file = WholeFile { tag: wanted.tag, path, seal: head.seal, from: head.len };
        let (at, end) = file.walk(&bytes, &mut last, visit)?;
        // A file with a successor was durable (`log::L2`). If the successor begins after a later
        // record than the last one found here, records of this file are damaged.
        let is_followed = files.get(index + 1).is_some_and(|(_, next)| next.sequence > last);
        if end == End::Damaged || is_followed {
            let why = format!("{} is damaged at byte {at}", path.display());
            return Ok((begins, Some(why)));
        }
    }
    let why = unreadable.map(|path| format!("the head of {} is damaged", path.display()));
    Ok((begins, why))
}

/// The first bytes of a file.
#[derive(Clone, Copy, Debug)]
struct Head<'a> {
    position: u64,
    sequence: u64,
    /// The keys that open the records of the file, if the records are sealed.
    seal: Option<&'a CacheSeal>,
    /// Bytes of the head.
    len: usize,
}

/// The files of a log that are read.
struct Newest<'a> {
    files: Vec<(PathBuf, Head<'a>)>,
    /// A later file that has records and no readable head (S3).
    unreadable: Option<PathBuf>,
}

/// Returns the newest files that follow one another without a gap. Older files may remain if the
/// machine failed while the log removed files.
fn newest_run(wanted: Wanted<'_>, files: Vec<PathBuf>) -> Result<Newest<'_>> {
    let mut run: Vec<(u64, PathBuf, Head<'_>)> = Vec::new();
    let mut unreadable = None;
    for path in files {
        let first = first_bytes(&path).map_err(|error| wanted.failed(&error))?;
        let name = path.display().to_string();
        let (envelope, head) = match file_head(wanted, &name, &first) {
            Ok(Some(whole)) => whole,
            Ok(None) => continue,
            Err(error @ Error::Version { .. }) => return Err(error),
            Err(_) => {
                // A file that was just begun has no record, so no write in it was acknowledged.
                let has_records = first.len() > least_head(&first);
                unreadable = has_records.then_some(path).or(unreadable);
                continue;
            }
        };
        let is_next = |number: &u64| number.checked_add(1) == Some(envelope.number);
        if run.last().is_some_and(|(number, ..)| !is_next(number)) {
            run.clear();
        }
        run.push((envelope.number, path, head));
        // If an unreadable earlier file left a gap, the position in the head of this file shows the
        // gap.
        unreadable = None;
    }
    let files = run.into_iter().map(|(_, path, head)| (path, head)).collect();
    Ok(Newest { files, unreadable })
}

/// The length of the head of a file. A head without a readable version counts as one in clear text.
fn least_head(first: &[u8]) -> usize {
    match first.get(10..12) {
        Some([2, 0]) => FILE_HEAD_SEALED,
        _ => FILE_HEAD,
    }
}

/// Reads the head of a file. `None` for a file of another volume or log.
fn file_head<'a>(
    wanted: Wanted<'a>,
    name: &str,
    first: &[u8],
) -> Result<Option<(Envelope, Head<'a>)>> {
    let plain = &first[..first.len().min(FILE_HEAD)];
    let (envelope, body) = unwrap(name, Kind::Log, plain)?;
    if envelope.volume != wanted.volume || u64_at(body, 0) != wanted.tag {
        return Ok(None);
    }
    let wrong = |why: &str| Err(damaged(name, why.to_owned()));
    let (seal, len) = match (wanted.seal, envelope.version == VERSION_SEALED) {
        (None, false) => (None, FILE_HEAD),
        (Some(_), false) if wanted.may_be_plain => (None, FILE_HEAD),
        (Some(_), false) => return wrong("it is not encrypted, and should be"),
        (None, true) => return wrong("it is encrypted, and the volume is not"),
        (Some(seal), true) => {
            let sealed = first.get(FILE_HEAD..FILE_HEAD_SEALED).unwrap_or_default();
            if !seal.opens_file(plain, sealed) {
                return wrong("its head was not sealed with the volume's key");
            }
            (Some(seal), FILE_HEAD_SEALED)
        }
    };
    let (position, sequence) = (u64_at(body, 8), u64_at(body, 16));
    Ok(Some((envelope, Head { position, sequence, seal, len })))
}

/// Reads the head of a file and one byte more, or all of a shorter file.
fn first_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut first = Vec::with_capacity(FILE_HEAD_SEALED + 1);
    let limit = FILE_HEAD_SEALED as u64 + 1;
    std::fs::File::open(path)?.take(limit).read_to_end(&mut first)?;
    Ok(first)
}

/// A file of the log, with the facts from its head.
struct WholeFile<'a> {
    tag: u64,
    path: &'a Path,
    seal: Option<&'a CacheSeal>,
    /// Where the first record begins.
    from: usize,
}

impl WholeFile<'_> {
    /// Visits the records. Returns where and how the records end.
    fn walk(
        &self,
        bytes: &[u8],
        last: &mut u64,
        visit: &mut dyn FnMut(&Whole<'_>) -> Result<()>,
    ) -> Result<(usize, End)> {
        let mut at = self.from;
        while at < bytes.len() {
            let next = last.checked_add(1);
            match record::whole(&bytes[at..], self.seal) {
                Some(whole)
                    if whole.record.tag == self.tag && Some(whole.record.sequence) == next =>
                {
                    visit(&whole)?;
                    *last = whole.record.sequence;
                    at += whole.len;
                }
                _ => {
                    record::check_version(self.path, &bytes[at..])?;
                    let is_damaged = self.was_durable(&bytes[at..], *last);
                    return Ok((at, if is_damaged { End::Damaged } else { End::Torn }));
                }
            }
        }
        Ok((at, End::Whole))
    }

    /// Whether a cut and another record follow, both newer than `last` (S2).
    fn was_durable(&self, bytes: &[u8], last: u64) -> bool {
        let mut cut = None;
        for at in 1..bytes.len().saturating_sub(MAGIC.len()) {
            if !bytes[at..].starts_with(MAGIC) {
                continue;
            }
            let Some(record) = record::head(&bytes[at..], self.seal) else { continue };
            if record.tag != self.tag || record.sequence <= last {
                continue;
            }
            if cut.is_some_and(|cut| record.sequence > cut) {
                return true;
            }
            if matches!(record.says, Says::Cut { .. }) {
                cut = Some(record.sequence);
            }
        }
        false
    }
}
