//! What operations put, counted in items and bytes.
//!
//! # Place
//!
//! Two kinds of items cost differently where nodes are counted (`reserve::count`). Those of the
//! trees that operations change dirty a path each. Those of trees that commits alone change
//! (extents, checksums, free space) are part of trees that are counted whole: only what they fill
//! comes on top.

use std::ops::{Add, AddAssign, SubAssign};

/// What an operation may put, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Items set or deleted in trees that operations change.
    pub items: u32,
    /// Items that follow from these in trees that commits alone change; a data reference counts
    /// as three.
    pub whole: u32,
    /// Bytes of their payloads, and of checksums.
    pub bytes: u32,
}

impl Cost {
    /// Of items that have no such consequence.
    #[must_use]
    pub const fn of(items: u32, bytes: u32) -> Self {
        Self { items, whole: 0, bytes }
    }

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            items: self.items + other.items,
            whole: self.whole + other.whole,
            bytes: self.bytes + other.bytes,
        }
    }

    /// So many times.
    #[must_use]
    pub const fn times(self, count: u32) -> Self {
        Self { items: self.items * count, whole: self.whole * count, bytes: self.bytes * count }
    }

    /// What of it another lacks.
    #[must_use]
    pub const fn beyond(self, other: Self) -> Self {
        Self {
            items: self.items.saturating_sub(other.items),
            whole: self.whole.saturating_sub(other.whole),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// The same of many operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// As in [`Cost`].
    pub items: u64,
    /// As in [`Cost`].
    pub whole: u64,
    /// As in [`Cost`].
    pub bytes: u64,
}

impl Costs {
    /// Items of either kind.
    #[must_use]
    pub const fn all_items(self) -> u64 {
        self.items + self.whole
    }

    /// Whether all figures are zero.
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }

    /// Each of the figures by itself.
    pub fn map(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            items: of(self.items, other.items),
            whole: of(self.whole, other.whole),
            bytes: of(self.bytes, other.bytes),
        }
    }

    /// The figures as an array: items, whole, bytes.
    #[cfg(debug_assertions)]
    pub fn figures(self) -> [u64; 3] {
        [self.items, self.whole, self.bytes]
    }
}

impl From<Cost> for Costs {
    fn from(cost: Cost) -> Self {
        Self { items: cost.items.into(), whole: cost.whole.into(), bytes: cost.bytes.into() }
    }
}

impl Add for Costs {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.map(other, |a, b| a + b)
    }
}

impl AddAssign for Costs {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Costs {
    fn sub_assign(&mut self, other: Self) {
        *self = self.map(other, |a, b| a - b);
    }
}
