//! Why a check could not be made: not what it found.

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A check that did not come to an end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device cannot be opened.
    #[error(transparent)]
    Device(#[from] buttress_block::Error),
    /// The devices make no volume, or one that cannot be read here.
    #[error(transparent)]
    Volume(#[from] buttress_volume::Error),
    /// A tree cannot be read while it is repaired.
    #[error(transparent)]
    Tree(#[from] buttress_tree::Error),
    /// A temporary file failed: see `TMPDIR`.
    #[error("cannot sort in temporary files")]
    Sort(#[from] std::io::Error),
}
