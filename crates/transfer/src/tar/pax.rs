//! The extensions of POSIX to entries: lines of `LENGTH key=value`.

use std::collections::BTreeMap;
use std::io;

use super::entry::{BLOCK, Entry, RUNS_MAX, wrong};

const XATTR: &[u8] = b"SCHILY.xattr.";
const ACL: &[u8] = b"SCHILY.acl.";

/// The length of a file and the parts of it that are stored.
type Sparse = (u64, Vec<(u64, u64)>);

/// Extensions, in the order in which they stand. If a key repeats, its last value counts, except
/// for the parts of a sparse file.
#[derive(Debug, Default)]
pub(super) struct Pax {
    all: Vec<(Vec<u8>, Vec<u8>)>,
    /// The bytes that the extensions take in the archive.
    len: u64,
}

/// The extensions of all entries, and those of one entry, which take precedence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Both<'p> {
    pub(super) global: &'p Pax,
    pub(super) own: &'p Pax,
}

impl Pax {
    /// Adds the lines of an extension.
    pub(super) fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.len += bytes.len() as u64;
        let mut rest = bytes;
        while !rest.is_empty() {
            let bad = || wrong("an extension has a wrong length");
            let space = rest.iter().position(|&byte| byte == b' ').ok_or_else(bad)?;
            let len = decimal(&rest[..space])? as usize;
            if len > rest.len() || len < space + 2 || rest[len - 1] != b'\n' {
                return Err(bad());
            }
            let line = &rest[space + 1..len - 1];
            let equals = line.iter().position(|&byte| byte == b'=').ok_or_else(bad)?;
            let (key, value) = (line[..equals].to_vec(), line[equals + 1..].to_vec());
            self.all.push((key, value));
            rest = &rest[len..];
        }
        Ok(())
    }

    /// Returns the bytes that the extensions take in the archive.
    pub(super) fn len(&self) -> u64 {
        self.len
    }
}

impl<'p> Both<'p> {
    fn each(&self) -> impl DoubleEndedIterator<Item = &'p (Vec<u8>, Vec<u8>)> {
        self.global.all.iter().chain(&self.own.all)
    }

    fn get(&self, key: &[u8]) -> Option<&'p [u8]> {
        let found = self.each().rev().find(|(there, _)| there == key);
        found.map(|(_, value)| value.as_slice())
    }

    /// Returns the length of the stored content, if the extensions have it. A length that is too
    /// large for the header's field is in the extensions.
    pub(super) fn size(&self) -> io::Result<Option<u64>> {
        self.get(b"size").map(decimal).transpose()
    }

    /// Overrides fields of an entry by these extensions.
    pub(super) fn apply(&self, entry: &mut Entry) -> io::Result<()> {
        let mut xattrs = BTreeMap::new();
        for (key, value) in self.each() {
            match key.as_slice() {
                b"path" => entry.path.clone_from(value),
                b"linkpath" => entry.link.clone_from(value),
                b"GNU.sparse.name" => {}
                b"uid" => entry.uid = small(value)?,
                b"gid" => entry.gid = small(value)?,
                b"mtime" => entry.mtime = time(value)?,
                b"atime" => entry.atime = Some(time(value)?),
                b"uname" => entry.names.0.clone_from(value),
                b"gname" => entry.names.1.clone_from(value),
                b"SCHILY.acl.access" => entry.acl = Some(value.clone()),
                b"SCHILY.acl.default" => entry.default_acl = Some(value.clone()),
                key if key.starts_with(ACL) => entry.has_other_acl = true,
                key => {
                    if let Some(name) = key.strip_prefix(XATTR) {
                        xattrs.insert(name.to_vec(), value.clone());
                    }
                }
            }
        }
        // The header of a sparse file has an invented path, and this key has the real path.
        if let Some(name) = self.get(b"GNU.sparse.name") {
            entry.path = name.to_vec();
        }
        entry.xattrs = xattrs.into_iter().collect();
        Ok(())
    }

    /// Returns the length and the stored parts of a sparse file, and `None` for any other file.
    /// `read` reads the content, which may begin with the map.
    pub(super) fn sparse(
        &self,
        mut read: impl FnMut(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<Option<Sparse>> {
        let size = self.get(b"GNU.sparse.realsize").or_else(|| self.get(b"GNU.sparse.size"));
        let Some(size) = size.map(decimal).transpose()? else { return Ok(None) };
        let pairs = |numbers: Vec<u64>| match numbers.len() {
            len if len.is_multiple_of(2) && len / 2 <= RUNS_MAX => {
                Ok(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
            }
            _ => Err(wrong("a map of holes is cut")),
        };
        if self.get(b"GNU.sparse.major").is_some() {
            return Ok(Some((size, pairs(map_in_content(&mut read)?)?)));
        }
        if let Some(map) = self.get(b"GNU.sparse.map") {
            let numbers = map.split(|&byte| byte == b',').filter(|word| !word.is_empty());
            return Ok(Some((size, pairs(numbers.map(decimal).collect::<io::Result<_>>()?)?)));
        }
        let is_part = |key: &[u8]| matches!(key, b"GNU.sparse.offset" | b"GNU.sparse.numbytes");
        let parts = self.each().filter(|(key, _)| is_part(key));
        let numbers = parts.map(|(_, value)| decimal(value)).collect::<io::Result<_>>()?;
        Ok(Some((size, pairs(numbers)?)))
    }
}

/// Reads the map at the start of the content: a count, then twice as many numbers, each on a line.
/// The map is padded to whole blocks.
fn map_in_content(read: &mut dyn FnMut(&mut [u8]) -> io::Result<()>) -> io::Result<Vec<u64>> {
    let mut block = [0; BLOCK];
    let mut at = BLOCK;
    let mut next = || -> io::Result<u64> {
        let mut digits = Vec::new();
        loop {
            if at == BLOCK {
                read(&mut block)?;
                at = 0;
            }
            let byte = block[at];
            at += 1;
            match byte {
                b'\n' => return decimal(&digits),
                _ if digits.len() < 20 => digits.push(byte),
                _ => return Err(wrong("a map of holes has a wrong number")),
            }
        }
    };
    let count = next()?;
    if count > RUNS_MAX as u64 {
        return Err(wrong("a file has too many holes"));
    }
    (0..2 * count).map(|_| next()).collect()
}

fn decimal(bytes: &[u8]) -> io::Result<u64> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| !text.starts_with('+'));
    text.and_then(|text| text.parse().ok()).ok_or_else(|| wrong("an extension has a wrong number"))
}

fn small(bytes: &[u8]) -> io::Result<u32> {
    u32::try_from(decimal(bytes)?).map_err(|_| wrong("an owner has a number that is too large"))
}

/// Reads seconds with a fraction. Nanoseconds count forward in time, also before 1970.
fn time(bytes: &[u8]) -> io::Result<(i64, u32)> {
    let bad = || wrong("a time is none");
    let text = std::str::from_utf8(bytes).map_err(|_| bad())?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad());
    }
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let nanos = digits.fold(0, |nanos, digit| nanos * 10 + u32::from(digit - b'0'));
    let seconds: i64 = whole.parse().map_err(|_| bad())?;
    match whole.starts_with('-') && nanos > 0 {
        true => Ok((seconds.checked_sub(1).ok_or_else(bad)?, 1_000_000_000 - nanos)),
        false => Ok((seconds, nanos)),
    }
}
