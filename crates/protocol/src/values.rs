//! Values used in several messages.

use crate::layout::Attr;

/// A time in a request: seconds since 1970, and the nanoseconds after that second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireTime {
    /// Seconds, below zero before 1970.
    pub sec: i64,
    /// Nanoseconds.
    pub nsec: u32,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FileType {
    /// A named pipe.
    Pipe = 0o010_000,
    /// A character device.
    Character = 0o020_000,
    /// A directory.
    Directory = 0o040_000,
    /// A block device.
    Block = 0o060_000,
    /// A regular file.
    Regular = 0o100_000,
    /// A symbolic link.
    Symlink = 0o120_000,
    /// A socket.
    Socket = 0o140_000,
}

impl FileType {
    /// The kind as in `st_mode`.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self as u32
    }
}

impl Attr {
    /// The part of [`Attr::mode`] that says the kind.
    pub const KIND: u32 = 0o170_000;
}
