//! Commands: the steps that a stream gives its receiver. `table` defines how each command is read,
//! written and printed.

use buttress_format::Timespec;

use super::Uuid;
use super::path::StreamPath;

/// The identity of an existing subvolume, which sender and receiver share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The uuid with which the subvolume was received, or its own uuid if it was not received.
    pub uuid: Uuid,
    /// The transaction of its last change, at the sender.
    pub ctransid: u64,
}

/// The times of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// Last read.
    pub atime: Timespec,
    /// Last change of content.
    pub mtime: Timespec,
    /// Last change of the inode.
    pub ctime: Timespec,
    /// Creation; from version 2 on.
    pub otime: Option<Timespec>,
}

/// How the data of an encoded write is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Bytes of the file that are written.
    pub file_len: u64,
    /// Bytes that the data unpacks to.
    pub ram_bytes: u64,
    /// The offset of the file's bytes in the unpacked data.
    pub offset: u64,
    /// 0 none, 1 zlib, 2 zstd, 3 to 7 lzo in segments of 4 KiB to 64 KiB.
    pub compression: u32,
    /// Always 0, because no type of encryption is defined.
    pub encryption: u32,
}

/// One step of a stream. Offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are those of the system calls that they stand for")]
pub enum Command<'a> {
    /// Make a subvolume, which the following commands fill.
    Subvol {
        name: StreamPath<'a>,
        source: Source,
    },
    /// Make a snapshot of `parent`, which the following commands change.
    Snapshot {
        name: StreamPath<'a>,
        source: Source,
        parent: Source,
    },
    MkFile {
        path: StreamPath<'a>,
        ino: u64,
    },
    MkDir {
        path: StreamPath<'a>,
        ino: u64,
    },
    /// `rdev` as system calls pack it.
    MkNod {
        path: StreamPath<'a>,
        ino: u64,
        mode: u64,
        rdev: u64,
    },
    MkFifo {
        path: StreamPath<'a>,
        ino: u64,
    },
    MkSock {
        path: StreamPath<'a>,
        ino: u64,
    },
    Symlink {
        path: StreamPath<'a>,
        ino: u64,
        target: &'a [u8],
    },
    Rename {
        path: StreamPath<'a>,
        to: StreamPath<'a>,
    },
    /// Give the inode at `existing` the additional name `path`.
    Link {
        path: StreamPath<'a>,
        existing: StreamPath<'a>,
    },
    Unlink {
        path: StreamPath<'a>,
    },
    Rmdir {
        path: StreamPath<'a>,
    },
    SetXattr {
        path: StreamPath<'a>,
        name: &'a [u8],
        value: &'a [u8],
    },
    RemoveXattr {
        path: StreamPath<'a>,
        name: &'a [u8],
    },
    Write {
        path: StreamPath<'a>,
        offset: u64,
        data: &'a [u8],
    },
    /// Share a range of a file of `source`, which may be the subvolume that is being received.
    Clone {
        path: StreamPath<'a>,
        offset: u64,
        len: u64,
        source: Source,
        source_path: StreamPath<'a>,
        source_offset: u64,
    },
    Truncate {
        path: StreamPath<'a>,
        size: u64,
    },
    Chmod {
        path: StreamPath<'a>,
        mode: u64,
    },
    Chown {
        path: StreamPath<'a>,
        uid: u32,
        gid: u32,
    },
    Utimes {
        path: StreamPath<'a>,
        stamps: Stamps,
    },
    /// The receiver does nothing. A stream without file data has this command in place of a write.
    UpdateExtent {
        path: StreamPath<'a>,
        offset: u64,
        len: u64,
    },
    /// `mode` as the system call has it. From version 2 on.
    Fallocate {
        path: StreamPath<'a>,
        mode: u32,
        offset: u64,
        len: u64,
    },
    /// Flags as the inode item has them. From version 2 on.
    FileAttr {
        path: StreamPath<'a>,
        flags: u64,
    },
    /// Write compressed data. From version 2 on.
    EncodedWrite {
        path: StreamPath<'a>,
        offset: u64,
        encoded: Encoded,
        data: &'a [u8],
    },
    /// Make the Merkle tree of a file with complete content. From version 3 on.
    EnableVerity {
        path: StreamPath<'a>,
        algorithm: u8,
        block_size: u32,
        salt: &'a [u8],
        signature: &'a [u8],
    },
    /// The stream is complete.
    End,
}
