//! Errors of reading and writing the bytes of a file.

use std::sync::Arc;

use buttress_format::{Ino, Logical, TreeId};

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of this crate.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A transaction, a reservation or a commit failed.
    #[error(transparent)]
    Txn(Arc<buttress_txn::Error>),
    /// A tree could not be read.
    #[error("cannot read the extents of a file")]
    Tree(#[source] Arc<buttress_tree::Error>),
    /// The device below failed.
    #[error("cannot read or write file data")]
    Volume(#[source] Arc<buttress_volume::Error>),
    /// An extent item does not parse.
    #[error("tree {tree}, inode {ino}: the extent at {offset} does not parse")]
    Item {
        /// The tree.
        tree: TreeId,
        /// The inode.
        ino: Ino,
        /// File offset of the item.
        offset: u64,
        /// The error of the parser.
        #[source]
        source: buttress_format::Error,
    },
    /// An extent item parses but is impossible.
    #[error("tree {tree}, inode {ino}: the extent at {offset} {what}")]
    Extent {
        /// The tree.
        tree: TreeId,
        /// The inode.
        ino: Ino,
        /// File offset of the item.
        offset: u64,
        /// The fault.
        what: &'static str,
    },
    /// No mirror of a sector matches its checksum.
    #[error("tree {tree}, inode {ino}: data at {logical} matches its checksum on no mirror")]
    Checksum {
        /// The tree.
        tree: TreeId,
        /// The inode.
        ino: Ino,
        /// Address of the first bad sector.
        logical: Logical,
    },
    /// Content, or a part of the Merkle tree above it, is not what fs-verity was enabled for.
    #[error("tree {tree}, inode {ino}: fs-verity finds the block at {offset} wrong: {what}")]
    Verity {
        /// The tree.
        tree: TreeId,
        /// The inode.
        ino: Ino,
        /// File offset of the block that was read; zero when the descriptor is at fault.
        offset: u64,
        /// The fault.
        what: &'static str,
    },
    /// A compressed extent does not decompress as its item says.
    #[error("the compressed extent at {logical} is damaged: {what}")]
    Compressed {
        /// Address of the extent; zero when it is inline.
        logical: Logical,
        /// The fault.
        what: &'static str,
    },
    /// A range cannot be shared between files.
    #[error("the range cannot be shared: {0}")]
    Unshareable(&'static str),
    /// The length or an offset is beyond the largest file.
    #[error("beyond the largest file")]
    TooBig,
    /// Data of this file was lost when it was written in the background.
    #[error("earlier writes to the file were lost")]
    Lost(#[source] Arc<Error>),
}

impl Error {
    /// Returns whether the limit of a quota group is the only cause.
    #[must_use]
    pub fn is_quota(&self) -> bool {
        matches!(self, Self::Txn(error) if matches!(**error, buttress_txn::Error::Quota))
    }

    /// Returns whether a lack of space is the only cause.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::Txn(error) => matches!(**error, buttress_txn::Error::NoSpace(_)),
            Self::Lost(error) => error.is_no_space(),
            _ => false,
        }
    }
}

impl From<buttress_txn::Error> for Error {
    fn from(error: buttress_txn::Error) -> Self {
        Self::Txn(Arc::new(error))
    }
}

impl From<buttress_tree::Error> for Error {
    fn from(error: buttress_tree::Error) -> Self {
        Self::Tree(Arc::new(error))
    }
}

impl From<buttress_volume::Error> for Error {
    fn from(error: buttress_volume::Error) -> Self {
        Self::Volume(Arc::new(error))
    }
}
