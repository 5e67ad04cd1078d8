//! Rings of io_uring, in builds with the feature `io-uring`.
//!
//! # What must hold
//!
//! - Without the feature there are no rings. The caller then makes one call after the other, as on
//!   a kernel that forbids io_uring.

#[cfg(feature = "io-uring")]
mod kernel;

use std::io;

#[cfg(feature = "io-uring")]
pub(crate) use kernel::Rings;

/// Requests that a ring takes at once.
pub(crate) const ENTRIES: usize = 32;
/// Whether a write completes only when it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durable {
    Yes,
    No,
}

/// The result of a request: bytes, or an error.
type Answer = io::Result<usize>;

/// No rings.
#[cfg(not(feature = "io-uring"))]
#[derive(Debug, Default)]
pub(crate) struct Rings(());

#[cfg(not(feature = "io-uring"))]
impl Rings {
    /// Whether there may be rings.
    pub(crate) fn may_be(&self) -> bool {
        false
    }

    /// Writes nothing and returns `None`, since there are no rings.
    pub(crate) fn write(
        &self,
        _: &std::fs::File,
        _: &[(u64, &[io::IoSlice<'_>])],
        _: Durable,
    ) -> Option<Vec<Answer>> {
        None
    }
}
