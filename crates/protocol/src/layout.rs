//! The fixed parts of messages, field by field.
//!
//! Each type has the layout of the kernel, without gaps. So a plain copy converts between bytes and
//! values.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! wire {
    ($($(#[$doc:meta])* $of_type:vis struct $name:ident, $len:literal { $($(#[$of:meta])* $vis:vis $field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            $of_type struct $name { $($(#[$of])* $vis $field: $kind,)* }

            const _: () = assert!(size_of::<$name>() == $len);
        )*
    };
}

wire! {
    /// The beginning of all requests (`fuse_in_header`).
    pub struct Head, 40 {
        /// Bytes of the whole request.
        pub len: u32,
        /// The kind of request.
        pub opcode: u32,
        /// The number of the request. The answer repeats it.
        pub unique: u64,
        /// The inode in question.
        pub node: u64,
        /// The user that asks.
        pub uid: u32,
        /// The group that asks.
        pub gid: u32,
        /// The thread that asks; zero if the kernel itself asks.
        pub task: u32,
        extension_len: u16,
        padding: u16,
    }

    /// The beginning of all answers (`fuse_out_header`).
    pub struct OutHead, 16 {
        /// Bytes of the whole answer.
        pub len: u32,
        /// Zero or a negative error number. In a notification, the kind of the notification.
        pub error: i32,
        /// The request that is answered; zero in a notification.
        pub unique: u64,
    }

    /// `fuse_attr`.
    pub struct Attr, 88 {
        /// The number that programs see.
        pub ino: u64,
        /// Bytes.
        pub size: u64,
        /// Units of 512 bytes.
        pub blocks: u64,
        /// Access, seconds.
        pub atime: i64,
        /// Modification, seconds.
        pub mtime: i64,
        /// Change, seconds.
        pub ctime: i64,
        /// Access, nanoseconds.
        pub atime_nsec: u32,
        /// Modification, nanoseconds.
        pub mtime_nsec: u32,
        /// Change, nanoseconds.
        pub ctime_nsec: u32,
        /// Kind and permissions, as in `st_mode`.
        pub mode: u32,
        /// Number of links.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// The device number of a device file.
        pub rdev: u32,
        /// Preferred size of a read, in bytes.
        pub blksize: u32,
        /// `FUSE_ATTR_*`.
        pub flags: u32,
    }

    /// `fuse_entry_out`.
    pub struct EntryOut, 128 {
        /// The inode; zero if the name does not exist.
        pub node: u64,
        /// Distinguishes inodes that had the same number at different times.
        pub generation: u64,
        /// Seconds for which the kernel may cache the name.
        pub entry_valid: u64,
        /// Seconds for which the kernel may cache the attributes.
        pub attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        /// Attributes.
        pub attr: Attr,
    }

    /// `fuse_attr_out`.
    pub struct AttrOut, 104 {
        /// Seconds for which the kernel may cache the attributes.
        pub attr_valid: u64,
        attr_valid_nsec: u32,
        padding: u32,
        /// Attributes.
        pub attr: Attr,
    }

    /// `fuse_getattr_in`.
    pub(crate) struct GetattrIn, 16 {
        pub(crate) flags: u32,
        padding: u32,
        pub(crate) handle: u64,
    }

    /// `fuse_setattr_in`: new attributes; [`valid`](Self::valid) says which fields are set.
    pub struct SetattrIn, 88 {
        pub(crate) valid: u32,
        padding: u32,
        handle: u64,
        /// Bytes.
        pub size: u64,
        lock_owner: u64,
        pub(crate) atime: i64,
        pub(crate) mtime: i64,
        pub(crate) ctime: i64,
        pub(crate) atime_nsec: u32,
        pub(crate) mtime_nsec: u32,
        pub(crate) ctime_nsec: u32,
        /// Kind and permissions.
        pub mode: u32,
        unused4: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        unused5: u32,
    }

    /// `fuse_mknod_in`.
    pub struct MknodIn, 16 {
        /// Kind and permissions.
        pub mode: u32,
        /// The device number of a device file.
        pub rdev: u32,
        /// The caller's umask.
        pub umask: u32,
        padding: u32,
    }

    /// `fuse_mkdir_in`.
    pub struct MkdirIn, 8 {
        /// Permissions.
        pub mode: u32,
        /// The caller's umask.
        pub umask: u32,
    }

    /// `fuse_rename_in`.
    pub(crate) struct RenameIn, 8 {
        pub(crate) target: u64,
    }

    /// `fuse_rename2_in`.
    pub(crate) struct Rename2In, 16 {
        pub(crate) target: u64,
        pub(crate) flags: u32,
        padding: u32,
    }

    /// `fuse_link_in`.
    pub(crate) struct LinkIn, 8 {
        pub(crate) node: u64,
    }

    /// `fuse_open_in`.
    pub struct OpenIn, 8 {
        /// Flags of open(2).
        pub flags: i32,
        open_flags: u32,
    }

    /// `fuse_open_out`.
    pub struct OpenOut, 16 {
        /// The server's number of the open file.
        pub handle: u64,
        /// [`OpenFlags`](crate::OpenFlags).
        pub flags: u32,
        pub(crate) backing: i32,
    }

    /// `fuse_create_in`, for CREATE and TMPFILE.
    pub struct CreateIn, 16 {
        /// Flags of open(2).
        pub flags: i32,
        /// Kind and permissions.
        pub mode: u32,
        /// The caller's umask.
        pub umask: u32,
        open_flags: u32,
    }

    /// `fuse_read_in`, for READ, READDIR and READDIRPLUS.
    pub struct ReadIn, 40 {
        handle: u64,
        /// Offset in bytes. In a listing, the position.
        pub offset: u64,
        /// Bytes at most.
        pub size: u32,
        /// `FUSE_READ_*`.
        pub read_flags: u32,
        lock_owner: u64,
        /// Flags with which the file was opened.
        pub flags: i32,
        padding: u32,
    }

    /// `fuse_write_in`.
    pub struct WriteIn, 40 {
        handle: u64,
        /// Offset in bytes.
        pub offset: u64,
        /// Bytes.
        pub size: u32,
        pub(crate) write_flags: u32,
        lock_owner: u64,
        /// Flags with which the file was opened.
        pub flags: i32,
        padding: u32,
    }

    /// `fuse_write_out`.
    pub(crate) struct WriteOut, 8 {
        pub(crate) size: u32,
        pub(crate) padding: u32,
    }

    /// `fuse_statfs_out`.
    pub struct StatfsOut, 80 {
        /// Size of the volume, in units of [`frsize`](Self::frsize).
        pub blocks: u64,
        /// Free units.
        pub bfree: u64,
        /// Free units for unprivileged users.
        pub bavail: u64,
        /// Inodes.
        pub files: u64,
        /// Inodes that may still be made.
        pub ffree: u64,
        /// Preferred size of a read, in bytes.
        pub bsize: u32,
        /// Bytes of the longest name.
        pub name_max: u32,
        /// Bytes of a unit.
        pub frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }

    /// `fuse_release_in`.
    pub struct ReleaseIn, 24 {
        handle: u64,
        /// Flags with which the file was opened.
        pub flags: i32,
        release_flags: u32,
        lock_owner: u64,
    }

    /// `fuse_fsync_in`.
    pub(crate) struct FsyncIn, 16 {
        pub(crate) handle: u64,
        pub(crate) flags: u32,
        padding: u32,
    }

    /// `fuse_setxattr_in`, as it is without `FUSE_SETXATTR_EXT`.
    pub(crate) struct SetxattrIn, 8 {
        pub(crate) size: u32,
        pub(crate) flags: i32,
    }

    /// `fuse_getxattr_in` and `fuse_getxattr_out`.
    pub(crate) struct GetxattrSize, 8 {
        pub(crate) size: u32,
        pub(crate) padding: u32,
    }

    /// `fuse_init_in`.
    pub struct InitIn, 64 {
        /// Version of the protocol.
        pub major: u32,
        /// Version of the protocol.
        pub minor: u32,
        /// Bytes that the kernel reads ahead.
        pub max_readahead: u32,
        pub(crate) flags: u32,
        pub(crate) flags2: u32,
        unused: [u32; 11],
    }

    /// `fuse_init_out`.
    pub struct InitOut, 64 {
        /// Version of the protocol.
        pub major: u32,
        /// Version of the protocol.
        pub minor: u32,
        /// Bytes that the kernel may read ahead.
        pub max_readahead: u32,
        pub(crate) flags: u32,
        /// Requests in the background at once.
        pub max_background: u16,
        /// Background requests at which the kernel counts the connection as congested.
        pub congestion_threshold: u16,
        /// Bytes of a write.
        pub max_write: u32,
        /// Granularity of times, in nanoseconds.
        pub time_gran: u32,
        /// Pages of a request.
        pub max_pages: u16,
        pub(crate) map_alignment: u16,
        pub(crate) flags2: u32,
        pub(crate) max_stack_depth: u32,
        pub(crate) request_timeout: u16,
        pub(crate) unused: [u16; 11],
    }

    /// `fuse_ioctl_in`.
    pub struct IoctlIn, 32 {
        handle: u64,
        flags: u32,
        /// The command.
        pub command: u32,
        argument: u64,
        /// Length of the argument, in bytes.
        pub in_len: u32,
        /// Bytes that the answer may have.
        pub out_len: u32,
    }

    /// `fuse_ioctl_out`.
    pub(crate) struct IoctlOut, 16 {
        pub(crate) result: i32,
        pub(crate) flags: u32,
        pub(crate) in_iovs: u32,
        pub(crate) out_iovs: u32,
    }

    /// `fuse_fallocate_in`.
    pub struct FallocateIn, 32 {
        handle: u64,
        /// Offset in bytes.
        pub offset: u64,
        /// Bytes.
        pub len: u64,
        /// `FALLOC_FL_*`.
        pub mode: u32,
        padding: u32,
    }

    /// `fuse_lseek_in`.
    pub struct LseekIn, 24 {
        handle: u64,
        /// Offset in bytes.
        pub offset: i64,
        /// `SEEK_DATA` or `SEEK_HOLE`.
        pub whence: i32,
        padding: u32,
    }

    /// `fuse_copy_file_range_in`; the source is the node of the request.
    pub struct CopyRangeIn, 56 {
        from_handle: u64,
        /// Offset in the source, in bytes.
        pub from: u64,
        /// The inode of the target.
        pub target: u64,
        to_handle: u64,
        /// Offset in the target, in bytes.
        pub to: u64,
        /// Bytes.
        pub len: u64,
        flags: u64,
    }

    /// `fuse_batch_forget_in`.
    pub(crate) struct BatchForgetIn, 8 {
        pub(crate) count: u32,
        padding: u32,
    }

    /// References that the kernel gives back (`fuse_forget_one`).
    pub struct ForgetOne, 16 {
        /// The inode.
        pub node: u64,
        /// Number of references.
        pub lookups: u64,
    }

    /// `fuse_statx_in`.
    pub struct StatxIn, 24 {
        /// `FUSE_GETATTR_*`.
        pub getattr_flags: u32,
        reserved: u32,
        handle: u64,
        /// `AT_STATX_*`.
        pub flags: u32,
        /// `STATX_*` that the program wants.
        pub mask: u32,
    }

    /// `fuse_sx_time`.
    pub struct StatxTime, 16 {
        /// Seconds.
        pub sec: i64,
        /// Nanoseconds.
        pub nsec: u32,
        reserved: i32,
    }

    /// `fuse_statx_out`.
    pub struct StatxOut, 288 {
        /// Seconds for which the kernel may cache the attributes.
        pub attr_valid: u64,
        attr_valid_nsec: u32,
        flags: u32,
        spare: [u64; 2],
        /// The `STATX_*` fields that the answer has.
        pub mask: u32,
        /// Preferred size of a read, in bytes.
        pub blksize: u32,
        /// `STATX_ATTR_*` that are set.
        pub attributes: u64,
        /// Number of links.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Kind and permissions.
        pub mode: u16,
        spare0: u16,
        /// The number that programs see.
        pub ino: u64,
        /// Bytes.
        pub size: u64,
        /// Units of 512 bytes.
        pub blocks: u64,
        /// The `STATX_ATTR_*` attributes that the server knows.
        pub attributes_mask: u64,
        /// Access.
        pub atime: StatxTime,
        /// Birth.
        pub btime: StatxTime,
        /// Change.
        pub ctime: StatxTime,
        /// Modification.
        pub mtime: StatxTime,
        /// The device number of a device file.
        pub rdev_major: u32,
        /// The device number of a device file.
        pub rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        spare2: [u64; 14],
    }

    /// `fuse_dirent` without its name.
    pub(crate) struct Dirent, 24 {
        pub(crate) ino: u64,
        pub(crate) position: u64,
        pub(crate) name_len: u32,
        pub(crate) kind: u32,
    }

    /// `fuse_notify_inval_inode_out`.
    pub(crate) struct InvalInode, 24 {
        pub(crate) node: u64,
        pub(crate) offset: i64,
        pub(crate) len: i64,
    }

    /// `fuse_notify_prune_out`; numbers of nodes follow.
    pub(crate) struct Prune, 16 {
        pub(crate) count: u32,
        pub(crate) padding: u32,
        pub(crate) spare: u64,
    }

    /// `fuse_notify_inval_entry_out`.
    pub(crate) struct InvalEntry, 16 {
        pub(crate) directory: u64,
        pub(crate) name_len: u32,
        pub(crate) flags: u32,
    }
}

impl EntryOut {
    /// An entry that the kernel may cache for `valid` seconds.
    #[must_use]
    pub fn new(node: u64, generation: u64, valid: u64, attr: Attr) -> Self {
        let (entry_valid, attr_valid) = (valid, valid);
        Self { node, generation, entry_valid, attr_valid, attr, ..Self::default() }
    }
}

impl StatfsOut {
    /// Creates the answer: all blocks, free blocks, free blocks for unprivileged users, then the
    /// lengths of a block and of the longest name in bytes.
    #[must_use]
    pub fn new(blocks: u64, bfree: u64, bavail: u64, block_size: u32, name_max: u32) -> Self {
        let (bsize, frsize) = (block_size, block_size);
        Self { blocks, bfree, bavail, bsize, frsize, name_max, ..Self::default() }
    }
}

impl AttrOut {
    /// Attributes that the kernel may cache for `valid` seconds.
    #[must_use]
    pub fn new(valid: u64, attr: Attr) -> Self {
        Self { attr_valid: valid, attr, ..Self::default() }
    }
}

impl StatxOut {
    /// `STATX_BASIC_STATS` and `STATX_BTIME`.
    const MASK: u32 = 0xfff;

    /// Attributes and the time of birth, which the kernel may cache for `valid` seconds. `device`
    /// is the major and minor number of a device file.
    #[must_use]
    pub fn new(valid: u64, attr: &Attr, btime: StatxTime, device: (u32, u32)) -> Self {
        let &Attr { ino, size, blocks, nlink, uid, gid, blksize, .. } = attr;
        Self {
            attr_valid: valid,
            mask: Self::MASK,
            mode: attr.mode as u16,
            atime: StatxTime::new(attr.atime, attr.atime_nsec),
            ctime: StatxTime::new(attr.ctime, attr.ctime_nsec),
            mtime: StatxTime::new(attr.mtime, attr.mtime_nsec),
            btime,
            rdev_major: device.0,
            rdev_minor: device.1,
            ..Self { ino, size, blocks, nlink, uid, gid, blksize, ..Self::default() }
        }
    }
}

impl StatxTime {
    /// A time.
    #[must_use]
    pub fn new(sec: i64, nsec: u32) -> Self {
        Self { sec, nsec, reserved: 0 }
    }
}

impl OutHead {
    /// The header of the answer to a request, with the length of the bytes after it.
    #[must_use]
    pub fn new(unique: u64, answer: Result<usize, crate::Errno>) -> Self {
        let (len, error) = match answer {
            Ok(len) => (len, 0),
            Err(errno) => (0, -errno.code()),
        };
        let len = u32::try_from(size_of::<Self>() + len).unwrap_or(u32::MAX);
        Self { len, error, unique }
    }

    /// Reads the header of an answer. All fields are zero if `message` is too short.
    #[must_use]
    pub fn read(message: &[u8]) -> Self {
        Self::read_from_prefix(message).map(|(head, _)| head).unwrap_or_default()
    }

    /// Writes the header at the beginning of a message that has room for it.
    pub fn write(&self, message: &mut [u8]) {
        let written = self.write_to_prefix(message);
        debug_assert!(written.is_ok(), "a message has a header");
    }
}

impl Head {
    /// Reads the header of a request. `None` if `message` is too short.
    #[must_use]
    pub fn read(message: &[u8]) -> Option<Self> {
        Self::read_from_prefix(message).ok().map(|(head, _)| head)
    }
}
