//! Requests, with their fields, names and data.

use zerocopy::FromBytes;

use crate::layout::{
    BatchForgetIn, CopyRangeIn, CreateIn, FallocateIn, ForgetOne, FsyncIn, GetattrIn, GetxattrSize,
    IoctlIn, LinkIn, LseekIn, MkdirIn, MknodIn, OpenIn, ReadIn, ReleaseIn, Rename2In, RenameIn,
    SetattrIn, SetxattrIn, StatxIn, WriteIn,
};
use crate::{
    Errno, GETATTR_HANDLE, READ_LOCKOWNER, RenameFlags, SetattrFlags, WireTime, WriteFlags,
};

/// The kind of a request, as a number.
pub type Opcode = u32;

/// Numbers of requests (`enum fuse_opcode`).
#[expect(missing_docs, reason = "the variants of `Operation` say what they are")]
pub mod opcode {
    use super::Opcode;

    pub const LOOKUP: Opcode = 1;
    pub const FORGET: Opcode = 2;
    pub const GETATTR: Opcode = 3;
    pub const SETATTR: Opcode = 4;
    pub const READLINK: Opcode = 5;
    pub const SYMLINK: Opcode = 6;
    pub const MKNOD: Opcode = 8;
    pub const MKDIR: Opcode = 9;
    pub const UNLINK: Opcode = 10;
    pub const RMDIR: Opcode = 11;
    pub const RENAME: Opcode = 12;
    pub const LINK: Opcode = 13;
    pub const OPEN: Opcode = 14;
    pub const READ: Opcode = 15;
    pub const WRITE: Opcode = 16;
    pub const STATFS: Opcode = 17;
    pub const RELEASE: Opcode = 18;
    pub const FSYNC: Opcode = 20;
    pub const SETXATTR: Opcode = 21;
    pub const GETXATTR: Opcode = 22;
    pub const LISTXATTR: Opcode = 23;
    pub const REMOVEXATTR: Opcode = 24;
    pub const FLUSH: Opcode = 25;
    pub const INIT: Opcode = 26;
    pub const OPENDIR: Opcode = 27;
    pub const READDIR: Opcode = 28;
    pub const RELEASEDIR: Opcode = 29;
    pub const FSYNCDIR: Opcode = 30;
    pub const ACCESS: Opcode = 34;
    pub const CREATE: Opcode = 35;
    pub const INTERRUPT: Opcode = 36;
    pub const DESTROY: Opcode = 38;
    pub const IOCTL: Opcode = 39;
    pub const NOTIFY_REPLY: Opcode = 41;
    pub const BATCH_FORGET: Opcode = 42;
    pub const FALLOCATE: Opcode = 43;
    pub const READDIRPLUS: Opcode = 44;
    pub const RENAME2: Opcode = 45;
    pub const LSEEK: Opcode = 46;
    pub const COPY_FILE_RANGE: Opcode = 47;
    pub const SYNCFS: Opcode = 50;
    pub const TMPFILE: Opcode = 51;
    pub const STATX: Opcode = 52;
    pub const COPY_FILE_RANGE_64: Opcode = 53;
}

/// A request without its header: the fixed fields, and the parts of variable length.
///
/// From `/dev/fuse`, both parts arrive in one message. With io_uring each part has its own buffer,
/// and the buffer for fixed fields may be longer than the fields.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Fixed fields.
    pub fixed: &'a [u8],
    /// Names and bytes.
    pub payload: &'a [u8],
}

impl<'a> Parts<'a> {
    /// Splits the part of a message after its header.
    #[must_use]
    pub fn of_message(opcode: Opcode, rest: &'a [u8]) -> Self {
        let (fixed, payload) = rest.split_at(fixed_len(opcode).min(rest.len()));
        Self { fixed, payload }
    }
}

/// Length of the fixed fields of a request, bytes.
fn fixed_len(of: Opcode) -> usize {
    use opcode::*;
    match of {
        GETATTR => size_of::<GetattrIn>(),
        SETATTR => size_of::<SetattrIn>(),
        MKNOD => size_of::<MknodIn>(),
        MKDIR => size_of::<MkdirIn>(),
        RENAME => size_of::<RenameIn>(),
        RENAME2 => size_of::<Rename2In>(),
        LINK => size_of::<LinkIn>(),
        OPEN => size_of::<OpenIn>(),
        READ | READDIR | READDIRPLUS => size_of::<ReadIn>(),
        WRITE => size_of::<WriteIn>(),
        RELEASE => size_of::<ReleaseIn>(),
        FSYNC | FSYNCDIR => size_of::<FsyncIn>(),
        SETXATTR => size_of::<SetxattrIn>(),
        GETXATTR | LISTXATTR => size_of::<GetxattrSize>(),
        CREATE | TMPFILE => size_of::<CreateIn>(),
        IOCTL => size_of::<IoctlIn>(),
        FORGET => size_of::<u64>(),
        BATCH_FORGET => size_of::<BatchForgetIn>(),
        FALLOCATE => size_of::<FallocateIn>(),
        LSEEK => size_of::<LseekIn>(),
        COPY_FILE_RANGE | COPY_FILE_RANGE_64 => size_of::<CopyRangeIn>(),
        STATX => size_of::<StatxIn>(),
        _ => 0,
    }
}

/// A request that was checked.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "a variant says what its fields are")]
pub enum Operation<'a> {
    /// Find a name.
    Lookup { name: &'a [u8] },
    /// Give back references to inodes. The kernel expects no answer.
    Forget(Forgets<'a>),
    /// Return attributes.
    Getattr { has_handle: bool },
    /// Change attributes.
    Setattr(SetattrIn),
    /// Return the target of a symbolic link.
    Readlink,
    /// Make a symbolic link.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// Make a file of any kind except a directory.
    Mknod { how: MknodIn, name: &'a [u8] },
    /// Make a directory.
    Mkdir { how: MkdirIn, name: &'a [u8] },
    /// Remove the name of a file.
    Unlink { name: &'a [u8] },
    /// Remove a directory.
    Rmdir { name: &'a [u8] },
    /// Rename within a directory, or to the directory `target`.
    Rename { name: &'a [u8], target: u64, new_name: &'a [u8], flags: RenameFlags },
    /// Give the inode `node` one more name.
    Link { node: u64, name: &'a [u8] },
    /// Open a file.
    Open(OpenIn),
    /// Read a file.
    Read(ReadIn),
    /// Write a file.
    Write { how: WriteIn, data: &'a [u8] },
    /// Return size and free space of the volume.
    Statfs,
    /// An open file was closed for the last time.
    Release(ReleaseIn),
    /// Make a file or a directory durable.
    Fsync,
    /// Set an extended attribute.
    Setxattr { name: &'a [u8], value: &'a [u8], flags: i32 },
    /// Return an extended attribute, or its length if `room` is zero.
    Getxattr { name: &'a [u8], room: u32 },
    /// Return the names of extended attributes, or their length if `room` is zero.
    Listxattr { room: u32 },
    /// Remove an extended attribute.
    Removexattr { name: &'a [u8] },
    /// List a directory.
    Readdir(ReadIn),
    /// List a directory with attributes.
    Readdirplus(ReadIn),
    /// Make a file and open it.
    Create { how: CreateIn, name: &'a [u8] },
    /// Make a file without a name and open it.
    Tmpfile(CreateIn),
    /// The connection ends.
    Destroy,
    /// A command of ioctl(2) with its argument.
    Ioctl { how: IoctlIn, data: &'a [u8] },
    /// Allocate space for a file, or punch a hole.
    Fallocate(FallocateIn),
    /// Find data or a hole.
    Lseek(LseekIn),
    /// Copy within the volume. `is_wide` says whether the answer has a length of 64 bits.
    CopyRange { how: CopyRangeIn, is_wide: bool },
    /// Open a directory. After an answer of `ENOSYS` the kernel lists directories without opening.
    Opendir,
    /// A directory is closed.
    Releasedir,
    /// Make everything durable.
    Syncfs,
    /// Return attributes, the time of birth among them.
    Statx(StatxIn),
    /// Data that the server requested by a notification. The kernel expects no answer.
    NotifyReply,
    /// Anything else.
    Unknown,
}

/// References that the kernel gives back.
#[derive(Clone, Copy, Debug)]
pub enum Forgets<'a> {
    /// References to one inode.
    One(ForgetOne),
    /// References to several inodes: the bytes of one [`ForgetOne`] after the other.
    Many(&'a [u8]),
}

impl Forgets<'_> {
    /// Calls `each` for each inode.
    pub fn for_each(self, mut each: impl FnMut(ForgetOne)) {
        match self {
            Self::One(one) => each(one),
            Self::Many(all) => {
                let all = all.chunks_exact(size_of::<ForgetOne>());
                all.filter_map(|bytes| ForgetOne::read_from_bytes(bytes).ok()).for_each(each);
            }
        }
    }
}

impl<'a> Operation<'a> {
    /// Checks a request about the inode `node`.
    ///
    /// # Errors
    ///
    /// `EINVAL` where a part is too short, or a name does not end.
    pub fn decode(of: Opcode, node: u64, parts: Parts<'a>) -> Result<Self, Errno> {
        use opcode::*;
        let Parts { payload, .. } = parts;
        Ok(match of {
            LOOKUP => Self::Lookup { name: name(payload)? },
            FORGET => {
                let lookups = fixed::<u64>(parts)?;
                Self::Forget(Forgets::One(ForgetOne { node, lookups }))
            }
            BATCH_FORGET => {
                let count = fixed::<BatchForgetIn>(parts)?.count as usize;
                let len = count.checked_mul(size_of::<ForgetOne>()).ok_or(Errno::EINVAL)?;
                Self::Forget(Forgets::Many(payload.get(..len).ok_or(Errno::EINVAL)?))
            }
            GETATTR => {
                let flags = fixed::<GetattrIn>(parts)?.flags;
                Self::Getattr { has_handle: flags & GETATTR_HANDLE != 0 }
            }
            SETATTR => Self::Setattr(fixed(parts)?),
            READLINK => Self::Readlink,
            SYMLINK => {
                let [name, target] = names(payload)?;
                Self::Symlink { name, target }
            }
            MKNOD => Self::Mknod { how: fixed(parts)?, name: name(payload)? },
            MKDIR => Self::Mkdir { how: fixed(parts)?, name: name(payload)? },
            UNLINK => Self::Unlink { name: name(payload)? },
            RMDIR => Self::Rmdir { name: name(payload)? },
            RENAME => {
                let [name, new_name] = names(payload)?;
                let target = fixed::<RenameIn>(parts)?.target;
                Self::Rename { name, target, new_name, flags: RenameFlags::default() }
            }
            RENAME2 => {
                let [name, new_name] = names(payload)?;
                let Rename2In { target, flags, .. } = fixed(parts)?;
                Self::Rename { name, target, new_name, flags: RenameFlags::from_bits(flags) }
            }
            LINK => Self::Link { node: fixed::<LinkIn>(parts)?.node, name: name(payload)? },
            OPEN => Self::Open(fixed(parts)?),
            READ => Self::Read(fixed(parts)?),
            WRITE => {
                let how: WriteIn = fixed(parts)?;
                Self::Write { how, data: front(payload, how.size)? }
            }
            STATFS => Self::Statfs,
            RELEASE => Self::Release(fixed(parts)?),
            FSYNC | FSYNCDIR => Self::Fsync,
            SETXATTR => {
                let SetxattrIn { size, flags } = fixed(parts)?;
                let name = name(payload)?;
                let value = front(payload.get(name.len() + 1..).unwrap_or_default(), size)?;
                Self::Setxattr { name, value, flags }
            }
            GETXATTR => {
                let room = fixed::<GetxattrSize>(parts)?.size;
                Self::Getxattr { name: name(payload)?, room }
            }
            LISTXATTR => Self::Listxattr { room: fixed::<GetxattrSize>(parts)?.size },
            REMOVEXATTR => Self::Removexattr { name: name(payload)? },
            READDIR => Self::Readdir(fixed(parts)?),
            READDIRPLUS => Self::Readdirplus(fixed(parts)?),
            CREATE => Self::Create { how: fixed(parts)?, name: name(payload)? },
            // The payload has a name that the kernel has made up. The name is not used.
            TMPFILE => Self::Tmpfile(fixed(parts)?),
            DESTROY => Self::Destroy,
            IOCTL => {
                let how: IoctlIn = fixed(parts)?;
                Self::Ioctl { how, data: front(payload, how.in_len)? }
            }
            FALLOCATE => Self::Fallocate(fixed(parts)?),
            LSEEK => Self::Lseek(fixed(parts)?),
            COPY_FILE_RANGE => Self::CopyRange { how: fixed(parts)?, is_wide: false },
            COPY_FILE_RANGE_64 => Self::CopyRange { how: fixed(parts)?, is_wide: true },
            OPENDIR => Self::Opendir,
            RELEASEDIR => Self::Releasedir,
            SYNCFS => Self::Syncfs,
            STATX => Self::Statx(fixed(parts)?),
            NOTIFY_REPLY => Self::NotifyReply,
            _ => Self::Unknown,
        })
    }
}

impl ReadIn {
    /// Whether the read is direct. The kernel names a lock owner only for direct reads.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.read_flags & READ_LOCKOWNER != 0
    }
}

impl WriteIn {
    /// The flags of the write.
    #[must_use]
    pub fn how(&self) -> WriteFlags {
        WriteFlags::from_bits(self.write_flags)
    }
}

impl StatxIn {
    /// Whether the request comes from an open file.
    #[must_use]
    pub fn has_handle(&self) -> bool {
        self.getattr_flags & GETATTR_HANDLE != 0
    }
}

impl SetattrIn {
    /// Which fields are set.
    #[must_use]
    pub fn valid(&self) -> SetattrFlags {
        SetattrFlags::from_bits(self.valid)
    }

    /// The new time of access. Only valid if [`valid`](Self::valid) has its flag.
    #[must_use]
    pub fn atime(&self) -> WireTime {
        WireTime { sec: self.atime, nsec: self.atime_nsec }
    }

    /// The new time of modification. Only valid if [`valid`](Self::valid) has its flag.
    #[must_use]
    pub fn mtime(&self) -> WireTime {
        WireTime { sec: self.mtime, nsec: self.mtime_nsec }
    }

    /// The new time of change. Only valid if [`valid`](Self::valid) has its flag.
    #[must_use]
    pub fn ctime(&self) -> WireTime {
        WireTime { sec: self.ctime, nsec: self.ctime_nsec }
    }
}

/// The fixed fields.
fn fixed<T: FromBytes>(parts: Parts<'_>) -> Result<T, Errno> {
    T::read_from_prefix(parts.fixed).map(|(value, _)| value).map_err(|_| Errno::EINVAL)
}

/// The first `len` bytes of a payload; an error if the payload is shorter.
fn front(payload: &[u8], len: u32) -> Result<&[u8], Errno> {
    payload.get(..len as usize).ok_or(Errno::EINVAL)
}

/// The name that a payload begins with.
fn name(payload: &[u8]) -> Result<&[u8], Errno> {
    names(payload).map(|[name]| name)
}

/// The names that a payload begins with: each ends with a zero byte.
fn names<const N: usize>(payload: &[u8]) -> Result<[&[u8]; N], Errno> {
    let mut rest = payload;
    let mut names = [&[][..]; N];
    for name in &mut names {
        let end = rest.iter().position(|&byte| byte == 0).ok_or(Errno::EINVAL)?;
        (*name, rest) = (&rest[..end], &rest[end + 1..]);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(of: Opcode, rest: &[u8]) -> Result<Operation<'_>, Errno> {
        Operation::decode(of, 7, Parts::of_message(of, rest))
    }

    #[test]
    fn names_end_with_a_zero_byte() {
        assert!(matches!(decode(opcode::LOOKUP, b"a\0"), Ok(Operation::Lookup { name: b"a" })));
        assert_eq!(decode(opcode::LOOKUP, b"a").err(), Some(Errno::EINVAL));
        let symlink = decode(opcode::SYMLINK, b"a\0there\0");
        assert!(matches!(symlink, Ok(Operation::Symlink { name: b"a", target: b"there" })));
        assert_eq!(decode(opcode::SYMLINK, b"a\0there").err(), Some(Errno::EINVAL));
    }

    #[test]
    fn bytes_are_not_more_than_came() {
        let mut message = vec![0; 8];
        message[0] = 3;
        message.extend(b"user.x\0abc");
        let Ok(Operation::Setxattr { name, value, .. }) = decode(opcode::SETXATTR, &message) else {
            panic!("a good request");
        };
        assert_eq!((name, value), (&b"user.x"[..], &b"abc"[..]));
        message.pop();
        assert_eq!(decode(opcode::SETXATTR, &message).err(), Some(Errno::EINVAL));
        let mut forgets = vec![0; 8];
        forgets[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(decode(opcode::BATCH_FORGET, &forgets).err(), Some(Errno::EINVAL));
    }

    #[test]
    fn several_are_forgotten_in_one_request() {
        let numbers = [1_u64, 300, 2, 301, 5];
        let message: Vec<u8> =
            [2_u64].iter().chain(&numbers[1..]).flat_map(|n| n.to_ne_bytes()).collect();
        let Ok(Operation::Forget(forgets)) = decode(opcode::BATCH_FORGET, &message) else {
            panic!("a good request");
        };
        let mut seen = Vec::new();
        forgets.for_each(|one| seen.push((one.node, one.lookups)));
        assert_eq!(seen, [(300, 2), (301, 5)]);
    }

    /// Bytes of any content and length give a result, without a panic.
    #[test]
    fn no_bytes_panic() {
        for of in 0..64 {
            for len in 0..96 {
                for fill in [0, 1, 0x7f, 0xff] {
                    let bytes = vec![fill; len];
                    let _ = decode(of, &bytes);
                    let _ = Operation::decode(of, 1, Parts { fixed: &bytes, payload: &bytes });
                }
            }
        }
    }
}
