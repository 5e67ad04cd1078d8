//! The attributes of an inode.

use buttress_format::{Ino, Timespec, TreeId};

/// One inode of a volume: inode numbers are unique within a subvolume only.
///
/// Plain data: two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId {
    /// The subvolume's tree.
    pub tree: TreeId,
    /// The number within the subvolume.
    pub ino: Ino,
}

/// The type bits and the permission bits of a mode, as POSIX numbers them.
pub mod mode {
    /// Mask of the type bits.
    pub const TYPE: u32 = 0o170_000;
    /// A socket.
    pub const SOCKET: u32 = 0o140_000;
    /// A symbolic link.
    pub const SYMLINK: u32 = 0o120_000;
    /// A regular file.
    pub const REGULAR: u32 = 0o100_000;
    /// A block device.
    pub const BLOCK: u32 = 0o060_000;
    /// A directory.
    pub const DIRECTORY: u32 = 0o040_000;
    /// A character device.
    pub const CHARACTER: u32 = 0o020_000;
    /// A named pipe.
    pub const FIFO: u32 = 0o010_000;
    /// Permission bits with set-id and sticky bits.
    pub const PERMISSIONS: u32 = 0o7777;
    /// On a directory: new entries inherit its group. On a file: the program runs with the file's
    /// group.
    pub const SETGID: u32 = 0o2000;
    /// The program runs as the file's owner.
    pub const SETUID: u32 = 0o4000;
}

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    Character,
    /// A block device.
    Block,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl FileKind {
    /// Reads the type bits of a mode. `None` for bits without a meaning.
    #[must_use]
    pub const fn from_mode(bits: u32) -> Option<Self> {
        Some(match bits & mode::TYPE {
            mode::REGULAR => Self::Regular,
            mode::DIRECTORY => Self::Directory,
            mode::SYMLINK => Self::Symlink,
            mode::CHARACTER => Self::Character,
            mode::BLOCK => Self::Block,
            mode::FIFO => Self::Fifo,
            mode::SOCKET => Self::Socket,
            _ => return None,
        })
    }

    /// The type bits of a mode.
    #[must_use]
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Regular => mode::REGULAR,
            Self::Directory => mode::DIRECTORY,
            Self::Symlink => mode::SYMLINK,
            Self::Character => mode::CHARACTER,
            Self::Block => mode::BLOCK,
            Self::Fifo => mode::FIFO,
            Self::Socket => mode::SOCKET,
        }
    }
}

/// A consistent copy of an inode's attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The inode's identity.
    pub id: InodeId,
    /// The inode's type.
    pub kind: FileKind,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names; one for any directory.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, in the format's encoding (major << 20 | minor).
    pub rdev: u64,
    /// Length in bytes.
    pub size: u64,
    /// The preferred size of reads and writes, in bytes: a sector.
    pub block_size: u32,
    /// Allocated space in units of 512 bytes, dirty data included.
    pub blocks: u64,
    /// Last read.
    pub atime: Timespec,
    /// Last change of content.
    pub mtime: Timespec,
    /// Last change of the inode.
    pub ctime: Timespec,
    /// Creation.
    pub otime: Timespec,
    /// The transaction that created the inode. This generation distinguishes inodes that had the
    /// same number at different times.
    pub generation: u64,
    /// Inode flags (`buttress_format::InodeFlags`).
    pub flags: u64,
}

/// Attributes to change. `None` leaves an attribute unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits; type bits are ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length. A smaller length cuts the file, a larger length adds a hole.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<Timespec>,
    /// Last change of content.
    pub mtime: Option<Timespec>,
    /// Last change of the inode. If it is `None` and another attribute is set, the present time is
    /// used.
    pub ctime: Option<Timespec>,
    /// Inode flags as the format numbers them.
    pub flags: Option<u64>,
}
