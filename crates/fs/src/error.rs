//! What can go wrong, sorted by what the caller can do.
//!
//! # Place
//!
//! The one error of the public API. Layers below keep their own enums of facts; they arrive here as
//! sources, and [`Error::kind`] says what the caller can do.

use buttress_format::{Ino, TreeId};

/// The result of every call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An ordinary answer about a name or an object, not a fault of anything.
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
    /// Anything but a directory was needed.
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
    /// The inode's flags forbid the change (immutable, append only).
    #[error("forbidden by the inode's flags")]
    NotPermitted,
    /// The object is in use in a way that forbids the change.
    #[error("in use")]
    Busy,
}

/// What the caller can do; see [`Error::kind`]. Exhaustive, as [`NameError`] is: a front end that
/// lacks an answer must not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The device failed; retry elsewhere, or report it.
    Io,
    /// The data on disk is wrong; repair from a mirror, else run a checker.
    Corrupt,
    /// The volume is full.
    NoSpace,
    /// The caller no longer wants it done ([`Interrupt`](crate::Interrupt)). What was done before
    /// stays, as with `NoSpace`.
    Interrupted,
    /// The call cannot be right.
    Invalid,
    /// A feature or an operation that is not implemented.
    Unsupported,
    /// The volume went read-only after a failure, and carries the first cause.
    Aborted,
    /// The mount or the subvolume is read-only.
    ReadOnly,
    /// An ordinary answer about a name.
    Name(NameError),
}

/// Everything that can go wrong in a call of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An ordinary answer about a name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A change was asked of something that cannot change.
    #[error("{what} is read-only: {why}")]
    ReadOnly {
        /// Mount or subvolume.
        what: &'static str,
        /// The cause, in words for the operator.
        why: String,
    },
    /// The call cannot be right.
    #[error("invalid argument: {what}")]
    Invalid {
        /// Which rule the argument breaks.
        what: &'static str,
    },
    /// A mount option that does not parse.
    #[error("mount option {option:?}: {why}")]
    Option {
        /// As it was given.
        option: String,
        /// What would be right.
        why: String,
    },
    /// A feature or an operation that is not implemented.
    #[error("not supported: {what}")]
    Unsupported {
        /// Which one.
        what: &'static str,
    },
    /// An item of a file tree is not what its neighbours say it must be.
    #[error("tree {tree}, inode {ino}: {what}")]
    Item {
        /// The tree it lies in.
        tree: TreeId,
        /// The inode it belongs to.
        ino: Ino,
        /// What is wrong.
        what: &'static str,
    },
    /// Bytes on disk that do not parse.
    #[error("an item of tree {tree}, inode {ino} does not parse")]
    Format {
        /// The tree it lies in.
        tree: TreeId,
        /// The inode it belongs to.
        ino: Ino,
        /// What the parser found.
        #[source]
        source: buttress_format::Error,
    },
    /// Reading or writing the bytes of a file.
    #[error(transparent)]
    Data(#[from] buttress_data::Error),
    /// A reservation, a commit, or opening the trees.
    #[error(transparent)]
    Txn(#[from] buttress_txn::Error),
    /// Reading a tree.
    #[error(transparent)]
    Tree(#[from] buttress_tree::Error),
    /// Opening the devices.
    #[error(transparent)]
    Volume(#[from] buttress_volume::Error),
    /// Making a volume.
    #[error(transparent)]
    Make(#[from] crate::make::MakeError),
}

impl Error {
    /// What the caller can do about it.
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

    /// Whether space, and nothing else, is what lacks.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        self.kind() == ErrorKind::NoSpace
    }

    /// The mount, or the subvolume, cannot change.
    pub(crate) fn read_only(what: &'static str, why: impl Into<String>) -> Self {
        Self::ReadOnly { what, why: why.into() }
    }

    /// An operation that is not implemented yet.
    #[must_use]
    pub const fn unsupported(what: &'static str) -> Self {
        Self::Unsupported { what }
    }

    /// An argument that cannot be right.
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
        // What programs expect of a bad sector, however it was noticed.
        E::Checksum { .. } => ErrorKind::Io,
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
        _ => ErrorKind::Io,
    }
}
