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
    /// Features that a kernel offers and a server requests (`FUSE_INIT`).
    InitFlags: u64 {
        /// The kernel may send several reads of one file at the same time.
        ASYNC_READ = 1;
        /// An open with `O_TRUNC` truncates the file without a second request.
        ATOMIC_O_TRUNC = 1 << 3;
        /// The server can look up `.` and `..`, so that NFS can export the mount.
        EXPORT_SUPPORT = 1 << 4;
        /// Writes of more than a page.
        BIG_WRITES = 1 << 5;
        /// The server applies the umask.
        DONT_MASK = 1 << 6;
        /// Listings with attributes.
        DO_READDIRPLUS = 1 << 13;
        /// The kernel chooses listings with attributes if a program uses the attributes.
        READDIRPLUS_AUTO = 1 << 14;
        /// The kernel may send several direct requests for one file at the same time.
        ASYNC_DIO = 1 << 15;
        /// The kernel caches written data for a while.
        WRITEBACK_CACHE = 1 << 16;
        /// The kernel may send several lookups and listings of one directory at the same time.
        PARALLEL_DIROPS = 1 << 18;
        /// The kernel checks access lists.
        POSIX_ACL = 1 << 20;
        /// [`InitOut::max_pages`](crate::InitOut::max_pages) is valid.
        MAX_PAGES = 1 << 22;
        /// The kernel caches targets of symbolic links.
        CACHE_SYMLINKS = 1 << 23;
        /// Directories are opened without a request.
        NO_OPENDIR_SUPPORT = 1 << 24;
        /// The kernel drops cached pages only when the server tells it to.
        EXPLICIT_INVAL_DATA = 1 << 25;
        /// The server removes set-id bits and capabilities when a file is written or truncated.
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
        /// The cached pages of the file stay valid.
        KEEP_CACHE = 1 << 1;
        /// The kernel may send several direct writes at the same time.
        PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}

flags! {
    /// Flags of a write (`FUSE_WRITE_*`).
    WriteFlags: u32 {
        /// The write comes from the kernel's cache.
        CACHE = 1;
        /// The write names a lock owner. The kernel does this for direct writes only.
        LOCKOWNER = 1 << 1;
        /// The caller of the write lacks `CAP_FSETID`.
        KILL_SUIDGID = 1 << 2;
    }
}

flags! {
    /// Flags of a rename (`RENAME_*`).
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
    /// Which fields of a [`SetattrIn`](crate::SetattrIn) are valid (`FATTR_*`).
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
        /// The request comes from an open file.
        HANDLE = 1 << 6;
        /// The time of access is that of the request.
        ATIME_NOW = 1 << 7;
        /// The time of modification is that of the request.
        MTIME_NOW = 1 << 8;
        /// The time of change.
        CTIME = 1 << 10;
    }
}

/// Flag of a GETATTR or a STATX: the request comes from an open file.
pub const GETATTR_HANDLE: u32 = 1;
/// Flag of a READ: the read names a lock owner. The kernel does this for direct reads only.
pub const READ_LOCKOWNER: u32 = 1 << 1;
