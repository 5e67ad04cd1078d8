//! Requests by what they may cost.

use std::time::Duration;

use super::LONG;

/// Kinds of requests, by what they may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Names and attributes.
    Meta,
    /// Lists and extended attributes.
    List,
    /// Reading up to [`SMALL`] bytes.
    ReadSmall,
    /// Reading more.
    ReadLarge,
    /// Writing up to [`SMALL`] bytes.
    WriteSmall,
    /// Writing more.
    WriteLarge,
    /// Changing the size, the allocation, or many bytes at once.
    Space,
    /// Forgetting, which may delete.
    Forget,
    /// Making durable.
    Sync,
}

pub(super) const KIND_COUNT: usize = 9;
/// What a small read or write is, in bytes.
const SMALL: usize = 32 << 10;

impl Kind {
    /// The kind of a read of `len` bytes.
    pub(crate) fn read(len: usize) -> Self {
        if len <= SMALL { Self::ReadSmall } else { Self::ReadLarge }
    }

    /// The kind of a write of `len` bytes.
    pub(crate) fn write(len: usize) -> Self {
        if len <= SMALL { Self::WriteSmall } else { Self::WriteLarge }
    }

    pub(super) fn first_guess(self) -> Duration {
        match self {
            Self::Sync => LONG * 4,
            _ => Duration::ZERO,
        }
    }

    pub(super) const ALL: [Self; KIND_COUNT] = [
        Self::Meta,
        Self::List,
        Self::ReadSmall,
        Self::ReadLarge,
        Self::WriteSmall,
        Self::WriteLarge,
        Self::Space,
        Self::Forget,
        Self::Sync,
    ];
}
