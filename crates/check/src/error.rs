//! Errors that prevent a check, as opposed to its findings.

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a check ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device cannot be opened.
    #[error(transparent)]
    Device(#[from] buttress_block::Error),
    /// The devices hold no volume that this crate can read.
    #[error(transparent)]
    Volume(#[from] buttress_volume::Error),
    /// Bytes of a node or an item make no sense during a repair.
    #[error(transparent)]
    Format(#[from] buttress_format::Error),
    /// A tree cannot be read during a repair.
    #[error(transparent)]
    Tree(#[from] buttress_tree::Error),
    /// A temporary file failed: see `TMPDIR`.
    #[error("cannot sort in temporary files")]
    Sort(#[from] std::io::Error),
    /// The subvolumes that use each extent are not known.
    #[error("cannot tell which subvolumes use which extents: {0}")]
    Users(String),
    /// A tree cannot be written anew: facts contradict each other, or room is missing.
    #[error("{0}")]
    Rebuild(String),
}
