//! Why there is no log.

use buttress_txn::Error;

/// Why there is no log.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// A commit must do instead, for this reason.
    Commit(&'static str),
    /// Reading failed, or writing a node.
    Failed(Error),
    /// A flush failed, or the superblock's write: what was written since the last good flush is
    /// in doubt, and asking again proves nothing. No commit may stand on it.
    Lost(Error),
}

impl<E: Into<Error>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

pub(crate) type Outcome<T> = Result<T, Trouble>;
