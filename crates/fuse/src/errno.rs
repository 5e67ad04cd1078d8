//! The one place where an error of the volume becomes a number of POSIX.

use buttress_fs::{Error, ErrorKind, NameError};
use buttress_protocol::Errno;

/// The result of a request handler: the answer, or the error number for the program.
pub(crate) type Answer<T> = Result<T, Errno>;

/// Turns an error into the number that a program gets, and logs the error if an operator must know
/// it.
pub(crate) fn from_error(error: &Error) -> Errno {
    let kind = error.kind();
    log(kind, error);
    from_kind(kind)
}

fn from_kind(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::Io | ErrorKind::Corrupt => Errno::EIO,
        ErrorKind::NoSpace => Errno::ENOSPC,
        ErrorKind::Quota => Errno::EDQUOT,
        ErrorKind::Interrupted => Errno::EINTR,
        ErrorKind::Invalid => Errno::EINVAL,
        ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        ErrorKind::Aborted | ErrorKind::ReadOnly => Errno::EROFS,
        ErrorKind::Name(name) => from_name(name),
    }
}

fn from_name(name: NameError) -> Errno {
    match name {
        NameError::NotFound => Errno::ENOENT,
        NameError::Exists => Errno::EEXIST,
        NameError::NotDir => Errno::ENOTDIR,
        NameError::IsDir => Errno::EISDIR,
        NameError::NotEmpty => Errno::ENOTEMPTY,
        NameError::TooLong => Errno::ENAMETOOLONG,
        NameError::TooManyLinks => Errno::EMLINK,
        NameError::CrossDevice => Errno::EXDEV,
        NameError::NoAttribute => Errno::ENODATA,
        NameError::TooBig => Errno::ENOSPC,
        NameError::FileTooBig => Errno::EFBIG,
        NameError::NoSuchRange => Errno::ENXIO,
        NameError::NotPermitted => Errno::EPERM,
        NameError::Busy => Errno::EBUSY,
    }
}

/// Logs an error with its causes. A program gets only a number, so the log has what an operator
/// must know.
fn log(kind: ErrorKind, error: &Error) {
    match kind {
        ErrorKind::Io | ErrorKind::Corrupt => tracing::error!("{}", Chain(error)),
        ErrorKind::Aborted => tracing::warn!("{}", Chain(error)),
        ErrorKind::NoSpace
        | ErrorKind::Quota
        | ErrorKind::Interrupted
        | ErrorKind::Invalid
        | ErrorKind::Unsupported
        | ErrorKind::ReadOnly => {
            tracing::debug!("{}", Chain(error));
        }
        ErrorKind::Name(_) => {}
    }
}

struct Chain<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
