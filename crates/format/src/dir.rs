//! Directory entries and extended attributes, which share one layout.

use crate::{
    Generation, Key, Result,
    bytes::{Reader, Writer},
    limits::{NAME_MAX, NODE_MAX},
};

/// The type of inode that an entry refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the format's own")]
pub enum FileKind {
    Unknown = 0,
    Regular = 1,
    Directory = 2,
    CharDevice = 3,
    BlockDevice = 4,
    Fifo = 5,
    Socket = 6,
    Symlink = 7,
    Xattr = 8,
}

impl FileKind {
    /// The type with this number in a directory entry. `None` if the format has no such type.
    #[must_use]
    pub fn from_disk(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Unknown,
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            8 => Self::Xattr,
            _ => return None,
        })
    }

    /// The type that the type bits of `mode` name.
    #[must_use]
    pub fn from_mode(mode: u32) -> Self {
        match mode & 0o170_000 {
            0o100_000 => Self::Regular,
            0o040_000 => Self::Directory,
            0o020_000 => Self::CharDevice,
            0o060_000 => Self::BlockDevice,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            0o120_000 => Self::Symlink,
            _ => Self::Unknown,
        }
    }

    /// The type bits of a mode.
    #[must_use]
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Regular => 0o100_000,
            Self::Directory => 0o040_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::Symlink => 0o120_000,
            Self::Unknown | Self::Xattr => 0,
        }
    }
}

/// A name and the inode that it refers to, or an attribute and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Key of the inode item, or of a subvolume's root item; zero for attributes.
    pub location: Key,
    /// Transaction that made the entry.
    pub transid: Generation,
    /// The type of the inode.
    pub kind: FileKind,
    /// The name.
    pub name: Vec<u8>,
    /// The value of an attribute; empty for names.
    pub data: Vec<u8>,
}

impl DirEntry {
    /// Bytes of an entry without name and data.
    pub const HEAD_LEN: usize = 30;

    /// Reads an item. Names with the same hash share one item.
    ///
    /// # Errors
    ///
    /// When an entry is cut short, has an impossible name or an unknown kind.
    pub fn parse_all(bytes: &[u8]) -> Result<Vec<Self>> {
        let mut r = Reader::new("directory item", bytes);
        let mut entries = Vec::with_capacity(1);
        while r.left() > 0 {
            let location = Key::parse(r.take(Key::LEN)?)?;
            let transid = Generation(r.u64()?);
            let (data_len, name_len, kind) = (r.u16()?, r.u16()?, r.u8()?);
            let Some(kind) = FileKind::from_disk(kind) else {
                return Err(r.field("type", kind.into()));
            };
            if name_len == 0 || usize::from(name_len) > NAME_MAX {
                return Err(r.field("name_len", name_len.into()));
            }
            if u32::from(data_len) > NODE_MAX {
                return Err(r.field("data_len", data_len.into()));
            }
            entries.push(Self {
                location,
                transid,
                kind,
                name: r.take(usize::from(name_len))?.to_vec(),
                data: r.take(usize::from(data_len))?.to_vec(),
            });
        }
        Ok(entries)
    }

    /// The bytes of one entry.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        Self::encode_all(std::slice::from_ref(self))
    }

    /// The item's bytes.
    #[must_use]
    pub fn encode_all(entries: &[Self]) -> Vec<u8> {
        let len = entries.iter().map(|e| Self::HEAD_LEN + e.name.len() + e.data.len()).sum();
        let mut w = Writer::with_capacity(len);
        for entry in entries {
            w.bytes(&entry.location.to_bytes()).u64(entry.transid.0);
            w.u16(entry.data.len() as u16).u16(entry.name.len() as u16).u8(entry.kind as u8);
            w.bytes(&entry.name).bytes(&entry.data);
        }
        w.0
    }
}
