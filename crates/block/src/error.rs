//! Errors of one device, and of opening it.

use std::io;
use std::path::PathBuf;

/// The operation that failed on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reading bytes from the device.
    Read,
    /// Writing bytes to the device.
    Write,
    /// Making written bytes durable.
    Flush,
    /// Discarding bytes.
    Discard,
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
        })
    }
}

/// The kind of file at a path that names neither a regular file nor a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotADevice {
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A character device.
    CharacterDevice,
    /// A socket.
    Socket,
    /// A kind of file that this program does not know.
    Unknown,
}

impl std::fmt::Display for NotADevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Directory => "a directory",
            Self::Fifo => "a named pipe",
            Self::CharacterDevice => "a character device",
            Self::Socket => "a socket",
            Self::Unknown => "something else",
        })
    }
}

/// A failure of one device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed, or the kernel failed while it served the request.
    #[error("{operation} of {len} bytes at {offset} failed on {device}")]
    Io {
        /// Name of the device.
        device: String,
        /// The operation that failed.
        operation: Operation,
        /// The first byte of the request.
        offset: u64,
        /// The length of the request in bytes.
        len: u64,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The program that needs the answer is about to end, so nothing waits for the device any more
    /// (`base::interrupt`). This is no failure of the device.
    #[error("{device}: the wait for an answer was given up")]
    Abandoned {
        /// Name of the device.
        device: String,
    },
    /// The request does not lie within the device.
    #[error(
        "{operation} of {len} bytes at {offset} is past the end of {device} ({device_len} bytes)"
    )]
    PastEnd {
        /// Name of the device.
        device: String,
        /// The requested operation.
        operation: Operation,
        /// The first byte of the request.
        offset: u64,
        /// The length of the request in bytes.
        len: u64,
        /// The length of the device in bytes.
        device_len: u64,
    },
    /// The device was opened for reading only.
    #[error("{operation} on {device}, which is open for reading only")]
    ReadOnly {
        /// Name of the device.
        device: String,
        /// The requested operation.
        operation: Operation,
    },
    /// The length of the device cannot change.
    #[error("{device} has {len} bytes, and does not grow")]
    Fixed {
        /// Name of the device.
        device: String,
        /// The length of the device in bytes.
        len: u64,
    },
    /// Another process has the device open in a way that forbids this open.
    #[error("{} is in use by {}", path.display(), Holder(*pid))]
    Locked {
        /// The path.
        path: PathBuf,
        /// The process that has the device open, if the kernel reports it.
        pid: Option<u32>,
    },
    /// The kernel uses the block device: it is mounted, or part of another device.
    #[error("{} is in use by the kernel (mounted, or part of another device)", path.display())]
    Busy {
        /// The path.
        path: PathBuf,
    },
    /// A loop device uses the file, so the kernel may write it.
    #[error("{} is in use by the loop device {}", path.display(), by.display())]
    Looped {
        /// The path.
        path: PathBuf,
        /// The loop device.
        by: PathBuf,
    },
    /// Neither a regular file nor a block device.
    #[error("{} is {found}, not a regular file or a block device", path.display())]
    NotADevice {
        /// The path.
        path: PathBuf,
        /// The kind of file at the path.
        found: NotADevice,
    },
    /// The file or device has no bytes.
    #[error("{} is empty", path.display())]
    Empty {
        /// The path.
        path: PathBuf,
    },
    /// The path could not be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A partition table is damaged, or has no such partition.
    #[error("{device}: {why}")]
    Partition {
        /// The disk or its image.
        device: String,
        /// The fault.
        why: String,
    },
    /// The file could not be made as long as was asked.
    #[error("cannot make {} {len} bytes long", path.display())]
    Grow {
        /// The path of the file.
        path: PathBuf,
        /// The requested length in bytes.
        len: u64,
        /// The error of the kernel.
        source: io::Error,
    },
}

impl Error {
    /// Says whether the device itself failed, as opposed to an invalid request.
    #[must_use]
    pub fn is_io(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Open { .. } | Self::Grow { .. })
    }
}

impl Error {
    /// Says whether the device did not fail: the wait for it was given up.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        matches!(self, Self::Abandoned { .. })
    }

    /// Says whether another program, or the kernel, has the device open.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Locked { .. } | Self::Busy { .. } | Self::Looped { .. })
    }
}

/// A process, in the words of an error message.
struct Holder(Option<u32>);

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("another process"),
        }
    }
}
