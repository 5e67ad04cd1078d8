//! The error type of this crate: the operation that failed, its path, and the cause.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_fs::NameError;

/// The result of every call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of a failure. Later versions may add kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No such file or directory.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// A directory was needed.
    NotADirectory,
    /// A file was needed.
    IsADirectory,
    /// The directory has entries.
    DirectoryNotEmpty,
    /// The inode's flags forbid the change.
    PermissionDenied,
    /// The volume was opened read-only, or the subvolume is.
    ReadOnly,
    /// The volume is full. Removing files or snapshots, or adding a device, makes room.
    StorageFull,
    /// The limit of a quota group of the subvolume is reached.
    QuotaExceeded,
    /// Source and target lie in different subvolumes.
    CrossesSubvolumes,
    /// An argument cannot be right, such as a name that is too long.
    InvalidInput,
    /// Bytes on the volume fail their checksum, and so does every copy.
    Corrupt,
    /// A device failed. Changes that were not synced before the failure may be lost.
    Io,
    /// Another program has the volume open, or the object is in use.
    Busy,
    /// The caller cancelled the call through [`Interrupt`](crate::Interrupt).
    Interrupted,
    /// The volume has a feature that this version does not know, or the call is not implemented.
    Unsupported,
    /// A commit failed before. The volume is read-only until it is opened again.
    Aborted,
    /// Any other error; the text describes it.
    Other,
}

/// A failed operation, its path and the cause. Cheap to clone.
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    path: Option<PathBuf>,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl Error {
    pub(crate) fn new(
        kind: ErrorKind,
        operation: &'static str,
        path: Option<&Path>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        let path = path.map(Path::to_path_buf);
        Self { inner: Arc::new(Inner { kind, operation, path, source: source.into() }) }
    }

    /// A failure of the calling program. The closure of
    /// [`Filesystem::transaction`](crate::Filesystem::transaction) returns it to give up the
    /// transaction.
    pub fn other(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::new(ErrorKind::Other, "transaction", None, source)
    }

    /// The kind of the failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The operation that failed, in a few words, such as `"open"` or `"create directory"`.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.inner.operation
    }

    /// The path of the operation: a path on the volume, or the path of the volume.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.inner.path.as_deref()
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.inner.kind)
            .field("operation", &self.inner.operation)
            .field("path", &self.inner.path)
            .field("source", &self.inner.source)
            .finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.inner.path {
            Some(path) => write!(f, "{} {}: ", self.inner.operation, path.display())?,
            None => write!(f, "{}: ", self.inner.operation)?,
        }
        // The text contains the causes from lower layers, because many callers print only this
        // error.
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&*self.inner.source);
        let mut is_first = true;
        while let Some(error) = cause {
            write!(f, "{}{error}", if is_first { "" } else { ": " })?;
            is_first = false;
            cause = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
            ErrorKind::NotADirectory => io::ErrorKind::NotADirectory,
            ErrorKind::IsADirectory => io::ErrorKind::IsADirectory,
            ErrorKind::DirectoryNotEmpty => io::ErrorKind::DirectoryNotEmpty,
            ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
            ErrorKind::ReadOnly | ErrorKind::Aborted => io::ErrorKind::ReadOnlyFilesystem,
            ErrorKind::StorageFull => io::ErrorKind::StorageFull,
            ErrorKind::QuotaExceeded => io::ErrorKind::QuotaExceeded,
            ErrorKind::CrossesSubvolumes => io::ErrorKind::CrossesDevices,
            ErrorKind::InvalidInput => io::ErrorKind::InvalidInput,
            ErrorKind::Corrupt => io::ErrorKind::InvalidData,
            ErrorKind::Busy => io::ErrorKind::ResourceBusy,
            ErrorKind::Interrupted => io::ErrorKind::Interrupted,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::Io | ErrorKind::Other => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// Adds the failed operation and its path to an error.
pub(crate) trait Context<T> {
    fn context(self, operation: &'static str, path: &Path) -> Result<T>;
}

impl<T> Context<T> for buttress_fs::Result<T> {
    fn context(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|error| Error::new(kind_of(&error), operation, Some(path), error))
    }
}

fn kind_of(error: &buttress_fs::Error) -> ErrorKind {
    use buttress_fs::ErrorKind as K;
    match error.kind() {
        K::Io => ErrorKind::Io,
        K::Corrupt => ErrorKind::Corrupt,
        K::NoSpace => ErrorKind::StorageFull,
        K::Quota => ErrorKind::QuotaExceeded,
        K::Interrupted => ErrorKind::Interrupted,
        K::Invalid => ErrorKind::InvalidInput,
        K::Unsupported => ErrorKind::Unsupported,
        K::Aborted => ErrorKind::Aborted,
        K::ReadOnly => ErrorKind::ReadOnly,
        K::Name(name) => match name {
            NameError::NotFound | NameError::NoAttribute => ErrorKind::NotFound,
            NameError::Exists => ErrorKind::AlreadyExists,
            NameError::NotDir => ErrorKind::NotADirectory,
            NameError::IsDir => ErrorKind::IsADirectory,
            NameError::NotEmpty => ErrorKind::DirectoryNotEmpty,
            NameError::CrossDevice => ErrorKind::CrossesSubvolumes,
            NameError::NotPermitted => ErrorKind::PermissionDenied,
            NameError::Busy => ErrorKind::Busy,
            NameError::TooLong
            | NameError::TooManyLinks
            | NameError::TooBig
            | NameError::FileTooBig
            | NameError::NoSuchRange => ErrorKind::InvalidInput,
        },
    }
}
