//! Whether the volume may be changed.
//!
//! # Invariants
//!
//! - **W1** An operation that changes something asks [`Status::expect_writable`] first. A volume
//!   that was closed, remounted read-only or latched refuses, and says why.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_txn::Engine;

use crate::error::{Error, Result};

/// The states of a mount that forbid changes.
pub(crate) struct Status {
    engine: Arc<Engine>,
    /// The mount option.
    opened_read_only: bool,
    is_closed: AtomicBool,
    /// It was opened for writing, and is read-only until a caller makes it writable again.
    is_frozen: AtomicBool,
}

impl Status {
    pub(crate) fn new(engine: Arc<Engine>, opened_read_only: bool) -> Self {
        let (is_closed, is_frozen) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { engine, opened_read_only, is_closed, is_frozen }
    }

    /// Why nothing can be changed. `None` if changes are allowed.
    pub(crate) fn read_only_reason(&self) -> Option<String> {
        if self.is_closed() {
            return Some("it was closed".to_owned());
        }
        if self.opened_read_only {
            return Some("it was mounted read-only".to_owned());
        }
        if self.is_frozen.load(Ordering::Relaxed) {
            return Some("it was remounted read-only".to_owned());
        }
        self.engine.read_only()
    }

    /// Makes the volume read-only, or no longer so.
    pub(crate) fn freeze(&self, is_frozen: bool) {
        self.is_frozen.store(is_frozen, Ordering::Relaxed);
    }

    /// Refuses changes where there is a reason (W1).
    pub(crate) fn expect_writable(&self) -> Result<()> {
        if let Some(cause) = self.engine.aborted() {
            return Err(buttress_txn::Error::Aborted(cause).into());
        }
        match self.read_only_reason() {
            None => Ok(()),
            Some(why) => Err(Error::read_only("the filesystem", why)),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }
}
