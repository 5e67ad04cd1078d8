//! One entry of an archive, and the limits for reading it.

use std::io;

/// The unit of archives, in bytes.
pub(super) const BLOCK: usize = 512;
/// The longest name, and the longest extension of an entry, in bytes.
pub(super) const NAME_MAX: u64 = 64 << 10;
pub(super) const PAX_MAX: u64 = 4 << 20;
/// The most parts that a sparse file may have.
pub(super) const RUNS_MAX: usize = 1 << 20;

/// One entry of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    /// Permission bits.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds and nanoseconds.
    pub(crate) mtime: (i64, u32),
    pub(crate) atime: Option<(i64, u32)>,
    /// The length of the file in bytes, with holes.
    pub(crate) size: u64,
    /// Offset and length of each part of the data, in order. Empty except for regular files.
    pub(crate) runs: Vec<(u64, u64)>,
    /// Major and minor number.
    pub(crate) device: (u32, u32),
    /// The target of a link.
    pub(crate) link: Vec<u8>,
    /// Extended attributes, by name.
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The names of the owner and of the group; empty if the archive has none.
    pub(crate) names: (Vec<u8>, Vec<u8>),
    /// The access control list, as text.
    pub(crate) acl: Option<Vec<u8>>,
    /// The list for new files of a directory, as text.
    pub(crate) default_acl: Option<Vec<u8>>,
    /// Whether the entry has a list of another kind, as that of NFS.
    pub(crate) has_other_acl: bool,
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Regular,
    Directory,
    Symlink,
    /// One more name of an earlier entry.
    Link,
    Character,
    Block,
    Fifo,
}

pub(super) fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no tar archive, or a damaged one: {why}"))
}
