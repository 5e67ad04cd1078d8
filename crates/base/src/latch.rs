//! A latch: the first cause sets it, and every caller checks it.
//!
//! # Place
//!
//! A failed commit must stop every front end of a filesystem. Every later call must get the first
//! cause, not one of its consequences.
//!
//! # Invariants
//!
//! - **L1** Once set, a latch stays set, and its cause never changes.

use std::sync::OnceLock;

/// A place for one cause. Reading it when it is not set costs one load.
#[derive(Debug)]
pub struct Latch<E> {
    cause: OnceLock<E>,
}

impl<E: Clone> Latch<E> {
    /// Creates a latch that is not set.
    #[must_use]
    pub const fn new() -> Self {
        Self { cause: OnceLock::new() }
    }

    /// Sets the latch if it is not set; returns whether this was the first cause.
    pub fn set(&self, cause: E) -> bool {
        self.cause.set(cause).is_ok()
    }

    /// Returns the first cause, if there is one.
    #[must_use]
    pub fn get(&self) -> Option<E> {
        self.cause.get().cloned()
    }

    /// Borrows the first cause, if there is one.
    #[must_use]
    pub fn cause(&self) -> Option<&E> {
        self.cause.get()
    }

    /// Says whether there is a cause.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.cause.get().is_some()
    }

    /// Returns `Ok` while the latch is not set.
    ///
    /// # Errors
    ///
    /// The first cause.
    pub fn check(&self) -> Result<(), E> {
        self.get().map_or(Ok(()), Err)
    }
}

impl<E: Clone> Default for Latch<E> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L1: the second cause is refused, and the first one stays.
    #[test]
    fn keeps_the_first_cause() {
        let latch = Latch::new();
        assert_eq!(latch.check(), Ok(()));
        assert!(latch.set("first"));
        assert!(!latch.set("second"));
        assert_eq!(latch.get(), Some("first"));
        assert_eq!(latch.check(), Err("first"));
        assert!(latch.is_set());
    }
}
