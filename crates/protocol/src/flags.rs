//! Sets of flags, each with a type of its own.
//!
//! A set keeps bits that have no name here: a newer kernel may send them.

macro_rules! flags {
    ($(#[$doc:meta])* $set:ident: $number:ty { $($(#[$meaning:meta])* $name:ident = $bit:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $set($number);

        impl $set {
            $($(#[$meaning])* pub const $name: Self = Self($bit);)*

            /// The set with these bits.
            #[must_use]
            pub const fn from_bits(bits: $number) -> Self {
                Self(bits)
            }

            /// The bits.
            #[must_use]
            pub const fn bits(self) -> $number {
                self.0
            }

            /// Whether all flags of `other` are in the set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The flags of both sets.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }
    };
}

flags! {
    /// What a kernel can do, and what a server wants of it (`FUSE_INIT`).
    InitFlags: u64 {
        /// Several reads of one file at once.
        ASYNC_READ = 1;
        /// An open truncates by itself.
        ATOMIC_O_TRUNC = 1 << 3;
        /// The server knows `.` and `..`, so that NFS can export the mount.
        EXPORT_SUPPORT = 1 << 4;
        /// Writes of more than a page.
        BIG_WRITES = 1 << 5;
        /// The server applies the umask.
        DONT_MASK = 1 << 6;
        /// Listings with attributes.
        DO_READDIRPLUS = 1 << 13;
        /// Listings with attributes where a program looks at them.
        READDIRPLUS_AUTO = 1 << 14;
        /// Direct requests of one file at once.
        ASYNC_DIO = 1 << 15;
        /// The kernel keeps what is written for a while.
        WRITEBACK_CACHE = 1 << 16;
        /// Lookups and listings of one directory at once.
        PARALLEL_DIROPS = 1 << 18;
        /// The kernel checks access lists.
        POSIX_ACL = 1 << 20;
        /// [`InitOut::max_pages`](crate::InitOut::max_pages) counts.
        MAX_PAGES = 1 << 22;
        /// The kernel keeps targets of symbolic links.
        CACHE_SYMLINKS = 1 << 23;
        /// Directories are opened without a request.
        NO_OPENDIR_SUPPORT = 1 << 24;
        /// Only the server has the kernel drop pages.
        EXPLICIT_INVAL_DATA = 1 << 25;
        /// The server takes set-id bits and capabilities away.
        HANDLE_KILLPRIV_V2 = 1 << 28;
        /// There are flags above bit 31.
        INIT_EXT = 1 << 30;
        /// Files with direct I/O may be mapped.
        DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Requests come by io_uring.
        OVER_IO_URING = 1 << 41;
    }
}

flags! {
    /// How the kernel shall treat an open file (`FOPEN_*`).
    OpenFlags: u32 {
        /// Requests go past the kernel's cache.
        DIRECT_IO = 1;
        /// What the cache has of the file stays valid.
        KEEP_CACHE = 1 << 1;
        /// Several direct writes at once.
        PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}

flags! {
    /// What a write says of itself (`FUSE_WRITE_*`).
    WriteFlags: u32 {
        /// It comes from the kernel's cache.
        CACHE = 1;
        /// It names an owner of locks: it is direct.
        LOCKOWNER = 1 << 1;
        /// Its caller lacks `CAP_FSETID`.
        KILL_SUIDGID = 1 << 2;
    }
}

flags! {
    /// How a name moves (`RENAME_*`).
    RenameFlags: u32 {
        /// The new name must not be there.
        NOREPLACE = 1;
        /// The two names change places.
        EXCHANGE = 1 << 1;
        /// A whiteout takes the old name.
        WHITEOUT = 1 << 2;
    }
}

flags! {
    /// Which fields of a [`SetattrIn`](crate::SetattrIn) count (`FATTR_*`).
    SetattrFlags: u32 {
        /// The mode.
        MODE = 1;
        /// The owner.
        UID = 1 << 1;
        /// The group.
        GID = 1 << 2;
        /// The length.
        SIZE = 1 << 3;
        /// The time of access.
        ATIME = 1 << 4;
        /// The time of modification.
        MTIME = 1 << 5;
        /// It is asked on behalf of an open file.
        HANDLE = 1 << 6;
        /// The time of access is that of the request.
        ATIME_NOW = 1 << 7;
        /// The time of modification is that of the request.
        MTIME_NOW = 1 << 8;
        /// The time of change.
        CTIME = 1 << 10;
    }
}

/// In the flags of a GETATTR or a STATX: it is asked on behalf of an open file.
pub const GETATTR_HANDLE: u32 = 1;
/// In the flags of a READ: it names an owner of locks, so it is direct.
pub const READ_LOCKOWNER: u32 = 1 << 1;
