//! Whether the volume may be written.
//!
//! # Invariants
//!
//! - **H1** The first failure of a commit stays: it is the cause that every later caller is told.
//! - **H2** A volume that is awake stays awake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::Latch;

use crate::{Error, Result};

/// Why nothing can be written, if so: from the opening on, or since a commit failed.
pub(crate) struct Health {
    read_only: Option<String>,
    /// The reason to be read-only has ended (H2).
    awake: AtomicBool,
    aborted: Latch<Arc<Error>>,
}

impl Health {
    /// Of a volume that was opened for reading only, for this reason.
    pub(crate) fn new(read_only: Option<String>) -> Self {
        Self { read_only, awake: AtomicBool::new(false), aborted: Latch::default() }
    }

    /// Why nothing was to be written from the opening on.
    pub(crate) fn read_only(&self) -> Option<&String> {
        self.read_only.as_ref().filter(|_| !self.awake.load(Ordering::Acquire))
    }

    /// Ends the reason not to write (H2).
    pub(crate) fn wake(&self) {
        self.awake.store(true, Ordering::Release);
    }

    /// The first failure of a commit (H1).
    pub(crate) fn aborted(&self) -> Option<Arc<Error>> {
        self.aborted.get()
    }

    /// A commit failed: answers the first failure, and whether it is this one.
    pub(crate) fn abort(&self, cause: Arc<Error>) -> (Arc<Error>, bool) {
        let is_first = self.aborted.set(Arc::clone(&cause));
        (self.aborted.get().unwrap_or(cause), is_first)
    }

    /// Nothing where no commit failed.
    pub(crate) fn expect_no_failure(&self) -> Result<()> {
        match self.aborted.get() {
            Some(cause) => Err(Error::Aborted(cause)),
            None => Ok(()),
        }
    }

    /// Nothing where the volume was opened for writing.
    pub(crate) fn expect_opened_for_writing(&self) -> Result<()> {
        match self.read_only() {
            Some(why) => Err(Error::ReadOnly(why.clone())),
            None => Ok(()),
        }
    }
}
