//! Whether the volume may be changed.
//!
//! # Invariants
//!
//! - **W1** An operation that changes something calls [`Status::expect_writable`] first. After a
//!   close, a remount as read-only or a latch, the call fails with the reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_items::{Error, Result};
use buttress_txn::Engine;

/// The states of a mount that forbid changes.
pub(crate) struct Status {
    engine: Arc<Engine>,
    /// Whether the volume was opened for reading, and writing has not begun since.
    opened_for_reading: AtomicBool,
    is_closed: AtomicBool,
    /// Whether a mount that was opened for writing is read-only until a caller makes it writable
    /// again.
    is_frozen: AtomicBool,
}

impl Status {
    pub(crate) fn new(engine: Arc<Engine>, opened_read_only: bool) -> Self {
        let opened_for_reading = AtomicBool::new(opened_read_only);
        let (is_closed, is_frozen) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { engine, opened_for_reading, is_closed, is_frozen }
    }

    /// The reason why changes are forbidden. `None` if they are allowed.
    pub(crate) fn read_only_reason(&self) -> Option<String> {
        if self.is_closed() {
            return Some("it was closed".to_owned());
        }
        if self.is_opened_for_reading() {
            return Some("it was mounted read-only".to_owned());
        }
        if self.is_frozen.load(Ordering::Relaxed) {
            return Some("it was remounted read-only".to_owned());
        }
        self.engine.read_only()
    }

    /// Whether the volume was opened for reading, and writing has not begun since.
    pub(crate) fn is_opened_for_reading(&self) -> bool {
        self.opened_for_reading.load(Ordering::Acquire)
    }

    /// From now on changes are refused, or are allowed if the engine allows them.
    pub(crate) fn set_opened_for_reading(&self, is_so: bool) {
        self.opened_for_reading.store(is_so, Ordering::Release);
    }

    /// Makes the volume read-only or writable.
    pub(crate) fn freeze(&self, is_frozen: bool) {
        self.is_frozen.store(is_frozen, Ordering::Relaxed);
    }

    /// Fails if changes are forbidden (W1).
    pub(crate) fn expect_writable(&self) -> Result<()> {
        if let Some(cause) = self.engine.commits().aborted() {
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
