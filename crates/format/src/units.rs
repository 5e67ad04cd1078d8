//! A type for every kind of number, so that the compiler finds swapped numbers.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

unit!(
    /// A byte address in the volume ("bytenr" in the format).
    Logical
);
unit!(
    /// The transaction that wrote an item or a node ("transid").
    Generation
);
unit!(
    /// A file's number within its subvolume.
    Ino
);
unit!(
    /// A device's number within its volume.
    DeviceId
);

/// A tree's number: a fixed number, or that of a subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TreeId(pub u64);

impl Logical {
    /// The address `bytes` further; `None` past the end of the address space.
    #[must_use]
    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }

    /// The address after `len` bytes that start at this address; at most the end of the address
    /// space.
    #[must_use]
    pub fn end(self, len: u64) -> Self {
        Self(self.0.saturating_add(len))
    }

    /// Bytes from `from` to this address; zero if `from` is greater.
    #[must_use]
    pub fn distance(self, from: Self) -> u64 {
        self.0.saturating_sub(from.0)
    }
}

impl Generation {
    /// The transaction after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl Ino {
    /// The first number that files have; a subvolume's root directory.
    pub const FIRST_FREE: Self = Self(256);
    /// A subvolume's root directory.
    pub const ROOT_DIR: Self = Self(256);
    /// The last number that files can have.
    pub const LAST_FREE: Self = Self(-256_i64 as u64);
}

impl TreeId {
    /// The tree that has the roots of all other trees.
    pub const ROOT: Self = Self(1);
    /// Extents and their references.
    pub const EXTENT: Self = Self(2);
    /// The mapping of logical space to devices.
    pub const CHUNK: Self = Self(3);
    /// The used parts of devices.
    pub const DEV: Self = Self(4);
    /// The top-level subvolume.
    pub const FS: Self = Self(5);
    /// Objectid of the directory in the root tree that names the default subvolume.
    pub const ROOT_DIR: Self = Self(6);
    /// Checksums of data.
    pub const CSUM: Self = Self(7);
    /// Quotas.
    pub const QUOTA: Self = Self(8);
    /// Subvolumes by uuid.
    pub const UUID: Self = Self(9);
    /// Free space, version 2.
    pub const FREE_SPACE: Self = Self(10);
    /// Block group items, on volumes where they have a tree of their own.
    pub const BLOCK_GROUP: Self = Self(11);
    /// Where the copies of data lie, on volumes with a stripe tree.
    pub const RAID_STRIPE: Self = Self(12);
    /// Logs of fsync.
    pub const TREE_LOG: Self = Self(-6_i64 as u64);
    /// Trees of a balance in progress.
    pub const TREE_RELOC: Self = Self(-8_i64 as u64);
    /// Data of a balance in progress.
    pub const DATA_RELOC: Self = Self(-9_i64 as u64);

    /// Whether this is the tree of a subvolume: the top-level subvolume, or one with a number from
    /// 256 on.
    #[must_use]
    pub fn is_fs_tree(self) -> bool {
        self == Self::FS || (self.0 >= Ino::FIRST_FREE.0 && self.0 <= Ino::LAST_FREE.0)
    }
}

impl fmt::Display for TreeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::ROOT => "ROOT_TREE",
            Self::EXTENT => "EXTENT_TREE",
            Self::CHUNK => "CHUNK_TREE",
            Self::DEV => "DEV_TREE",
            Self::FS => "FS_TREE",
            Self::ROOT_DIR => "ROOT_TREE_DIR",
            Self::CSUM => "CSUM_TREE",
            Self::QUOTA => "QUOTA_TREE",
            Self::UUID => "UUID_TREE",
            Self::FREE_SPACE => "FREE_SPACE_TREE",
            Self::BLOCK_GROUP => "BLOCK_GROUP_TREE",
            Self::RAID_STRIPE => "RAID_STRIPE_TREE",
            Self::TREE_LOG => "TREE_LOG",
            Self::TREE_RELOC => "TREE_RELOC",
            Self::DATA_RELOC => "DATA_RELOC_TREE",
            Self(other) => return other.fmt(f),
        };
        f.pad(name)
    }
}

/// A half-open range of logical space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The first byte of the range.
    pub start: Logical,
    /// The length of the range in bytes.
    pub len: u64,
}

impl Extent {
    /// A range from its start and length.
    #[must_use]
    pub fn new(start: Logical, len: u64) -> Self {
        Self { start, len }
    }

    /// The address after the range.
    #[must_use]
    pub fn end(&self) -> Logical {
        self.start.end(self.len)
    }

    /// Whether an address lies in the range.
    #[must_use]
    pub fn contains(&self, at: Logical) -> bool {
        at >= self.start && at < self.end()
    }

    /// Whether both ranges share a byte.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.start, self.len)
    }
}
