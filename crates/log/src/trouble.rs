//! Reasons for not writing a log.

use buttress_txn::Error;

/// Why there is no log.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// A commit is needed instead, for this reason.
    Commit(&'static str),
    /// A read or the write of a node failed.
    Failed(Error),
    /// A flush or the write of the superblock failed. Data written since the last good flush may be
    /// lost, and another flush would prove nothing. No commit may build on it.
    Lost(Error),
}

impl<E: Into<Error>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

pub(crate) type Outcome<T> = Result<T, Trouble>;
