//! Errors of sending and receiving.

use buttress_format::{Ino, TreeId};

use crate::stream::{PATH_BYTES_MAX, StreamError};

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a subvolume was not sent, or not received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error in the stream itself.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// An error of the volume.
    #[error(transparent)]
    Volume(#[from] buttress_fs::Error),
    /// The named object is not a subvolume.
    #[error("not a subvolume")]
    NotSubvolume,
    /// A subvolume that may change can be neither sent nor used as parent or clone source.
    #[error("subvolume is not read-only")]
    NotReadOnly,
    /// The top-level subvolume has no name that a stream could use.
    #[error("the top-level subvolume cannot be sent: make a read-only snapshot of it")]
    TopLevel,
    /// Items of a subvolume contradict one another.
    #[error("tree {tree}, inode {ino}: {what}")]
    Damaged {
        /// The subvolume's tree.
        tree: TreeId,
        /// The inode.
        ino: Ino,
        /// The fault.
        what: &'static str,
    },
    /// A path that is longer than receivers take: the error `ENAMETOOLONG`.
    #[error(
        "{path}: File name too long: the path has {len} bytes, and a stream holds at most \
         {PATH_BYTES_MAX}"
    )]
    PathTooLong {
        /// The beginning and the end of the path, escaped.
        path: String,
        /// Its length, in bytes.
        len: usize,
    },
    /// A path with a name that no stream can hold, for example `..`. Only damage puts such a name
    /// on a volume.
    #[error("{path}: the path {problem}")]
    Path {
        /// The beginning and the end of the path, escaped.
        path: String,
        /// The fault of the path.
        problem: &'static str,
    },
    /// A step of a stream cannot be done.
    #[error("{command} {path}")]
    Step {
        /// The command's name.
        command: &'static str,
        /// The path or name that the step was about.
        path: String,
        /// The cause of the failure.
        #[source]
        source: Box<Error>,
    },
    /// A command that makes no sense at its place in the stream, or is not supported.
    #[error("{0}")]
    Refused(&'static str),
    /// A subvolume was begun and not ended.
    #[error("{name} is incomplete and must not be used (delete it, then receive again)")]
    Incomplete {
        /// The name of the subvolume in the directory that receives.
        name: String,
        /// The error at which receiving ended.
        #[source]
        source: Box<Error>,
    },
    /// Commands of a stream failed, and receiving went on after them.
    #[error("failed commands of the stream: {0}")]
    Failed(u64),
    /// A stream that changes a subvolume that this volume lacks.
    #[error("cannot find parent subvolume {0}")]
    NoParent(String),
    /// A stream that takes data from a subvolume that this volume lacks.
    #[error("clone: did not find source subvolume {0}")]
    NoSource(String),
}

impl Error {
    pub(crate) fn path_too_long(path: &[u8]) -> Self {
        Self::PathTooLong { path: shortened(path), len: path.len() }
    }
}

/// Returns an error with all its causes, in one line.
pub(crate) fn with_causes(error: &Error) -> String {
    let first: &dyn std::error::Error = error;
    let causes = std::iter::successors(Some(first), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Bytes of a long path that a message shows, at its beginning and at its end.
const SHOWN_BYTES: usize = 40;

/// Returns a path for a message: escaped, and only its beginning and end if it is long.
pub(crate) fn shortened(path: &[u8]) -> String {
    if path.len() <= 3 * SHOWN_BYTES {
        return path.escape_ascii().to_string();
    }
    let (begin, end) = (&path[..SHOWN_BYTES], &path[path.len() - SHOWN_BYTES..]);
    format!("{}[...]{}", begin.escape_ascii(), end.escape_ascii())
}

impl From<buttress_tree::Error> for Error {
    fn from(error: buttress_tree::Error) -> Self {
        Self::Volume(error.into())
    }
}
