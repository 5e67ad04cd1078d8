//! The only property of an inode: its compression.
//!
//! # On disk
//!
//! An extended attribute, `btrfs.compression`, with the name of the compression as its value. A
//! flag of the inode marks the presence of this attribute, so that readers need not search for it.
//!
//! # Invariants
//!
//! - **P1** The flag changes in the same step as the attribute. The file in memory always has the
//!   attribute's compression.

use buttress_data::Codec;
use buttress_format::{DirEntry, InodeFlags};
use buttress_txn::View;

use crate::attr::{FileKind, InodeId};
use crate::error::{Error, Result};
use crate::xattr_items;

/// Prefix of the names of properties.
pub const PREFIX: &[u8] = b"btrfs.";

/// The name of the compression property.
pub const COMPRESSION: &[u8] = b"btrfs.compression";

/// The values of the property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionProperty {
    /// The inode does not have the property.
    Nothing,
    /// The inode is not to be compressed.
    Never,
    /// The inode is to be compressed with this codec.
    Packed(Codec),
}

impl CompressionProperty {
    /// Parses a value.
    pub fn parse(value: &[u8]) -> Option<Self> {
        match value {
            b"" => Some(Self::Nothing),
            b"none" | b"no" => Some(Self::Never),
            value => std::str::from_utf8(value).ok().and_then(Codec::parse).map(Self::Packed),
        }
    }

    /// Parses a value that a caller sets, and checks that it fits the inode.
    pub fn wanted(value: &[u8], kind: FileKind, flags: u64) -> Result<Self> {
        let wish = Self::parse(value);
        let wish = wish.ok_or(Error::invalid("compression is zlib, lzo, zstd or none"))?;
        if !matches!(kind, FileKind::Regular | FileKind::Directory) {
            return Err(Error::invalid("only files and directories have properties"));
        }
        if wish != Self::Nothing && flags & InodeFlags::NODATACOW != 0 {
            return Err(Error::invalid("what is overwritten in place cannot be compressed"));
        }
        Ok(wish)
    }

    /// The inode flags for this value of the property.
    pub fn flags(self, flags: u64) -> u64 {
        let rest = flags & !(InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS);
        match self {
            Self::Nothing => rest,
            Self::Never => rest | InodeFlags::NOCOMPRESS,
            Self::Packed(_) => rest | InodeFlags::COMPRESS,
        }
    }

    /// The codec. `None` if the property selects no compression.
    pub fn codec(self) -> Option<Codec> {
        match self {
            Self::Packed(codec) => Some(codec),
            Self::Nothing | Self::Never => None,
        }
    }
}

/// Whether a name belongs to a property. Only one property is known.
pub fn is_property(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

/// The compression that the property of an inode with these flags selects. An unknown value is
/// ignored.
pub fn read(view: &View, id: InodeId, flags: u64) -> Result<Option<Codec>> {
    if flags & InodeFlags::COMPRESS == 0 {
        return Ok(None);
    }
    let value = xattr_items::read(view, id, COMPRESSION)?;
    Ok(value
        .and_then(|value| CompressionProperty::parse(&value))
        .and_then(CompressionProperty::codec))
}

/// The attribute that selects a codec for an inode.
pub fn attribute(codec: Codec) -> DirEntry {
    xattr_items::attribute(COMPRESSION, codec.property().as_bytes())
}
