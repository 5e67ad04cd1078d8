//! Reads tar archives as a stream: ustar, the extensions of POSIX (PAX) and of GNU, sparse files.
//!
//! This code is written for the project: the crates for archives do not read the sparse files that
//! GNU tar writes with PAX.
//!
//! # Invariants
//!
//! - **T1** Nothing of an archive is trusted: every number is checked, and every list has a limit.
//!   A contradiction is an error.
//! - **T2** An archive is read once from its beginning to its end, with memory for one entry.

mod entry;
mod header;
mod pax;

use std::io::{self, Read};

use self::entry::{BLOCK, NAME_MAX, PAX_MAX, RUNS_MAX, wrong};
pub(super) use self::entry::{Entry, Kind};
use self::header::{Header, is_zero, sparse_runs};
use self::pax::{Both, Pax};

/// An archive being read.
pub(super) struct Archive<R> {
    input: R,
    /// Bytes of the present entry's content that were not read yet.
    left: u64,
    /// Bytes between the end of the content and the next block.
    padding: u64,
    /// Extensions of all entries.
    global: Pax,
}

impl<R: Read> Archive<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, left: 0, padding: 0, global: Pax::default() }
    }

    /// Goes to the next entry. `None` at the end.
    ///
    /// # Errors
    ///
    /// `InvalidData` if the input is no archive, or is of a kind that cannot be read. Errors of the
    /// input.
    pub(super) fn next(&mut self) -> io::Result<Option<Entry>> {
        let mut own = Pax::default();
        let (mut name, mut link) = (None, None);
        loop {
            self.skip()?;
            let Some(block) = self.block()? else {
                return Ok(None);
            };
            if is_zero(&block) {
                return Ok(None);
            }
            let header = Header::parse(&block)?;
            let len = header.size;
            match block[156] {
                kind @ (b'x' | b'g') => {
                    // All extensions that are kept share one limit (T1).
                    let room = PAX_MAX.saturating_sub(self.global.len() + own.len());
                    let bytes = self.extension(len, room)?;
                    if kind == b'x' { own.add(&bytes)? } else { self.global.add(&bytes)? }
                }
                b'L' => name = Some(until_zero(self.extension(len, NAME_MAX)?)),
                b'K' => link = Some(until_zero(self.extension(len, NAME_MAX)?)),
                b'V' => self.follows(len)?,
                _ => {
                    let global = std::mem::take(&mut self.global);
                    let pax = Both { global: &global, own: &own };
                    let entry = self.entry(&block, header, &pax, (name, link));
                    self.global = global;
                    return entry.map(Some);
                }
            }
        }
    }

    /// Reads stored content of the present entry, without the holes between its parts. Returns zero
    /// at the end.
    pub(super) fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.left).map_or(buf.len(), |left| left.min(buf.len()));
        self.input.read_exact(&mut buf[..want]).map_err(cut)?;
        self.left -= want as u64;
        Ok(want)
    }

    /// Reads the rest of the input, so that a program that writes into a pipe can end.
    pub(super) fn drain(mut self) -> io::Result<()> {
        io::copy(&mut self.input, &mut io::sink()).map(drop)
    }

    fn entry(
        &mut self,
        block: &[u8; BLOCK],
        header: Header,
        pax: &Both<'_>,
        (name, link): (Option<Vec<u8>>, Option<Vec<u8>>),
    ) -> io::Result<Entry> {
        let mut entry = header.entry;
        entry.path = name.unwrap_or(entry.path);
        entry.link = link.unwrap_or(entry.link);
        let stored = pax.size()?.unwrap_or(header.size);
        pax.apply(&mut entry)?;
        let is_file = matches!(entry.kind, Kind::Regular);
        // Only regular files and GNU's directories of type `D` have content. Some programs give a
        // size to other entries.
        let has_content = is_file || matches!(entry.kind, Kind::Directory) && block[156] == b'D';
        self.follows(if has_content { stored } else { 0 })?;
        entry.size = if is_file { stored } else { 0 };
        if !is_file {
            return Ok(entry);
        }
        let sparse = if block[156] == b'S' {
            Some(self.sparse_of_gnu(block)?)
        } else {
            pax.sparse(|bytes| self.read(bytes).and_then(|read| whole(read, bytes.len())))?
        };
        entry.runs = if stored == 0 { Vec::new() } else { vec![(0, stored)] };
        if let Some((size, runs)) = sparse {
            (entry.size, entry.runs) = (size, runs);
        }
        check_runs(&entry, self.left)?;
        Ok(entry)
    }

    /// Reads the rest of the map of an entry with GNU's own type.
    fn sparse_of_gnu(&mut self, block: &[u8; BLOCK]) -> io::Result<(u64, Vec<(u64, u64)>)> {
        let size = header::number(&block[483..495])?;
        let mut runs = sparse_runs(&block[386..482])?;
        let mut goes_on = block[482] != 0;
        while goes_on {
            // The blocks of the map stand before the content, and do not count as content.
            let more = self.block()?.ok_or_else(|| wrong("it ends within a map of holes"))?;
            runs.extend(sparse_runs(&more[..504])?);
            goes_on = more[504] != 0;
            if runs.len() > RUNS_MAX {
                return Err(wrong("a file has too many holes"));
            }
        }
        Ok((size, runs))
    }

    /// Reads a block. `None` at the end of the input.
    fn block(&mut self) -> io::Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        let mut read = 0;
        while read < BLOCK {
            match self.input.read(&mut block[read..]) {
                Ok(0) if read == 0 => return Ok(None),
                Ok(0) => return Err(wrong("it ends within a block")),
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(block))
    }

    fn extension(&mut self, len: u64, most: u64) -> io::Result<Vec<u8>> {
        if len > most {
            return Err(wrong("an extension is too long"));
        }
        self.follows(len)?;
        let mut bytes = vec![0; len as usize];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    fn follows(&mut self, len: u64) -> io::Result<()> {
        let end = len.checked_next_multiple_of(BLOCK as u64);
        self.padding = end.ok_or_else(|| wrong("an entry is too long"))? - len;
        self.left = len;
        Ok(())
    }

    /// Passes over the rest of an entry.
    fn skip(&mut self) -> io::Result<()> {
        let len = self.left + self.padding;
        let passed = io::copy(&mut (&mut self.input).take(len), &mut io::sink())?;
        // The last block may lack its padding.
        if passed < self.left {
            return Err(wrong("it ends within a file"));
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }
}

fn whole(read: usize, wanted: usize) -> io::Result<()> {
    if read == wanted { Ok(()) } else { Err(wrong("it ends within a map of holes")) }
}

fn cut(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => wrong("it ends within a file"),
        _ => error,
    }
}

fn until_zero(mut bytes: Vec<u8>) -> Vec<u8> {
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes.truncate(len);
    bytes
}

/// Checks the parts of a file: they are in order, lie within the file, and make up all stored
/// bytes.
fn check_runs(entry: &Entry, stored: u64) -> io::Result<()> {
    let mut end = 0;
    let mut sum: u64 = 0;
    for &(offset, len) in &entry.runs {
        let after = offset.checked_add(len).filter(|&after| offset >= end && after <= entry.size);
        end = after.ok_or_else(|| wrong("parts of a file overlap, or lie past its end"))?;
        sum += len;
    }
    if sum != stored || entry.size > i64::MAX as u64 {
        return Err(wrong("the parts of a file are not what is stored of it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
