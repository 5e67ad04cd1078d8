//! Errors of parsing.

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error in the bytes of a structure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The structure is longer than the given bytes.
    #[error("{what} is cut short: needs {needed} bytes, has {found}")]
    Short {
        /// The structure.
        what: &'static str,
        /// Bytes that it needs.
        needed: usize,
        /// Bytes that were given.
        found: usize,
    },
    /// Bytes are left over after a structure of fixed size.
    #[error("{what} is {found} bytes long, not {expected}")]
    Length {
        /// The structure.
        what: &'static str,
        /// Bytes that the structure has.
        expected: usize,
        /// Bytes that were given.
        found: usize,
    },
    /// A field has a value that the format does not allow.
    #[error("{what}: {field} is {found}")]
    Field {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// The value of the field.
        found: u64,
    },
    /// The bytes are not a btrfs superblock.
    #[error("not a btrfs superblock")]
    BadMagic,
    /// The superblock's checksum does not match its bytes.
    #[error("superblock checksum does not match")]
    SuperChecksum,
    /// A superblock copy states another offset than the one at which it was read.
    #[error("superblock read at {expected} says it belongs at {found}")]
    SuperPlace {
        /// The offset at which the copy was read.
        expected: u64,
        /// The offset that the copy states.
        found: u64,
    },
    /// A checksum type that the format does not know.
    #[error("checksum type {0} is unknown")]
    CsumType(u16),
}
