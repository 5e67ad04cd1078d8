//! The stream that `btrfs send` writes and `btrfs receive` reads, as checked types.
//!
//! # On disk
//!
//! ```text
//! stream     "btrfs-stream\0" | version 4 | command ... | END command
//! command    length of all attributes 4 | number 2 | crc32c 4 | attribute ...
//! attribute  number 2 | length 2 | bytes
//!            from version 2 on the file data of a command comes last and has no length:
//!            it reaches to the command's end
//! ```
//!
//! The checksum starts from zero, without inversions, and covers header and attributes with the
//! checksum field zero. All numbers are little-endian. Several streams may follow one another.
//!
//! # Invariants
//!
//! - **S1** A [`Command`] that was read has passed its checksum. Every number in the command has
//!   the width that the format defines, and every path stays below the subvolume's top.
//! - **S2** A length in the stream never causes an allocation above [`COMMAND_BYTES_MAX`].

mod attribute;
mod command;
mod dump;
mod error;
mod one;
mod path;
mod reader;
mod table;
mod writer;

#[cfg(test)]
mod tests;

pub use command::{Command, Encoded, Source, Stamps};
pub use dump::Dump;
pub(crate) use dump::uuid_text;
pub use error::StreamError;
pub use one::OneStream;
pub use path::{PATH_BYTES_MAX, StreamPath};
pub use reader::{COMMAND_BYTES_MAX, StreamReader};
pub use writer::{StreamWriter, Version};

/// The first bytes of a stream.
pub const MAGIC: &[u8; 13] = b"btrfs-stream\0";

/// Bytes of a command's header.
pub(crate) const HEADER_LEN: usize = 10;

/// A subvolume's identifier.
pub type Uuid = [u8; 16];

/// Numbers of commands.
pub(crate) mod number {
    pub(crate) const SUBVOL: u16 = 1;
    pub(crate) const SNAPSHOT: u16 = 2;
    pub(crate) const MKFILE: u16 = 3;
    pub(crate) const MKDIR: u16 = 4;
    pub(crate) const MKNOD: u16 = 5;
    pub(crate) const MKFIFO: u16 = 6;
    pub(crate) const MKSOCK: u16 = 7;
    pub(crate) const SYMLINK: u16 = 8;
    pub(crate) const RENAME: u16 = 9;
    pub(crate) const LINK: u16 = 10;
    pub(crate) const UNLINK: u16 = 11;
    pub(crate) const RMDIR: u16 = 12;
    pub(crate) const SET_XATTR: u16 = 13;
    pub(crate) const REMOVE_XATTR: u16 = 14;
    pub(crate) const WRITE: u16 = 15;
    pub(crate) const CLONE: u16 = 16;
    pub(crate) const TRUNCATE: u16 = 17;
    pub(crate) const CHMOD: u16 = 18;
    pub(crate) const CHOWN: u16 = 19;
    pub(crate) const UTIMES: u16 = 20;
    pub(crate) const END: u16 = 21;
    pub(crate) const UPDATE_EXTENT: u16 = 22;
    pub(crate) const FALLOCATE: u16 = 23;
    pub(crate) const FILEATTR: u16 = 24;
    pub(crate) const ENCODED_WRITE: u16 = 25;
    pub(crate) const ENABLE_VERITY: u16 = 26;
}
