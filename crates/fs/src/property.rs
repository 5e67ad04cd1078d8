//! The one property an inode can have: how it is compressed.
//!
//! # On disk
//!
//! An extended attribute, `btrfs.compression`: its value is the compression's name. A flag of the
//! inode goes with it, so that a reader need not look for attributes.
//!
//! # Invariants
//!
//! - **P1** The flag is set and cleared in the step that changes the attribute, and the file in
//!   memory knows what the attribute says.

use buttress_data::Codec;
use buttress_format::{DirEntry, InodeFlags};
use buttress_txn::View;

use crate::attr::{FileKind, InodeId};
use crate::error::{Error, Result};
use crate::xattr_items;

/// Names of properties begin so.
pub(crate) const PREFIX: &[u8] = b"btrfs.";

/// The name of this one.
pub(crate) const COMPRESSION: &[u8] = b"btrfs.compression";

/// What the property may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Nothing: it is not there.
    Nothing,
    /// Not to be compressed.
    Never,
    /// To be compressed this way.
    Packed(Codec),
}

impl Wish {
    /// Reads a value.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        match value {
            b"" => Some(Self::Nothing),
            b"none" | b"no" => Some(Self::Never),
            value => std::str::from_utf8(value).ok().and_then(Codec::parse).map(Self::Packed),
        }
    }

    /// Reads the value that a caller wants for an inode.
    pub(crate) fn wanted(value: &[u8], kind: FileKind, flags: u64) -> Result<Self> {
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

    /// The flags of an inode with this wish.
    pub(crate) fn flags(self, flags: u64) -> u64 {
        let rest = flags & !(InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS);
        match self {
            Self::Nothing => rest,
            Self::Never => rest | InodeFlags::NOCOMPRESS,
            Self::Packed(_) => rest | InodeFlags::COMPRESS,
        }
    }

    /// How to compress, if at all.
    pub(crate) fn codec(self) -> Option<Codec> {
        match self {
            Self::Packed(codec) => Some(codec),
            Self::Nothing | Self::Never => None,
        }
    }
}

/// Whether a name belongs to a property. Only one is known.
pub(crate) fn is_property(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

/// How an inode with such flags says that it shall be compressed. An unknown value is passed over.
pub(crate) fn read(view: &View, id: InodeId, flags: u64) -> Result<Option<Codec>> {
    if flags & InodeFlags::COMPRESS == 0 {
        return Ok(None);
    }
    let value = xattr_items::read(view, id, COMPRESSION)?;
    Ok(value.and_then(|value| Wish::parse(&value)).and_then(Wish::codec))
}

/// The attribute of an inode that shall be compressed.
pub(crate) fn attribute(codec: Codec) -> DirEntry {
    xattr_items::attribute(COMPRESSION, codec.property().as_bytes())
}
