//! A tree of files as data that can be compared: taken from a folder, or from the library.
//!
//! # Invariants
//!
//! - **M1** The fingerprint of a file's content depends on its bytes and their places alone:
//!   neither on holes nor on the reader.

mod content;
mod folder;
mod library;

use std::collections::BTreeMap;
use std::fmt::Debug;

/// Seconds since 1970, and nanoseconds.
pub type Time = (i64, u32);

/// All properties of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Type and permission bits.
    pub mode: u32,
    /// Names of the inode; not compared for directories in copies.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device node.
    pub device: (u32, u32),
    /// Length.
    pub size: u64,
    /// Space in units of 512 bytes.
    pub blocks: u64,
    /// Last read.
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
    /// Fingerprint of the content of a regular file.
    pub content: u64,
    /// The ranges of data in a regular file, half-open.
    pub data: Vec<(u64, u64)>,
    /// The first name, in order of bytes, that leads to the same inode.
    pub same_as: Vec<u8>,
    /// Whether this is the place of a nested subvolume in a snapshot, which has only a name.
    pub is_stub: bool,
}

/// A whole tree, by path without a leading slash; the top is the empty path.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    /// Every name.
    pub entries: BTreeMap<Vec<u8>, Entry>,
    /// The objects that could not be read: path, and the error.
    pub errors: Vec<(Vec<u8>, String)>,
}

/// How much of two trees must be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// One volume, seen by two readers: everything.
    Volume,
    /// A tree and its copy: the guarantees of `cp -a`.
    Copy,
}

/// The most differences that are shown.
const SHOWN_MAX: usize = 25;

impl Manifest {
    /// Bytes of all regular files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.entries
            .values()
            .filter(|entry| entry.mode & 0o170_000 == 0o100_000)
            .map(|e| e.size)
            .sum()
    }

    /// The differences, a line for each.
    #[must_use]
    pub fn differences(&self, other: &Self, depth: Depth) -> Vec<String> {
        let mut found = Vec::new();
        for (path, entry) in &self.entries {
            match other.entries.get(path) {
                None => found.push(format!("{}: only in the first", show(path))),
                Some(there) => entry.differences(there, depth, &show(path), &mut found),
            }
        }
        for path in other.entries.keys().filter(|path| !self.entries.contains_key(*path)) {
            found.push(format!("{}: only in the second", show(path)));
        }
        found
    }

    /// Panics unless both trees are readable and equal.
    ///
    /// # Panics
    ///
    /// With the differences.
    #[track_caller]
    pub fn assert_same(&self, what: &str, other: &Self, other_what: &str, depth: Depth) {
        for (manifest, what) in [(self, what), (other, other_what)] {
            let errors: Vec<String> = manifest
                .errors
                .iter()
                .map(|(path, why)| format!("{}: {why}", show(path)))
                .collect();
            assert!(errors.is_empty(), "{what}: could not be read:\n{}", list(&errors));
        }
        let found = self.differences(other, depth);
        assert!(found.is_empty(), "{what} and {other_what} differ:\n{}", list(&found));
    }
}

impl Entry {
    fn is_dir(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }

    fn differences(&self, other: &Self, depth: Depth, path: &str, found: &mut Vec<String>) {
        if self.mode & 0o170_000 != other.mode & 0o170_000 {
            return found.push(format!("{path}: mode {:o} and {:o}", self.mode, other.mode));
        }
        // Only the name of a stub is on the disk. Each reader invents its attributes.
        if self.is_stub || other.is_stub {
            return;
        }
        let mut compare = Comparison { path, found };
        if self.mode != other.mode {
            compare.found.push(format!("{path}: mode {:o} and {:o}", self.mode, other.mode));
        }
        compare.field("owner", &self.uid, &other.uid);
        compare.field("group", &self.gid, &other.gid);
        compare.field("device number", &self.device, &other.device);
        compare.field("mtime", &self.mtime, &other.mtime);
        compare.field("target", &show(&self.target), &show(&other.target));
        compare.field("content", &self.content, &other.content);
        compare.field("first name", &show(&self.same_as), &show(&other.same_as));
        for name in
            self.xattrs.keys().chain(other.xattrs.keys().filter(|n| !self.xattrs.contains_key(*n)))
        {
            let what = format!("attribute {}", show(name));
            compare.field(&what, &self.xattrs.get(name), &other.xattrs.get(name));
        }
        if depth == Depth::Volume || !self.is_dir() {
            compare.field("size", &self.size, &other.size);
            compare.field("links", &self.nlink, &other.nlink);
        }
        if depth == Depth::Volume {
            compare.field("blocks", &self.blocks, &other.blocks);
            compare.field("atime", &self.atime, &other.atime);
            compare.field("ctime", &self.ctime, &other.ctime);
            compare.field("btime", &self.btime, &other.btime);
            if !covers(&self.data, &other.data) {
                compare.field("data", &self.data, &other.data);
            }
        }
    }
}

/// Whether every range of `fine` lies in a range of `coarse`. A reader may report a hole as data,
/// but never data as a hole. Linux reports allocated space behind the end of a leaf as data.
fn covers(coarse: &[(u64, u64)], fine: &[(u64, u64)]) -> bool {
    fine.iter().all(|range| coarse.iter().any(|whole| whole.0 <= range.0 && range.1 <= whole.1))
}

struct Comparison<'a> {
    path: &'a str,
    found: &'a mut Vec<String>,
}

impl Comparison<'_> {
    fn field<T: Debug + PartialEq>(&mut self, what: &str, one: &T, other: &T) {
        if one != other {
            let mut line = format!("{}: {what} {one:?} and {other:?}", self.path);
            if line.len() > 600 {
                line = line.chars().take(600).chain("...".chars()).collect();
            }
            self.found.push(line);
        }
    }
}

fn list(lines: &[String]) -> String {
    let mut text = lines.iter().take(SHOWN_MAX).map(|l| format!("  {l}\n")).collect::<String>();
    if lines.len() > SHOWN_MAX {
        text.push_str(&format!("  and {} more\n", lines.len() - SHOWN_MAX));
    }
    text
}

fn show(bytes: &[u8]) -> String {
    let text = bytes.escape_ascii().to_string();
    if text.len() <= 120 { text } else { format!("{}...({})", &text[..100], bytes.len()) }
}

/// Gives every entry the first name of its inode.
fn join_links<I: Ord + Clone>(entries: &mut BTreeMap<Vec<u8>, Entry>, ids: &BTreeMap<Vec<u8>, I>) {
    let mut first: BTreeMap<I, Vec<u8>> = BTreeMap::new();
    for (path, id) in ids {
        let name = first.entry(id.clone()).or_insert_with(|| path.clone());
        if let Some(entry) = entries.get_mut(path) {
            entry.same_as.clone_from(name);
        }
    }
}

/// A path and a name below it.
fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}
