//! Inodes and their names.

use std::ops::Range;

use crate::{
    Generation, Ino, Result,
    bytes::{Fixed, Reader, Writer},
    limits::NAME_MAX,
};

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timespec {
    /// Seconds since 1970.
    pub sec: i64,
    /// Nanoseconds within the second.
    pub nsec: u32,
}

impl Timespec {
    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self> {
        Ok(Self { sec: r.u64()? as i64, nsec: r.u32()? })
    }

    pub(crate) fn write(self, w: &mut Writer) {
        w.u64(self.sec as u64).u32(self.nsec);
    }
}

/// Flags of an inode.
pub struct InodeFlags;

#[allow(missing_docs, reason = "the names are the format's own")]
impl InodeFlags {
    pub const NODATASUM: u64 = 1;
    pub const NODATACOW: u64 = 2;
    pub const READONLY: u64 = 4;
    pub const NOCOMPRESS: u64 = 8;
    pub const PREALLOC: u64 = 16;
    pub const SYNC: u64 = 32;
    pub const IMMUTABLE: u64 = 64;
    pub const APPEND: u64 = 128;
    pub const NODUMP: u64 = 256;
    pub const NOATIME: u64 = 512;
    pub const DIRSYNC: u64 = 1024;
    pub const COMPRESS: u64 = 2048;
    pub const ROOT_ITEM_INIT: u64 = 1 << 31;
    /// The content has a Merkle tree and never changes. The first of the read-only compatible
    /// flags.
    pub const RO_VERITY: u64 = 1 << 32;
}

/// An inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct InodeItem {
    /// Transaction that created the inode. NFS handles use it as the inode's generation.
    pub generation: Generation,
    /// Transaction that changed the inode last.
    pub transid: Generation,
    /// Size in bytes; for a directory, twice the length of all its names.
    pub size: u64,
    /// Bytes of the file's extents.
    pub nbytes: u64,
    /// An allocation hint of old kernels. Always zero today.
    pub block_group: u64,
    /// Number of names; always 1 for a directory.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Type and permissions.
    pub mode: u32,
    /// Device number of a device file.
    pub rdev: u64,
    /// [`InodeFlags`]; read-only compatible flags in the upper half.
    pub flags: u64,
    /// Count of changes, for NFS.
    pub sequence: u64,
    /// Last read.
    pub atime: Timespec,
    /// Last change of the inode.
    pub ctime: Timespec,
    /// Last change of the content.
    pub mtime: Timespec,
    /// Creation.
    pub otime: Timespec,
}

impl InodeItem {
    /// Bytes on disk.
    pub const LEN: usize = 160;

    /// Reads an item.
    ///
    /// # Errors
    ///
    /// If the item is not 160 bytes long.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("inode item", bytes);
        let item = Self::read(&mut r)?;
        r.end()?;
        Ok(item)
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self> {
        let mut item = Self {
            generation: Generation(r.u64()?),
            transid: Generation(r.u64()?),
            size: r.u64()?,
            nbytes: r.u64()?,
            block_group: r.u64()?,
            nlink: r.u32()?,
            uid: r.u32()?,
            gid: r.u32()?,
            mode: r.u32()?,
            rdev: r.u64()?,
            flags: r.u64()?,
            sequence: r.u64()?,
            ..Self::default()
        };
        r.skip(32)?;
        item.atime = Timespec::read(r)?;
        item.ctime = Timespec::read(r)?;
        item.mtime = Timespec::read(r)?;
        item.otime = Timespec::read(r)?;
        Ok(item)
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.to_array().to_vec()
    }

    /// The item's bytes without a heap allocation, because every change of an inode encodes its
    /// item.
    #[must_use]
    pub fn to_array(&self) -> [u8; Self::LEN] {
        let mut w = Fixed::new();
        w.u64(self.generation.0).u64(self.transid.0).u64(self.size).u64(self.nbytes);
        w.u64(self.block_group).u32(self.nlink).u32(self.uid).u32(self.gid).u32(self.mode);
        w.u64(self.rdev).u64(self.flags).u64(self.sequence).zeros(32);
        for time in [self.atime, self.ctime, self.mtime, self.otime] {
            w.u64(time.sec as u64).u32(time.nsec);
        }
        w.done()
    }

    pub(crate) fn write(&self, w: &mut Writer) {
        w.bytes(&self.to_array());
    }
}

fn name<'b>(r: &mut Reader<'b>, len: u16) -> Result<&'b [u8]> {
    if usize::from(len) > NAME_MAX || len == 0 {
        return Err(r.field("name_len", len.into()));
    }
    r.take(usize::from(len))
}

/// One name of an inode in one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeRef {
    /// The index of the name in the directory.
    pub index: u64,
    /// The name.
    pub name: Vec<u8>,
}

/// All names of an inode in one directory: key (inode, INODE_REF, directory).
pub struct InodeRefs;

impl InodeRefs {
    /// Bytes of an entry without the name.
    pub const HEAD_LEN: usize = 10;

    /// Reads an item.
    ///
    /// # Errors
    ///
    /// When a name is cut short, empty or too long.
    pub fn parse(bytes: &[u8]) -> Result<Vec<InodeRef>> {
        let mut r = Reader::new("inode reference", bytes);
        let mut refs = Vec::new();
        while r.left() > 0 {
            let (index, len) = (r.u64()?, r.u16()?);
            refs.push(InodeRef { index, name: name(&mut r, len)?.to_vec() });
        }
        Ok(refs)
    }

    /// Finds the entry of one name in an item. Returns the range of its bytes, and its index.
    ///
    /// Looks at the names of the item without copying them.
    ///
    /// # Errors
    ///
    /// When a name is cut short, empty or too long.
    pub fn find(bytes: &[u8], wanted: &[u8]) -> Result<Option<(Range<usize>, u64)>> {
        let mut r = Reader::new("inode reference", bytes);
        let mut found = None;
        while r.left() > 0 {
            let start = bytes.len() - r.left();
            let (index, len) = (r.u64()?, r.u16()?);
            if name(&mut r, len)? == wanted {
                found.get_or_insert((start..bytes.len() - r.left(), index));
            }
        }
        Ok(found)
    }

    /// The item's bytes.
    #[must_use]
    pub fn encode(refs: &[InodeRef]) -> Vec<u8> {
        let mut w = Writer::default();
        for entry in refs {
            w.u64(entry.index).u16(entry.name.len() as u16).bytes(&entry.name);
        }
        w.0
    }
}

/// One name of an inode for which the plain reference item had no space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeExtref {
    /// The directory.
    pub parent: Ino,
    /// The index of the name in the directory.
    pub index: u64,
    /// The name.
    pub name: Vec<u8>,
}

/// Extended references with one hash: key (inode, INODE_EXTREF, hash of directory and name).
pub struct InodeExtrefs;

impl InodeExtrefs {
    /// Reads an item.
    ///
    /// # Errors
    ///
    /// When a name is cut short, empty or too long.
    pub fn parse(bytes: &[u8]) -> Result<Vec<InodeExtref>> {
        let mut r = Reader::new("extended inode reference", bytes);
        let mut refs = Vec::new();
        while r.left() > 0 {
            let (parent, index, len) = (Ino(r.u64()?), r.u64()?, r.u16()?);
            refs.push(InodeExtref { parent, index, name: name(&mut r, len)?.to_vec() });
        }
        Ok(refs)
    }

    /// The item's bytes.
    #[must_use]
    pub fn encode(refs: &[InodeExtref]) -> Vec<u8> {
        let mut w = Writer::default();
        for entry in refs {
            w.u64(entry.parent.0).u64(entry.index);
            w.u16(entry.name.len() as u16).bytes(&entry.name);
        }
        w.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_where_they_lie() {
        let name = |at: u64| vec![b'n'; 1 + at as usize % 40];
        let refs: Vec<_> = (0..40).map(|at| InodeRef { index: 2 + at, name: name(at) }).collect();
        let bytes = InodeRefs::encode(&refs);
        for (at, wanted) in refs.iter().enumerate() {
            let (range, index) =
                InodeRefs::find(&bytes, &wanted.name).expect("it reads").expect("it is there");
            assert_eq!(
                (index, &bytes[range.clone()]),
                (wanted.index, &*InodeRefs::encode(&refs[at..=at]))
            );
            let rest = [&bytes[..range.start], &bytes[range.end..]].concat();
            let mut others = refs.clone();
            others.remove(at);
            assert_eq!(InodeRefs::parse(&rest), Ok(others));
        }
        assert_eq!(InodeRefs::find(&bytes, b"other"), Ok(None));
        assert_eq!(InodeRefs::find(&[], b"other"), Ok(None));
        assert!(InodeRefs::find(&bytes[..bytes.len() - 1], &refs[0].name).is_err(), "cut short");
    }
}
