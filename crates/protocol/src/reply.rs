//! Answers of a front end, as the bytes after the header.

use zerocopy::IntoBytes;

use crate::layout::{
    AttrOut, EntryOut, GetxattrSize, IoctlOut, OpenOut, StatfsOut, StatxOut, WriteOut,
};
use crate::{Errno, OpenFlags};

/// A successful answer. Data of reads and listings goes into the transport's memory instead.
#[derive(Debug)]
pub enum Reply {
    /// Success without data.
    Done,
    /// A name and its inode.
    Entry(EntryOut),
    /// Attributes.
    Attr(AttrOut),
    /// Attributes, the time of birth among them.
    Statx(Box<StatxOut>),
    /// Flags for an open file.
    Opened(OpenFlags),
    /// A new file, and the flags for the open file.
    Created(EntryOut, OpenFlags),
    /// Bytes.
    Data(Vec<u8>),
    /// Length of a value, in bytes.
    Len(u32),
    /// Number of bytes written or copied.
    Written(u32),
    /// Number of bytes copied, in 64 bits.
    Copied(u64),
    /// Offset of data or a hole, in bytes.
    Found(i64),
    /// Size and free space of the volume.
    Statfs(StatfsOut),
    /// Result of a command of ioctl(2).
    Ioctl(Vec<u8>),
    /// The error of a command of ioctl(2) that fails, and the bytes that the command still returns.
    IoctlFailed(Errno, Vec<u8>),
}

impl Reply {
    /// A value, or its length where `room` is zero.
    ///
    /// # Errors
    ///
    /// `ERANGE` where the room is too little.
    pub fn sized(value: Vec<u8>, room: u32) -> Result<Self, Errno> {
        match room as usize {
            0 => Ok(Self::Len(u32::try_from(value.len()).unwrap_or(u32::MAX))),
            room if value.len() > room => Err(Errno::ERANGE),
            _ => Ok(Self::Data(value)),
        }
    }

    /// Writes the answer at the beginning of `room`; returns its length in bytes.
    ///
    /// # Errors
    ///
    /// `EIO` where the room is too little.
    pub fn write(&self, room: &mut [u8]) -> Result<usize, Errno> {
        let size = |size| GetxattrSize { size, ..GetxattrSize::default() };
        let opened = |flags: &OpenFlags| OpenOut { flags: flags.bits(), ..OpenOut::default() };
        match self {
            Self::Done => Ok(0),
            Self::Entry(entry) => put(room, &[entry.as_bytes()]),
            Self::Attr(attr) => put(room, &[attr.as_bytes()]),
            Self::Statx(attr) => put(room, &[attr.as_bytes()]),
            Self::Opened(flags) => put(room, &[opened(flags).as_bytes()]),
            Self::Created(entry, flags) => put(room, &[entry.as_bytes(), opened(flags).as_bytes()]),
            Self::Data(bytes) => put(room, &[bytes]),
            Self::Len(len) => put(room, &[size(*len).as_bytes()]),
            Self::Written(size) => {
                put(room, &[WriteOut { size: *size, ..WriteOut::default() }.as_bytes()])
            }
            Self::Copied(len) => put(room, &[len.as_bytes()]),
            Self::Found(offset) => put(room, &[offset.as_bytes()]),
            Self::Statfs(sizes) => put(room, &[sizes.as_bytes()]),
            Self::Ioctl(bytes) => put(room, &[IoctlOut::default().as_bytes(), bytes]),
            Self::IoctlFailed(errno, bytes) => {
                let out = IoctlOut { result: -errno.code(), ..IoctlOut::default() };
                put(room, &[out.as_bytes(), bytes])
            }
        }
    }
}

/// Writes the parts one after the other.
fn put(room: &mut [u8], parts: &[&[u8]]) -> Result<usize, Errno> {
    let mut len = 0;
    for part in parts {
        let place = room.get_mut(len..).and_then(|rest| rest.get_mut(..part.len()));
        place.ok_or(Errno::EIO)?.copy_from_slice(part);
        len += part.len();
    }
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value is never cut.
    #[test]
    fn values_come_whole() {
        let mut room = [0xff; 16];
        let sized = |room| Reply::sized(b"abc".to_vec(), room);
        assert_eq!(sized(0).expect("a length").write(&mut room), Ok(8));
        assert_eq!(room[..8], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(sized(3).expect("it fits").write(&mut room), Ok(3));
        assert_eq!(&room[..3], b"abc");
        assert_eq!(sized(2).err(), Some(Errno::ERANGE));
    }

    #[test]
    fn answers_do_not_leave_their_room() {
        let created = Reply::Created(EntryOut::default(), OpenFlags::default());
        assert_eq!(created.write(&mut [0; 144]), Ok(144));
        assert_eq!(created.write(&mut [0; 143]), Err(Errno::EIO));
    }
}
