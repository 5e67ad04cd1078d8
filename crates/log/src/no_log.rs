//! Reasons for not writing a log.

use buttress_txn::{CommitReason, Error};

/// The reason why no log was made.
#[derive(Debug)]
pub(crate) enum NoLog {
    /// A commit is needed instead, for this reason.
    Commit(CommitReason),
    /// A read or the write of a node failed.
    Failed(Error),
    /// A flush or the write of the superblock failed. Data written since the last good flush may be
    /// lost, and another flush would prove nothing. No commit may build on this data.
    Lost(Error),
}

impl<E: Into<Error>> From<E> for NoLog {
    fn from(error: E) -> Self {
        match error.into() {
            // All groups that the last commit recorded are full, or a balance empties them. The
            // next commit records new groups.
            Error::NoSpace(_) => Self::Commit(CommitReason::NoLogSpace),
            error => Self::Failed(error),
        }
    }
}

pub(crate) type LogResult<T> = Result<T, NoLog>;

#[cfg(test)]
mod tests {
    use super::*;

    /// A log that finds no space is not a failure. Nothing was written, and a commit makes the
    /// inodes durable instead.
    #[test]
    fn commit_is_made_when_a_log_finds_no_space() {
        let no_log = NoLog::from(Error::NoSpace("a log"));
        assert!(matches!(no_log, NoLog::Commit(_)), "{no_log:?}");
        let no_log = NoLog::from(Error::ReadOnly(String::new()));
        assert!(matches!(no_log, NoLog::Failed(_)), "{no_log:?}");
    }
}
