//! Number types of this crate, so that they cannot be mixed up.

use std::fmt;

/// A block of the origin, in cache blocks from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OriginBlock(pub u64);

/// The number of a place for one block in the cache's data area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// An epoch: everything that one commit makes durable. The format calls it a sequence count. Epochs
/// below the superblock's epoch are committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Marks a free slot.
    pub const FREE: Self = Self(u64::MAX);

    /// Returns the epoch after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

macro_rules! display {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

display!(OriginBlock, Slot, Epoch);
