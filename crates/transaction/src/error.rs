//! Errors of a transaction.

use std::sync::Arc;

use buttress_format::{Key, Logical, TreeId};

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. It must be cheap to clone, because all callers get the first failure of
/// a commit.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tree could not be read or rebuilt.
    #[error("{0}")]
    Tree(#[from] buttress_tree::Error),
    /// The devices failed.
    #[error("device failure")]
    Volume(#[source] Arc<buttress_volume::Error>),
    /// Space accounting refused.
    #[error("space accounting: {0}")]
    Space(Arc<buttress_space::Error>),
    /// No space of this kind is left, even after all flush states.
    #[error("no space left for {0}")]
    NoSpace(&'static str),
    /// A quota group of the subvolume has no room left.
    #[error("the limit of a quota group is reached")]
    Quota,
    /// The caller cancelled the request while it waited for space ([`buttress_base::Interrupt`]).
    /// Nothing was changed.
    #[error("interrupted while it waited for space")]
    Interrupted,
    /// The volume cannot be written, for this reason.
    #[error("the volume is read-only: {0}")]
    ReadOnly(String),
    /// A commit failed; nothing is written any more.
    #[error("the volume went read-only after a failed commit: {0}")]
    Aborted(Arc<Error>),
    /// An item does not parse.
    #[error("item {key} of {tree} is malformed: {source}")]
    Item {
        /// The tree.
        tree: TreeId,
        /// The item.
        key: Key,
        /// The fault of the item.
        #[source]
        source: buttress_format::Error,
    },
    /// The extent tree or the checksum tree contradicts itself or the file trees. Run the checker.
    #[error("extent tree at {at}: {what}")]
    Extents {
        /// The extent.
        at: Logical,
        /// The contradiction.
        what: &'static str,
    },
    /// The free-space tree contradicts the extent tree. Run the checker.
    #[error("free-space tree of the block group at {group}: {what}")]
    FreeSpace {
        /// The block group.
        group: Logical,
        /// The contradiction.
        what: String,
    },
    /// There is a log of fsync, and opening would lose its content.
    #[error(
        "it was not unmounted cleanly and has an fsync log: mount it for writing once, which replays \
         the log, or read-only with nologreplay to see the state before it"
    )]
    Log,
    /// A request stopped the moving of extents. Extents that already moved stay where they are.
    #[error("stopped by request")]
    Stopped,
    /// Other work must be done first.
    #[error("{0}")]
    Busy(&'static str),
    /// There is a log of fsync, and the volume cannot be written.
    #[error(
        "it was not unmounted cleanly and has an fsync log, which cannot be replayed: {0}; mount it \
         with Linux once, or read-only with nologreplay to see the state before the log"
    )]
    LogStays(String),
    /// The volume lacks a required structure.
    #[error("the volume is malformed: {0}")]
    Malformed(String),
}

impl From<buttress_volume::Error> for Error {
    fn from(e: buttress_volume::Error) -> Self {
        Self::Volume(Arc::new(e))
    }
}

impl From<buttress_space::Error> for Error {
    fn from(e: buttress_space::Error) -> Self {
        Self::Space(Arc::new(e))
    }
}
