//! The block in front of each entry of an archive.
//!
//! ```text
//! name 100 | mode 8 | uid 8 | gid 8 | size 12 | mtime 12 | sum 8 | type 1 | link 100 | magic 8 |
//! user 32 | group 32 | major 8 | minor 8 | prefix 155
//! GNU, in the place of the prefix: atime 12 | ctime 12 | 17 | map of holes 96 | more 1 | size 12
//! ```

use std::io;

use super::entry::{BLOCK, Entry, Kind, wrong};

/// The first bytes of files of gzip, zstd, xz and bzip2.
const PACKED: [&[u8]; 4] = [b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh"];

/// A header, and the bytes that follow it.
pub(super) struct Header {
    pub(super) entry: Entry,
    /// The length of the stored content behind the header.
    pub(super) size: u64,
}

impl Header {
    pub(super) fn parse(block: &[u8; BLOCK]) -> io::Result<Self> {
        if PACKED.iter().any(|magic| block.starts_with(magic)) {
            return Err(wrong("it is compressed: unpack it on the way in, as by zcat"));
        }
        let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
        let stored: u64 = block[148..156].iter().map(|&byte| u64::from(byte)).sum();
        if number(&block[148..156])? != sum - stored + 8 * u64::from(b' ') {
            return Err(wrong("the checksum of a header is wrong"));
        }
        let size = number(&block[124..136])?;
        let mut path = text(&block[..100]);
        let is_posix = &block[257..263] == b"ustar\0";
        let has_names = block[257..262] == *b"ustar";
        let name = |from: usize| match has_names {
            true => text(&block[from..from + 32]),
            false => Vec::new(),
        };
        if is_posix && block[345] != 0 {
            path = [text(&block[345..500]), path].join(&b'/');
        }
        let kind = match block[156] {
            // The oldest archives have no type for directories.
            0 | b'0' if path.last() == Some(&b'/') => Kind::Directory,
            0 | b'0' | b'7' | b'S' => Kind::Regular,
            b'1' => Kind::Link,
            b'2' => Kind::Symlink,
            b'3' => Kind::Character,
            b'4' => Kind::Block,
            b'5' | b'D' => Kind::Directory,
            b'6' => Kind::Fifo,
            // Extensions, which are not entries.
            b'x' | b'g' | b'L' | b'K' | b'V' => Kind::Regular,
            b'M' => return Err(wrong("it is one of several volumes of an archive")),
            other => {
                let kind = char::from(other).escape_default();
                return Err(wrong(&format!("an entry is of the unknown kind '{kind}'")));
            }
        };
        let is_device = matches!(kind, Kind::Character | Kind::Block);
        let device = |from: usize| match is_device {
            true => small(&block[from..from + 8]),
            false => Ok(0),
        };
        let entry = Entry {
            path,
            kind,
            mode: small(&block[100..108])? & 0o7777,
            uid: small(&block[108..116])?,
            gid: small(&block[116..124])?,
            mtime: (signed(&block[136..148])?, 0),
            device: (device(329)?, device(337)?),
            link: text(&block[157..257]),
            names: (name(265), name(297)),
            ..Entry::default()
        };
        Ok(Self { entry, size })
    }
}

pub(super) fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|&byte| byte == 0)
}

fn text(field: &[u8]) -> Vec<u8> {
    field.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
}

/// Reads a number. It is in octal digits, or in binary if the highest bit of the first byte is set.
fn signed(field: &[u8]) -> io::Result<i64> {
    match field.first() {
        Some(&first) if first & 0x80 != 0 => {
            let is_negative = first & 0x40 != 0;
            let begin = i128::from(first & 0x3f) - if is_negative { 0x40 } else { 0 };
            let value = field[1..].iter().try_fold(begin, |value, &byte| {
                value.checked_mul(256).map(|value| value + i128::from(byte))
            });
            let value = value.and_then(|value| i64::try_from(value).ok());
            value.ok_or_else(|| wrong("a number is too large"))
        }
        _ => {
            let digits = field.iter().skip_while(|&&byte| byte == b' ');
            let digits = digits.take_while(|&&byte| !matches!(byte, b' ' | 0));
            digits.copied().try_fold(0_i64, |value, digit| match digit {
                b'0'..=b'7' => value
                    .checked_mul(8)
                    .map(|value| value + i64::from(digit - b'0'))
                    .ok_or_else(|| wrong("a number is too large")),
                _ => Err(wrong("a number of a header is none")),
            })
        }
    }
}

pub(super) fn number(field: &[u8]) -> io::Result<u64> {
    u64::try_from(signed(field)?).map_err(|_| wrong("a length is negative"))
}

fn small(field: &[u8]) -> io::Result<u32> {
    u32::try_from(signed(field)?).map_err(|_| wrong("a number is too large"))
}

/// Reads a part of GNU's map of holes: offsets and lengths of data, up to an empty field.
pub(super) fn sparse_runs(fields: &[u8]) -> io::Result<Vec<(u64, u64)>> {
    let mut runs = Vec::new();
    for field in fields.chunks_exact(24).take_while(|field| field[0] != 0) {
        runs.push((number(&field[..12])?, number(&field[12..])?));
    }
    Ok(runs)
}
