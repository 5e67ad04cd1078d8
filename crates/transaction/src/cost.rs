//! The cost of operations in items and bytes.
//!
//! # Place
//!
//! Two kinds of items have different costs when nodes are counted (`reserve::count`). In a tree
//! that operations change, each item dirties a path. Trees that commits alone change (extents,
//! checksums, free space) are counted as a whole. In such a tree an item adds only its own bytes.

use std::ops::{AddAssign, SubAssign};

/// The most that an operation may put, or that many operations may put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Items set or deleted in trees that operations change.
    pub items: u64,
    /// Items that follow from `items`, in trees that commits alone change. A data reference counts
    /// as three.
    pub commit_items: u64,
    /// Bytes of the payloads of all items, and of checksums.
    pub bytes: u64,
}

impl Cost {
    /// The cost of items that change no extents, checksums or free space: `commit_items` is 0.
    #[must_use]
    pub const fn of(items: u32, bytes: u32) -> Self {
        Self { items: items as u64, commit_items: 0, bytes: bytes as u64 }
    }

    /// The sum of the two costs.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            items: self.items + other.items,
            commit_items: self.commit_items + other.commit_items,
            bytes: self.bytes + other.bytes,
        }
    }

    /// This cost `count` times.
    #[must_use]
    pub fn times(self, count: u32) -> Self {
        self.map(self, |of, _| of * u64::from(count))
    }

    /// The part of this cost that exceeds `other`, figure by figure.
    #[must_use]
    pub fn beyond(self, other: Self) -> Self {
        self.map(other, u64::saturating_sub)
    }

    /// Items of either kind.
    #[must_use]
    pub const fn all_items(self) -> u64 {
        self.items + self.commit_items
    }

    /// Whether all figures are zero.
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }

    /// Combines each figure with the same figure of `other`, by `of`.
    pub fn map(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            items: of(self.items, other.items),
            commit_items: of(self.commit_items, other.commit_items),
            bytes: of(self.bytes, other.bytes),
        }
    }

    /// The figures as an array: items, commit_items, bytes.
    #[cfg(debug_assertions)]
    pub fn figures(self) -> [u64; 3] {
        [self.items, self.commit_items, self.bytes]
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = self.and(other);
    }
}

impl SubAssign for Cost {
    fn sub_assign(&mut self, other: Self) {
        *self = self.map(other, |a, b| a - b);
    }
}
