//! What can go wrong in a transaction.

use std::sync::Arc;

use buttress_format::{Key, Logical, TreeId};

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of this crate. Cheap to clone: the first one of a commit is shown to all callers.
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
    /// Nothing left of this kind of space, after everything that could free some.
    #[error("no space left for {0}")]
    NoSpace(&'static str),
    /// The caller no longer wants it, and waited for space ([`buttress_base::Interrupt`]);
    /// nothing was changed.
    #[error("interrupted while it waited for space")]
    Interrupted,
    /// The volume cannot be written, and why.
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
        /// What is wrong.
        #[source]
        source: buttress_format::Error,
    },
    /// The extent tree does not know what the file trees use. Run the checker.
    #[error("extent tree at {at}: {what}")]
    Extents {
        /// The extent.
        at: Logical,
        /// What is wrong.
        what: &'static str,
    },
    /// The free-space tree contradicts the extent tree. Run the checker.
    #[error("free-space tree of the block group at {group}: {what}")]
    FreeSpace {
        /// The block group.
        group: Logical,
        /// What is wrong.
        what: String,
    },
    /// There is a log of fsync, and its content would be lost.
    #[error(
        "it was not unmounted cleanly and has an fsync log: mount it for writing once, which replays \
         the log, or read-only with nologreplay to see the state before it"
    )]
    Log,
    /// Moving was stopped by request; what was moved stays where it is.
    #[error("stopped by request")]
    Stopped,
    /// Something else has to be done first.
    #[error("{0}")]
    Busy(&'static str),
    /// There is a log of fsync, and the volume cannot be written.
    #[error(
        "it was not unmounted cleanly and has an fsync log, which cannot be replayed: {0}; mount it \
         with Linux once, or read-only with nologreplay to see the state before the log"
    )]
    LogStays(String),
    /// The volume lacks something it must have.
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
