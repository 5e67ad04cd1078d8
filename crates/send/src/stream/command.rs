//! Commands: what a stream tells its receiver to do.

use buttress_format::Timespec;

use super::attribute::{self as a, Attributes, Builder};
use super::error::StreamError;
use super::path::StreamPath;
use super::{Uuid, number};

/// A subvolume that exists already, by the name that sender and receiver share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The uuid it was received as; its own where it was not received.
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
    /// Where in the unpacked data the bytes of the file begin.
    pub offset: u64,
    /// 0 none, 1 zlib, 2 zstd, 3 to 7 lzo in segments of 4 KiB to 64 KiB.
    pub compression: u32,
    /// 0: none is known.
    pub encryption: u32,
}

/// One step of a stream. Offsets and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are those of the system calls that they stand for")]
pub enum Command<'a> {
    /// Make a subvolume; what follows goes into it.
    Subvol {
        name: StreamPath<'a>,
        source: Source,
    },
    /// Make a snapshot of `parent`; what follows changes it.
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
    /// Give `existing` the name `path`, too.
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
    /// Nothing to do: where data would have been in a stream without file data.
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
    /// Write what is compressed. From version 2 on.
    EncodedWrite {
        path: StreamPath<'a>,
        offset: u64,
        encoded: Encoded,
        data: &'a [u8],
    },
    /// From version 3 on, which nobody writes yet.
    EnableVerity {
        path: StreamPath<'a>,
        algorithm: u8,
        block_size: u32,
    },
    /// The stream is complete.
    End,
}

impl<'a> Command<'a> {
    /// Reads the payload of a command whose checksum was right.
    pub(crate) fn parse(
        which: u16,
        payload: &'a [u8],
        version: u32,
        at: u64,
    ) -> Result<Self, StreamError> {
        let x = Attributes::parse(payload, version, at)?;
        let source = |uuid, transid| -> Result<Source, StreamError> {
            Ok(Source { uuid: x.uuid(uuid)?, ctransid: x.u64(transid)? })
        };
        let command = match which {
            number::SUBVOL => {
                Self::Subvol { name: x.name(a::PATH)?, source: source(a::UUID, a::CTRANSID)? }
            }
            number::SNAPSHOT => Self::Snapshot {
                name: x.name(a::PATH)?,
                source: source(a::UUID, a::CTRANSID)?,
                parent: source(a::CLONE_UUID, a::CLONE_CTRANSID)?,
            },
            number::MKFILE => Self::MkFile { path: x.entry(a::PATH)?, ino: x.u64(a::INO)? },
            number::MKDIR => Self::MkDir { path: x.entry(a::PATH)?, ino: x.u64(a::INO)? },
            number::MKNOD => Self::MkNod {
                path: x.entry(a::PATH)?,
                ino: x.u64(a::INO)?,
                mode: x.u64(a::MODE)?,
                rdev: x.u64(a::RDEV)?,
            },
            number::MKFIFO => Self::MkFifo { path: x.entry(a::PATH)?, ino: x.u64(a::INO)? },
            number::MKSOCK => Self::MkSock { path: x.entry(a::PATH)?, ino: x.u64(a::INO)? },
            number::SYMLINK => Self::Symlink {
                path: x.entry(a::PATH)?,
                ino: x.u64(a::INO)?,
                target: x.bytes(a::PATH_LINK)?,
            },
            number::RENAME => Self::Rename { path: x.entry(a::PATH)?, to: x.entry(a::PATH_TO)? },
            number::LINK => {
                Self::Link { path: x.entry(a::PATH)?, existing: x.entry(a::PATH_LINK)? }
            }
            number::UNLINK => Self::Unlink { path: x.entry(a::PATH)? },
            number::RMDIR => Self::Rmdir { path: x.entry(a::PATH)? },
            number::SET_XATTR => Self::SetXattr {
                path: x.path(a::PATH)?,
                name: x.bytes(a::XATTR_NAME)?,
                value: x.bytes(a::XATTR_DATA)?,
            },
            number::REMOVE_XATTR => {
                Self::RemoveXattr { path: x.path(a::PATH)?, name: x.bytes(a::XATTR_NAME)? }
            }
            number::WRITE => {
                let (offset, data) = (x.u64(a::FILE_OFFSET)?, x.bytes(a::DATA)?);
                x.range(offset, data.len() as u64, a::FILE_OFFSET)?;
                Self::Write { path: x.entry(a::PATH)?, offset, data }
            }
            number::CLONE => {
                let (offset, len) = (x.u64(a::FILE_OFFSET)?, x.u64(a::CLONE_LEN)?);
                let source_offset = x.u64(a::CLONE_OFFSET)?;
                x.range(offset, len, a::FILE_OFFSET)?;
                x.range(source_offset, len, a::CLONE_OFFSET)?;
                Self::Clone {
                    path: x.entry(a::PATH)?,
                    offset,
                    len,
                    source: source(a::CLONE_UUID, a::CLONE_CTRANSID)?,
                    source_path: x.entry(a::CLONE_PATH)?,
                    source_offset,
                }
            }
            number::TRUNCATE => {
                let size = x.u64(a::SIZE)?;
                x.range(0, size, a::SIZE)?;
                Self::Truncate { path: x.entry(a::PATH)?, size }
            }
            number::CHMOD => Self::Chmod { path: x.path(a::PATH)?, mode: x.u64(a::MODE)? },
            number::CHOWN => {
                Self::Chown { path: x.path(a::PATH)?, uid: x.id(a::UID)?, gid: x.id(a::GID)? }
            }
            number::UTIMES => Self::Utimes {
                path: x.path(a::PATH)?,
                stamps: Stamps {
                    atime: x.time(a::ATIME)?,
                    mtime: x.time(a::MTIME)?,
                    ctime: x.time(a::CTIME)?,
                    otime: x.time_or_none(a::OTIME)?,
                },
            },
            number::UPDATE_EXTENT => {
                let (offset, len) = (x.u64(a::FILE_OFFSET)?, x.u64(a::SIZE)?);
                x.range(offset, len, a::FILE_OFFSET)?;
                Self::UpdateExtent { path: x.entry(a::PATH)?, offset, len }
            }
            number::FALLOCATE => {
                let (offset, len) = (x.u64(a::FILE_OFFSET)?, x.u64(a::SIZE)?);
                x.range(offset, len, a::FILE_OFFSET)?;
                let mode = x.u32_or_zero(a::FALLOCATE_MODE)?;
                Self::Fallocate { path: x.entry(a::PATH)?, mode, offset, len }
            }
            number::FILEATTR => {
                Self::FileAttr { path: x.path(a::PATH)?, flags: x.u64_or_zero(a::FILEATTR)? }
            }
            number::ENCODED_WRITE => {
                let offset = x.u64(a::FILE_OFFSET)?;
                let encoded = Encoded {
                    file_len: x.u64(a::UNENCODED_FILE_LEN)?,
                    ram_bytes: x.u64(a::UNENCODED_LEN)?,
                    offset: x.u64(a::UNENCODED_OFFSET)?,
                    compression: x.u32_or_zero(a::COMPRESSION)?,
                    encryption: x.u32_or_zero(a::ENCRYPTION)?,
                };
                x.range(offset, encoded.file_len, a::FILE_OFFSET)?;
                x.range(encoded.offset, encoded.file_len, a::UNENCODED_OFFSET)?;
                let data = x.bytes(a::DATA)?;
                Self::EncodedWrite { path: x.entry(a::PATH)?, offset, encoded, data }
            }
            number::ENABLE_VERITY => Self::EnableVerity {
                path: x.entry(a::PATH)?,
                algorithm: x.u8(a::VERITY_ALGORITHM)?,
                block_size: x.u32(a::VERITY_BLOCK_SIZE)?,
            },
            number::END => Self::End,
            number => return Err(StreamError::Command { at, number }),
        };
        Ok(command)
    }

    /// Appends the command's bytes.
    ///
    /// # Errors
    ///
    /// [`StreamError::Unsayable`] when a field is longer than its length says, or all of them
    /// are longer than receivers take. `out` is as it was then.
    pub(crate) fn encode(&self, version: u32, out: &mut Vec<u8>) -> Result<(), StreamError> {
        let start = move |number| {
            // Moved, not borrowed: the builder takes it along.
            let out = out;
            Builder::new(out, version, number)
        };
        match *self {
            Self::Subvol { name, source } => start(number::SUBVOL)
                .path(a::PATH, name)
                .bytes(a::UUID, &source.uuid)
                .u64(a::CTRANSID, source.ctransid)
                .finish(),
            Self::Snapshot { name, source, parent } => start(number::SNAPSHOT)
                .path(a::PATH, name)
                .bytes(a::UUID, &source.uuid)
                .u64(a::CTRANSID, source.ctransid)
                .bytes(a::CLONE_UUID, &parent.uuid)
                .u64(a::CLONE_CTRANSID, parent.ctransid)
                .finish(),
            Self::MkFile { path, ino } => {
                start(number::MKFILE).path(a::PATH, path).u64(a::INO, ino).finish()
            }
            Self::MkDir { path, ino } => {
                start(number::MKDIR).path(a::PATH, path).u64(a::INO, ino).finish()
            }
            Self::MkNod { path, ino, mode, rdev } => start(number::MKNOD)
                .path(a::PATH, path)
                .u64(a::INO, ino)
                .u64(a::RDEV, rdev)
                .u64(a::MODE, mode)
                .finish(),
            Self::MkFifo { path, ino } => {
                start(number::MKFIFO).path(a::PATH, path).u64(a::INO, ino).finish()
            }
            Self::MkSock { path, ino } => {
                start(number::MKSOCK).path(a::PATH, path).u64(a::INO, ino).finish()
            }
            Self::Symlink { path, ino, target } => start(number::SYMLINK)
                .path(a::PATH, path)
                .u64(a::INO, ino)
                .bytes(a::PATH_LINK, target)
                .finish(),
            Self::Rename { path, to } => {
                start(number::RENAME).path(a::PATH, path).path(a::PATH_TO, to).finish()
            }
            Self::Link { path, existing } => {
                start(number::LINK).path(a::PATH, path).path(a::PATH_LINK, existing).finish()
            }
            Self::Unlink { path } => start(number::UNLINK).path(a::PATH, path).finish(),
            Self::Rmdir { path } => start(number::RMDIR).path(a::PATH, path).finish(),
            Self::SetXattr { path, name, value } => start(number::SET_XATTR)
                .path(a::PATH, path)
                .bytes(a::XATTR_NAME, name)
                .bytes(a::XATTR_DATA, value)
                .finish(),
            Self::RemoveXattr { path, name } => {
                start(number::REMOVE_XATTR).path(a::PATH, path).bytes(a::XATTR_NAME, name).finish()
            }
            Self::Write { path, offset, data } => start(number::WRITE)
                .path(a::PATH, path)
                .u64(a::FILE_OFFSET, offset)
                .data(data)
                .finish(),
            Self::Clone { path, offset, len, source, source_path, source_offset } => {
                start(number::CLONE)
                    .u64(a::FILE_OFFSET, offset)
                    .u64(a::CLONE_LEN, len)
                    .path(a::PATH, path)
                    .bytes(a::CLONE_UUID, &source.uuid)
                    .u64(a::CLONE_CTRANSID, source.ctransid)
                    .path(a::CLONE_PATH, source_path)
                    .u64(a::CLONE_OFFSET, source_offset)
                    .finish()
            }
            Self::Truncate { path, size } => {
                start(number::TRUNCATE).path(a::PATH, path).u64(a::SIZE, size).finish()
            }
            Self::Chmod { path, mode } => {
                start(number::CHMOD).path(a::PATH, path).u64(a::MODE, mode).finish()
            }
            Self::Chown { path, uid, gid } => start(number::CHOWN)
                .path(a::PATH, path)
                .u64(a::UID, uid.into())
                .u64(a::GID, gid.into())
                .finish(),
            Self::Utimes { path, stamps } => {
                let mut command = start(number::UTIMES);
                command.path(a::PATH, path).time(a::ATIME, stamps.atime);
                command.time(a::MTIME, stamps.mtime).time(a::CTIME, stamps.ctime);
                if let Some(otime) = stamps.otime.filter(|_| version >= 2) {
                    command.time(a::OTIME, otime);
                }
                command.finish()
            }
            Self::UpdateExtent { path, offset, len } => start(number::UPDATE_EXTENT)
                .path(a::PATH, path)
                .u64(a::FILE_OFFSET, offset)
                .u64(a::SIZE, len)
                .finish(),
            Self::Fallocate { path, mode, offset, len } => start(number::FALLOCATE)
                .path(a::PATH, path)
                .u32(a::FALLOCATE_MODE, mode)
                .u64(a::FILE_OFFSET, offset)
                .u64(a::SIZE, len)
                .finish(),
            Self::FileAttr { path, flags } => {
                start(number::FILEATTR).path(a::PATH, path).u64(a::FILEATTR, flags).finish()
            }
            Self::EncodedWrite { path, offset, encoded, data } => start(number::ENCODED_WRITE)
                .path(a::PATH, path)
                .u64(a::FILE_OFFSET, offset)
                .u64(a::UNENCODED_FILE_LEN, encoded.file_len)
                .u64(a::UNENCODED_LEN, encoded.ram_bytes)
                .u64(a::UNENCODED_OFFSET, encoded.offset)
                .u32(a::COMPRESSION, encoded.compression)
                .u32(a::ENCRYPTION, encoded.encryption)
                .data(data)
                .finish(),
            Self::EnableVerity { path, algorithm, block_size } => start(number::ENABLE_VERITY)
                .path(a::PATH, path)
                .bytes(a::VERITY_ALGORITHM, &[algorithm])
                .u32(a::VERITY_BLOCK_SIZE, block_size)
                .finish(),
            Self::End => start(number::END).finish(),
        }
    }
}
