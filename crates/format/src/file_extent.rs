//! File extents: the place of a piece of file content.

use crate::{
    Error, Extent, Generation, Logical, Result,
    bytes::{Fixed, Reader, Writer},
};

/// The compression of an extent's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs, reason = "the names are the format's own")]
pub enum Compression {
    #[default]
    None = 0,
    Zlib = 1,
    Lzo = 2,
    Zstd = 3,
}

/// A part of a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Address of the extent; zero if the region is a hole.
    pub disk: Logical,
    /// Bytes that the whole extent takes on disk.
    pub disk_len: u64,
    /// The start of this part within the uncompressed extent.
    pub offset: u64,
    /// Bytes of the file that this part covers.
    pub len: u64,
}

impl Region {
    /// Whether the region is a hole.
    #[must_use]
    pub fn is_hole(&self) -> bool {
        self.disk.0 == 0
    }

    /// The whole extent on disk.
    #[must_use]
    pub fn extent(&self) -> Extent {
        Extent { start: self.disk, len: self.disk_len }
    }
}

/// The place of the content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The bytes are in the item itself.
    Inline(Vec<u8>),
    /// A data extent, or a hole.
    Regular(Region),
    /// A data extent that reads as zeros until it is written.
    Prealloc(Region),
}

/// A file extent item: key (inode, EXTENT_DATA, file offset).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Transaction that made the file extent.
    pub generation: Generation,
    /// Length of the whole extent, uncompressed.
    pub ram_bytes: u64,
    /// The compression of the extent.
    pub compression: Compression,
    /// The place of the bytes.
    pub body: Body,
}

impl FileExtent {
    /// Bytes in front of inline data.
    pub const INLINE_HEAD: usize = 21;
    /// Bytes of a regular item.
    pub const REGULAR_LEN: usize = 53;

    /// Reads an item.
    ///
    /// # Errors
    ///
    /// When the item is cut short, its compression or encryption is unknown, or its ranges are
    /// impossible.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("file extent", bytes);
        let (generation, ram_bytes) = (Generation(r.u64()?), r.u64()?);
        let compression = match r.u8()? {
            0 => Compression::None,
            1 => Compression::Zlib,
            2 => Compression::Lzo,
            3 => Compression::Zstd,
            other => return Err(r.field("compression", other.into())),
        };
        let (encryption, other_encoding, kind) = (r.u8()?, r.u16()?, r.u8()?);
        if encryption != 0 {
            return Err(r.field("encryption", encryption.into()));
        }
        if other_encoding != 0 {
            return Err(r.field("other_encoding", other_encoding.into()));
        }
        let body = match kind {
            0 => Body::Inline(r.rest().to_vec()),
            1 | 2 => {
                let region = Region {
                    disk: Logical(r.u64()?),
                    disk_len: r.u64()?,
                    offset: r.u64()?,
                    len: r.u64()?,
                };
                r.end()?;
                Self::check(&r, &region, ram_bytes, compression)?;
                if kind == 1 { Body::Regular(region) } else { Body::Prealloc(region) }
            }
            other => return Err(r.field("type", other.into())),
        };
        Ok(Self { generation, ram_bytes, compression, body })
    }

    fn check(r: &Reader<'_>, x: &Region, ram_bytes: u64, packed: Compression) -> Result<(), Error> {
        if x.len == 0 || x.offset.checked_add(x.len).is_none() {
            return Err(r.field("num_bytes", x.len));
        }
        if x.disk.checked_add(x.disk_len).is_none() {
            return Err(r.field("disk_num_bytes", x.disk_len));
        }
        if !x.is_hole() {
            if x.disk_len == 0 {
                return Err(r.field("disk_num_bytes", 0));
            }
            let whole = if packed == Compression::None { x.disk_len } else { ram_bytes };
            if x.offset + x.len > whole {
                return Err(r.field("offset", x.offset));
            }
        }
        Ok(())
    }

    /// The region, unless the data is inline.
    #[must_use]
    pub fn region(&self) -> Option<&Region> {
        match &self.body {
            Body::Inline(_) => None,
            Body::Regular(region) | Body::Prealloc(region) => Some(region),
        }
    }

    /// Bytes of the file that the item covers.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        self.region().map_or(self.ram_bytes, |region| region.len)
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Body::Inline(data) = &self.body else {
            return self.to_array().map_or_else(Vec::new, |bytes| bytes.to_vec());
        };
        let mut w = Writer::with_capacity(Self::REGULAR_LEN);
        w.u64(self.generation.0).u64(self.ram_bytes).u8(self.compression as u8).zeros(4);
        w.bytes(data);
        w.0
    }

    /// The bytes of the item in an array, without allocation; `None` for an inline item.
    #[must_use]
    pub fn to_array(&self) -> Option<[u8; Self::REGULAR_LEN]> {
        let (kind, region) = match &self.body {
            Body::Inline(_) => return None,
            Body::Regular(region) => (1, region),
            Body::Prealloc(region) => (2, region),
        };
        let mut w = Fixed::new();
        w.u64(self.generation.0).u64(self.ram_bytes).u8(self.compression as u8).zeros(3);
        w.u8(kind).u64(region.disk.0).u64(region.disk_len).u64(region.offset).u64(region.len);
        Some(w.done())
    }
}
