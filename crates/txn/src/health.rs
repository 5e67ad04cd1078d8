//! Whether the volume may be written.
//!
//! # Invariants
//!
//! - **H1** The first failure of a commit is kept, and every later caller gets it as the cause.
//! - **H2** Once the reason for opening the volume read-only has ended (`begin_writing`), it does
//!   not come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::Latch;

use crate::{Error, Result};

/// The reason why the volume cannot be written, from the opening or from a failed commit, if there
/// is one.
pub(crate) struct Health {
    read_only: Option<String>,
    /// Whether `read_only` no longer applies (H2).
    writing_begun: AtomicBool,
    aborted: Latch<Arc<Error>>,
}

impl Health {
    /// The health of a volume; `read_only` is the reason for opening it read-only, if any.
    pub(crate) fn new(read_only: Option<String>) -> Self {
        Self { read_only, writing_begun: AtomicBool::new(false), aborted: Latch::default() }
    }

    /// The reason for opening the volume read-only, if any.
    pub(crate) fn read_only(&self) -> Option<&String> {
        self.read_only.as_ref().filter(|_| !self.writing_begun.load(Ordering::Acquire))
    }

    /// Ends the reason not to write (H2).
    pub(crate) fn note_writing_begun(&self) {
        self.writing_begun.store(true, Ordering::Release);
    }

    /// The first failure of a commit (H1).
    pub(crate) fn aborted(&self) -> Option<Arc<Error>> {
        self.aborted.get()
    }

    /// Notes a failed commit. Returns the first failure, and whether the first failure is `cause`.
    pub(crate) fn abort(&self, cause: Arc<Error>) -> (Arc<Error>, bool) {
        let is_first = self.aborted.set(Arc::clone(&cause));
        (self.aborted.get().unwrap_or(cause), is_first)
    }

    /// Returns an error if a commit failed.
    pub(crate) fn expect_no_failure(&self) -> Result<()> {
        match self.aborted.get() {
            Some(cause) => Err(Error::Aborted(cause)),
            None => Ok(()),
        }
    }

    /// Returns an error unless the volume was opened for writing.
    pub(crate) fn expect_opened_for_writing(&self) -> Result<()> {
        match self.read_only() {
            Some(why) => Err(Error::ReadOnly(why.clone())),
            None => Ok(()),
        }
    }
}
