//! A place inside a disk or its image: `disk.img#2`, `disk.img@1MiB`.
//!
//! `docs/format/locations.md` has the grammar for users.
//!
//! # Invariants
//!
//! - **I1** If a file with exactly the given name exists on the host, the name means that file, not
//!   a place inside a disk.
//! - **I2** The lock covers the whole disk, so two programs never open parts of one disk at the
//!   same time.
//! - **I3** Nothing outside of the part is written, and no file is made or grown.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_block::partition::{self, Guid, Kind, Partition, SECTOR};
use buttress_block::{Device, FileDevice, OpenOptions, Window};

use crate::error::{Error, Result};
use crate::options::bytes;
use crate::place::is_remote;

/// A place inside a disk, before it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    disk: PathBuf,
    part: Part,
    /// The name as given.
    place: PathBuf,
}

/// How a name selects a part of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// The partition with this number.
    Number(u32),
    /// The only partition with this name in a GPT.
    Label(String),
    /// The only partition of this kind.
    Kind(Kinds),
    /// The partition with this identifier in a GPT.
    Id(Guid),
    /// The first byte, and the number of bytes.
    Range(u64, Option<u64>),
}

/// A kind of partition, as MBR and GPT tables write it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kinds {
    mbr: Option<u8>,
    gpt: Vec<Guid>,
}

/// The bytes of a disk that a place names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first byte.
    pub start: u64,
    /// The length in bytes.
    pub len: u64,
    /// The number of the partition, if the bytes are a partition.
    pub number: Option<u32>,
}

/// The kinds that have a name, as `sfdisk` calls them.
const KINDS: [(&str, Option<u8>, &[&str]); 6] = [
    ("linux", Some(0x83), &["0fc63daf-8483-4772-8e79-3d69d8477de4"]),
    (
        "root",
        None,
        &[
            "4f68bce3-e8cd-4db1-96e7-fbcaf984b709",
            "b921b045-1df0-41c3-af44-4c6f280d3fae",
            "44479540-f297-41b2-9af7-d131d5f0458a",
            "69dad710-2ce4-4e3c-b16c-21a1d49abed3",
        ],
    ),
    ("home", None, &["933ac7e1-2eb4-4f13-b844-0e14e2aef915"]),
    ("srv", None, &["3b8f8425-20e0-4f3b-907f-1a25a76f98e8"]),
    ("var", None, &["4d21b016-b534-45c2-a9fb-5c16e091fd2d"]),
    ("esp", Some(0xef), &["c12a7328-f81f-11d2-ba4b-00a0c93ec93b"]),
];

impl Kinds {
    fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        if let Some((_, mbr, gpt)) = KINDS.iter().find(|(name, ..)| *name == text) {
            return Some(Self {
                mbr: *mbr,
                gpt: gpt.iter().filter_map(|text| guid(text)).collect(),
            });
        }
        if let Some(one) = guid(&text) {
            return Some(Self { mbr: None, gpt: vec![one] });
        }
        let digits = text.strip_prefix("0x").unwrap_or(&text);
        let is_short = matches!(digits.len(), 1 | 2);
        let byte = u8::from_str_radix(digits, 16).ok().filter(|&byte| is_short && byte != 0)?;
        Some(Self { mbr: Some(byte), gpt: Vec::new() })
    }

    fn holds(&self, kind: Kind) -> bool {
        match kind {
            Kind::Mbr(byte) => self.mbr == Some(byte),
            Kind::Gpt(one) => self.gpt.contains(&one),
        }
    }
}

impl Part {
    /// Reads the text behind the `#` or `@`; `None` if it names no part.
    fn parse(mark: u8, text: &str) -> Option<Self> {
        if mark == b'@' {
            let (start, len) = match text.split_once('+') {
                Some((start, len)) => (start, Some(bytes(len)?)),
                None => (text, None),
            };
            return Some(Self::Range(bytes(start)?, len));
        }
        match text.split_once('=') {
            Some(("label", name)) => (!name.is_empty()).then(|| Self::Label(name.to_owned())),
            Some(("type", kind)) => Kinds::parse(kind).map(Self::Kind),
            Some(("uuid", id)) => guid(&id.to_ascii_lowercase()).map(Self::Id),
            Some(_) => None,
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().ok().filter(|&number| number > 0).map(Self::Number)
            }
            None => None,
        }
    }

    fn holds(&self, part: &Partition) -> bool {
        match self {
            Self::Number(number) => part.number == *number,
            Self::Label(label) => part.label == *label,
            Self::Kind(kinds) => kinds.holds(part.kind),
            Self::Id(id) => part.id == Some(*id),
            Self::Range(start, _) => part.start == *start,
        }
    }
}

/// Reads an identifier in its usual form with four dashes.
fn guid(text: &str) -> Option<Guid> {
    let is_usual = text.len() == 36;
    uuid::Uuid::try_parse(text).ok().filter(|_| is_usual).map(uuid::Uuid::into_bytes)
}

impl Inside {
    /// Parses the name of a volume as a place inside a disk. `None` if the name means anything else
    /// (I1).
    #[must_use]
    pub fn of(volume: &Path) -> Option<Self> {
        let bytes = volume.as_os_str().as_bytes();
        let marks = bytes.iter().enumerate().rev().filter(|(_, byte)| matches!(byte, b'#' | b'@'));
        let mut marks = marks.map(|(at, _)| at).filter(|&at| at > 0).peekable();
        marks.peek()?;
        if is_remote(volume) || volume.symlink_metadata().is_ok() {
            return None;
        }
        marks.find_map(|at| {
            let part = Part::parse(bytes[at], std::str::from_utf8(&bytes[at + 1..]).ok()?)?;
            let disk = PathBuf::from(OsStr::from_bytes(&bytes[..at]));
            let is_file = disk.metadata().is_ok_and(|found| !found.is_dir());
            is_file.then(|| Self { disk, part, place: volume.to_owned() })
        })
    }

    /// The disk or its image.
    #[must_use]
    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// Whether the place names a range of bytes instead of a partition.
    pub(crate) fn is_range(&self) -> bool {
        matches!(self.part, Part::Range(..))
    }

    /// Finds the bytes of an open disk that this place names.
    ///
    /// # Errors
    ///
    /// [`Error::Place`] if no part of the disk matches the place, or if several parts match. Those
    /// of [`partition::read`].
    pub fn region(&self, disk: &dyn Device) -> Result<Region> {
        if let Part::Range(start, len) = self.part {
            return self.range(disk, start, len);
        }
        let Some(all) = partition::read(disk)? else {
            return Err(self.wrong("has no partition table"));
        };
        let mut found = all.iter().filter(|part| self.part.holds(part));
        let numbers = |parts: &mut dyn Iterator<Item = &Partition>| {
            let numbers: Vec<_> = parts.map(|part| format!("#{}", part.number)).collect();
            if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") }
        };
        match (found.next(), found.next()) {
            (Some(part), None) => {
                let (start, len) = part.within(disk)?;
                Ok(Region { start, len, number: Some(part.number) })
            }
            (None, _) => {
                let there = numbers(&mut all.iter());
                Err(self.wrong(&format!("there is no such partition; there are: {there}")))
            }
            (Some(_), Some(_)) => {
                let fit = numbers(&mut all.iter().filter(|part| self.part.holds(part)));
                Err(self.wrong(&format!("several partitions are like this: {fit}")))
            }
        }
    }

    /// A range without a length ends with the partition that begins at its start. If there is no
    /// such partition, the range ends where the next partition begins. A damaged table is ignored,
    /// so that a range still works.
    fn range(&self, disk: &dyn Device, start: u64, len: Option<u64>) -> Result<Region> {
        if !start.is_multiple_of(SECTOR) || len.is_some_and(|len| !len.is_multiple_of(SECTOR)) {
            return Err(self.wrong("offset and length are multiples of 512"));
        }
        let whole = disk.len();
        let table = match partition::read(disk) {
            Ok(table) => table.unwrap_or_default(),
            Err(error) if error.is_io() => return Err(error.into()),
            Err(_) => Vec::new(),
        };
        let here = table.iter().find(|part| part.start == start && start + part.len <= whole);
        // An extended partition begins with a record, in front of its first partition.
        let extended = partition::extended(disk)?;
        let starts = table.iter().map(|part| part.start);
        let starts = starts.chain(extended.iter().map(|bytes| bytes.start));
        let next = starts.filter(|&at| at > start).min();
        let end = match (len, here) {
            (Some(len), _) => start.saturating_add(len),
            (None, Some(part)) => start + part.len,
            (None, None) => next.unwrap_or(whole).min(whole),
        };
        if start >= end || end > whole {
            return Err(self.wrong(&format!("the disk has {whole} bytes")));
        }
        let number = here.filter(|part| start + part.len == end).map(|part| part.number);
        Ok(Region { start, len: end - start, number })
    }

    /// Opens and locks the disk, and returns it with a window on the part.
    ///
    /// # Errors
    ///
    /// Those of [`FileDevice::open`] and of [`Inside::region`].
    pub fn open(&self, how: OpenOptions) -> Result<(Arc<FileDevice>, Arc<Window>)> {
        let disk = Arc::new(FileDevice::open(&self.disk, how)?);
        let Region { start, len, .. } = self.region(&*disk)?;
        let name = buttress_base::text::encode(self.place.as_os_str().as_bytes());
        let window = Window::new(Arc::clone(&disk) as Arc<dyn Device>, start, len, name)?;
        Ok((disk, Arc::new(window)))
    }

    /// Returns the bytes that this place names now. Does not lock the disk.
    ///
    /// # Errors
    ///
    /// Those of [`Inside::open`].
    pub fn look(&self) -> Result<Region> {
        let how = OpenOptions { lock: false, ..OpenOptions::READ };
        self.region(&FileDevice::open(&self.disk, how)?)
    }

    /// Returns the full name, which is the same for all names of one part. The full name has the
    /// number of the part, if the part has a number. A name that cannot be looked up keeps its
    /// form.
    ///
    /// # Errors
    ///
    /// The error of the system if the name of the disk cannot be resolved.
    pub fn full_name(&self) -> std::io::Result<PathBuf> {
        let mut name = self.disk.canonicalize()?.into_os_string();
        match self.look() {
            Ok(Region { number: Some(number), .. }) => name.push(format!("#{number}")),
            Ok(Region { start, len, .. }) => name.push(format!("@{start}+{len}")),
            Err(_) => {
                let given = self.place.as_os_str().as_bytes();
                let part = given[self.disk.as_os_str().len()..].to_vec();
                name.push(std::ffi::OsString::from_vec(part));
            }
        }
        Ok(PathBuf::from(name))
    }

    fn wrong(&self, why: &str) -> Error {
        Error::Place { place: self.place.display().to_string(), why: why.to_owned() }
    }
}

/// Returns the file or block device that a volume of this machine lies in: the disk for a place
/// inside a disk, and otherwise the volume itself.
#[must_use]
pub fn host_file(volume: &Path) -> PathBuf {
    Inside::of(volume).map_or_else(|| volume.to_owned(), |inside| inside.disk)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn disk(dir: &Path) -> PathBuf {
        let path = dir.join("disk.img");
        let mut bytes = [0; 512];
        for (slot, kind, start, count) in
            [(0, 0x83, 64, 64), (1, 0xef, 128, 64), (2, 0x83, 256, 64)]
        {
            let entry = &mut bytes[446 + 16 * slot..][..16];
            entry[4] = kind;
            entry[8..12].copy_from_slice(&u32::to_le_bytes(start));
            entry[12..].copy_from_slice(&u32::to_le_bytes(count));
        }
        bytes[510..].copy_from_slice(&[0x55, 0xaa]);
        std::fs::write(&path, bytes).expect("a disk");
        let file = std::fs::File::options().write(true).open(&path).expect("it was made");
        file.set_len(4 << 20).expect("a sparse file");
        path
    }

    fn at(path: &Path, part: &str) -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(part);
        PathBuf::from(name)
    }

    /// Numbers, kinds and offsets name parts, and all names of one part have one full name.
    #[test]
    fn every_word_names_its_part() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = disk(dir.path());
        for (word, start, sectors, full) in [
            ("#2", 128, 64, "#2"),
            ("#type=esp", 128, 64, "#2"),
            ("#type=EF", 128, 64, "#2"),
            ("#type=0xef", 128, 64, "#2"),
            ("@65536", 128, 64, "#2"),
            ("@64KiB", 128, 64, "#2"),
            ("@64k+16K", 128, 32, "@65536+16384"),
            ("@192s", 192, 64, "@98304+32768"),
            ("@1MiB", 2048, 6144, "@1048576+3145728"),
            ("@1M+512", 2048, 1, "@1048576+512"),
        ] {
            let inside = Inside::of(&at(&path, word)).expect(word);
            let region = inside.look().expect(word);
            assert_eq!((region.start, region.len), (start * 512, sectors * 512), "{word}");
            let canonical = path.canonicalize().expect("it exists");
            assert_eq!(inside.full_name().expect(word), at(&canonical, full), "{word}");
        }
        assert_eq!(host_file(&at(&path, "#2")), path);
    }

    /// A part that the disk lacks, or has twice, is refused, and the error names the part. No file
    /// is made.
    #[test]
    fn a_part_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = disk(dir.path());
        for (word, why) in [
            ("#4", "#1, #2, #3"),
            ("#type=linux", "#1, #3"),
            ("#label=root", "no such"),
            ("@1000", "512"),
            ("@4M", "4194304"),
            ("@1M+1G", "4194304"),
        ] {
            let inside = Inside::of(&at(&path, word)).expect(word);
            let error = inside.open(OpenOptions::WRITE).expect_err(word).to_string();
            assert!(error.contains(why) && error.contains(word), "{error}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("the folder").count(), 1);
    }

    /// I1: a file of exactly the given name wins, and a suffix that names no part belongs to the
    /// name of a file.
    #[test]
    fn a_file_of_that_name_wins() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = disk(dir.path());
        for word in ["#", "#0", "#two", "#-1", "@", "@home", "#label=", "#type=x", "#size=3", "@1X"]
        {
            assert_eq!(Inside::of(&at(&path, word)), None, "{word}");
        }
        assert_eq!(Inside::of(&dir.path().join("none.img#1")), None);
        assert_eq!(Inside::of(&at(dir.path(), "#1")), None, "a folder is no disk");
        assert!(Inside::of(&at(&path, "#1")).is_some());
        std::fs::write(at(&path, "#1"), b"x").expect("a file");
        assert_eq!(Inside::of(&at(&path, "#1")), None);
        let named = Inside::of(&at(&path, "#1@512+512"));
        assert!(named.is_none_or(|inside| inside.disk() == at(&path, "#1")));
    }

    proptest! {
        /// No suffix behind the name of a disk causes a panic, and no region exceeds the disk.
        #[test]
        fn any_word_is_a_part_of_the_disk_or_none(
            word in concat!(
                "[#@]([0-9]{1,20}[kKmMgGtTs]?(iB)?(\\+[0-9]{1,20}[kKmMs]?)?",
                "|(label|type|uuid)=.{0,9}|.{0,9})"
            )
        ) {
            let dir = tempfile::tempdir().expect("tempdir");
            let path = disk(dir.path());
            if word.contains(['/', '\0']) {
                return Ok(());
            }
            if let Some(Ok(region)) = Inside::of(&at(&path, &word)).map(|inside| inside.look()) {
                prop_assert!(region.start + region.len <= 4 << 20 && region.len > 0);
            }
        }
    }
}
