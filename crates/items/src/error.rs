//! The errors of operations on names and inodes, sorted by the possible reactions of a caller.
//!
//! # Place
//!
//! [`Error`] is the only error type of this crate and of `fs`. Layers below keep their own error
//! enums, which become sources of this one. [`Error::kind`] classifies an error by the possible
//! reactions of a caller.

use buttress_format::{Ino, TreeId};

/// The result of every call of this crate, and of `fs`.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An ordinary result about a name or an object. It is no fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NameError {
    /// No such name, or no such inode.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("the name exists already")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDir,
    /// The object must not be a directory.
    #[error("is a directory")]
    IsDir,
    /// The directory still has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// The name is longer than the format allows.
    #[error("name too long")]
    TooLong,
    /// The inode cannot take one more name.
    #[error("too many links")]
    TooManyLinks,
    /// Source and target lie in different subvolumes.
    #[error("crosses a subvolume boundary")]
    CrossDevice,
    /// The inode has no such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// The value, or the set of colliding names, does not fit one item.
    #[error("does not fit the item that must hold it")]
    TooBig,
    /// The file would be larger than the format allows.
    #[error("file too large")]
    FileTooBig,
    /// No data, or no hole, at or after the offset.
    #[error("nothing of the kind at or after that offset")]
    NoSuchRange,
    /// The inode's flags forbid the change (immutable, append only, fs-verity).
    #[error("forbidden by the inode's flags")]
    NotPermitted,
    /// The object is in use in a way that forbids the change.
    #[error("in use")]
    Busy,
}

/// The kind of an error; see [`Error::kind`]. The enum is exhaustive, as [`NameError`] is, so that
/// a front end must handle every kind to compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The device failed; retry elsewhere, or report it.
    Io,
    /// The data on disk is wrong; repair it from a mirror, or run a checker.
    Corrupt,
    /// The volume is full.
    NoSpace,
    /// A quota group of the subvolume has no room left.
    Quota,
    /// The caller has cancelled the call (`Interrupt` of `base`). Completed parts
    /// stay, as with `NoSpace`.
    Interrupted,
    /// The arguments of the call are invalid.
    Invalid,
    /// A feature or an operation that is not implemented.
    Unsupported,
    /// The volume became read-only after a failure. The error's source is the first failure.
    Aborted,
    /// The mount or the subvolume is read-only.
    ReadOnly,
    /// An ordinary result about a name.
    Name(NameError),
}

/// Any error of a call of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An ordinary result about a name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A change of an object that is read-only.
    #[error("{what} is read-only: {why}")]
    ReadOnly {
        /// Mount or subvolume.
        what: &'static str,
        /// The cause, in words for the operator.
        why: String,
    },
    /// The arguments of the call are invalid.
    #[error("invalid argument: {what}")]
    Invalid {
        /// The rule that the argument breaks.
        what: &'static str,
    },
    /// A mount option that does not parse.
    #[error("mount option {option:?}: {why}")]
    Option {
        /// The option as the caller gave it.
        option: String,
        /// The allowed values.
        why: String,
    },
    /// A feature or an operation that is not implemented.
    #[error("not supported: {what}")]
    Unsupported {
        /// The feature or operation.
        what: &'static str,
    },
    /// An item of a file tree that contradicts its neighbours.
    #[error("tree {tree}, inode {ino}: {what}")]
    Item {
        /// The tree of the item.
        tree: TreeId,
        /// The inode that the item belongs to.
        ino: Ino,
        /// The contradiction.
        what: &'static str,
    },
    /// Bytes on disk that do not parse.
    #[error("an item of tree {tree}, inode {ino} does not parse")]
    Format {
        /// The tree of the item.
        tree: TreeId,
        /// The inode that the item belongs to.
        ino: Ino,
        /// The error of the parser.
        #[source]
        source: buttress_format::Error,
    },
    /// An error of reading or writing the bytes of a file.
    #[error(transparent)]
    Data(#[from] buttress_data::Error),
    /// An error of a reservation, of a commit, or of opening the trees.
    #[error(transparent)]
    Txn(#[from] buttress_txn::Error),
    /// An error of reading a tree.
    #[error(transparent)]
    Tree(#[from] buttress_tree::Error),
    /// An error of opening the devices.
    #[error(transparent)]
    Volume(#[from] buttress_volume::Error),
    /// An error of making a volume.
    #[error(transparent)]
    Make(#[from] buttress_make::MakeError),
}

impl Error {
    /// The kind of this error, which shows the possible reactions of a caller.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Name(name) => ErrorKind::Name(*name),
            Self::ReadOnly { .. } => ErrorKind::ReadOnly,
            Self::Invalid { .. } | Self::Option { .. } => ErrorKind::Invalid,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Item { .. } | Self::Format { .. } => ErrorKind::Corrupt,
            Self::Data(error) => data_kind(error),
            Self::Txn(error) => txn_kind(error),
            Self::Tree(error) => tree_kind(error),
            Self::Volume(error) => volume_kind(error),
            Self::Make(_) => ErrorKind::Invalid,
        }
    }

    /// Whether lack of space is the only cause.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        self.kind() == ErrorKind::NoSpace
    }

    /// The error for a mount or a subvolume that is read-only.
    pub fn read_only(what: &'static str, why: impl Into<String>) -> Self {
        Self::ReadOnly { what, why: why.into() }
    }

    /// An operation that is not implemented yet.
    #[must_use]
    pub const fn unsupported(what: &'static str) -> Self {
        Self::Unsupported { what }
    }

    /// The error for an invalid argument.
    #[must_use]
    pub const fn invalid(what: &'static str) -> Self {
        Self::Invalid { what }
    }
}

fn data_kind(error: &buttress_data::Error) -> ErrorKind {
    use buttress_data::Error as E;
    match error {
        E::Txn(error) => txn_kind(error),
        E::Tree(error) => tree_kind(error),
        E::Volume(error) => volume_kind(error),
        E::Item { .. } | E::Extent { .. } | E::Compressed { .. } => ErrorKind::Corrupt,
        // Programs expect `EIO` for a bad sector, whether the device or the checksum reports it.
        E::Checksum { .. } | E::Verity { .. } => ErrorKind::Io,
        E::Unshareable(_) => ErrorKind::Invalid,
        E::TooBig => ErrorKind::Name(NameError::FileTooBig),
        E::Lost(error) => data_kind(error),
        _ => ErrorKind::Io,
    }
}

fn txn_kind(error: &buttress_txn::Error) -> ErrorKind {
    use buttress_txn::Error as E;
    match error {
        E::NoSpace(_) => ErrorKind::NoSpace,
        E::Quota => ErrorKind::Quota,
        E::Interrupted => ErrorKind::Interrupted,
        E::ReadOnly(_) => ErrorKind::ReadOnly,
        E::Aborted(_) => ErrorKind::Aborted,
        E::Log | E::LogStays(_) => ErrorKind::Unsupported,
        E::Busy(_) | E::Stopped => ErrorKind::Name(NameError::Busy),
        E::Tree(error) => tree_kind(error),
        E::Volume(error) => volume_kind(error),
        _ => ErrorKind::Corrupt,
    }
}

fn tree_kind(error: &buttress_tree::Error) -> ErrorKind {
    use buttress_tree::Error as E;
    match error {
        E::Volume(error) => volume_kind(error),
        E::NoSpace => ErrorKind::NoSpace,
        E::TooLarge { .. } => ErrorKind::Invalid,
        _ => ErrorKind::Corrupt,
    }
}

fn volume_kind(error: &buttress_volume::Error) -> ErrorKind {
    use buttress_volume::Kind as K;
    match error.kind() {
        K::Corrupt => ErrorKind::Corrupt,
        K::Invalid => ErrorKind::Invalid,
        K::Unsupported => ErrorKind::Unsupported,
        K::Abandoned => ErrorKind::Interrupted,
        K::Io => ErrorKind::Io,
    }
}
