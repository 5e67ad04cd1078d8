//! Quotas: groups of subvolumes, and the space that they use.
//!
//! # On disk
//!
//! ```text
//! (0, QGROUP_STATUS, 0)      version 8 | generation 8 | flags 8 | rescan 8 [ enabled in 8 ]
//! (0, QGROUP_INFO, group)    generation 8 | referenced 8 | compressed 8 | exclusive 8 | compressed 8
//! (0, QGROUP_LIMIT, group)   flags 8 | referenced 8 | exclusive 8 | reserved 8 | reserved 8
//! (group, QGROUP_RELATION, group)  empty; one item in each direction
//! ```

use std::fmt;

use crate::{
    Generation, Key, Kind, Result, TreeId,
    bytes::{Reader, Writer},
};

/// A quota group. The upper 16 bits are its level, and the other bits its number. At level 0 the
/// number is the number of a subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuotaGroup(pub u64);

impl QuotaGroup {
    /// The group of one subvolume.
    #[must_use]
    pub fn of(tree: TreeId) -> Self {
        Self(tree.0)
    }

    /// The level: 0 for subvolumes. Groups are members of groups of higher levels.
    #[must_use]
    pub fn level(self) -> u64 {
        self.0 >> 48
    }

    /// Key of the item with the group's counts.
    #[must_use]
    pub fn info_key(self) -> Key {
        Key::new(0, Kind::QGROUP_INFO, self.0)
    }

    /// Key of the item with the group's limits.
    #[must_use]
    pub fn limit_key(self) -> Key {
        Key::new(0, Kind::QGROUP_LIMIT, self.0)
    }

    /// The keys of the two items that record a membership between this group and another.
    #[must_use]
    pub fn relation_keys(self, other: Self) -> [Key; 2] {
        [
            Key::new(self.0, Kind::QGROUP_RELATION, other.0),
            Key::new(other.0, Kind::QGROUP_RELATION, self.0),
        ]
    }
}

impl fmt::Display for QuotaGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.level(), self.0 & ((1 << 48) - 1))
    }
}

/// The state of quotas on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaStatus {
    /// Version of the quota items: 1.
    pub version: u64,
    /// Transaction that wrote the counts last.
    pub generation: Generation,
    /// Flags, from the constants of this type.
    pub flags: u64,
    /// Address up to which a rescan has counted.
    pub rescan: u64,
    /// With simple quotas: extents that are older than this transaction are not counted.
    pub enabled: Option<Generation>,
}

impl QuotaStatus {
    /// The key of the item.
    pub const KEY: Key = Key::new(0, Kind::QGROUP_STATUS, 0);
    /// The only version.
    pub const VERSION: u64 = 1;
    /// Quotas are on.
    pub const ON: u64 = 1;
    /// A rescan is counting all extents again.
    pub const RESCAN: u64 = 2;
    /// The counts are wrong until a rescan has ended.
    pub const INCONSISTENT: u64 = 4;
    /// An extent counts for the subvolume that created it, as long as the extent lives (simple
    /// quotas).
    pub const SIMPLE: u64 = 8;

    /// Reads an item.
    ///
    /// # Errors
    ///
    /// If the item is cut short, or has simple quotas without the transaction that enabled them.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("quota status", bytes);
        let mut status = Self {
            version: r.u64()?,
            generation: Generation(r.u64()?),
            flags: r.u64()?,
            rescan: r.u64()?,
            enabled: None,
        };
        if r.left() > 0 || status.flags & Self::SIMPLE != 0 {
            status.enabled = Some(Generation(r.u64()?));
        }
        r.end()?;
        Ok(status)
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(40);
        w.u64(self.version).u64(self.generation.0).u64(self.flags).u64(self.rescan);
        if let Some(enabled) = self.enabled {
            w.u64(enabled.0);
        }
        w.0
    }

    /// Whether quotas are on and count every extent for each of its users.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.flags & (Self::ON | Self::SIMPLE) == Self::ON
    }

    /// Whether full quotas are on and their counts are those of commit `last`. Linux treats older
    /// counts as outdated, too: a system that knows no quotas may have written the volume.
    #[must_use]
    pub fn is_counted(&self, last: Generation) -> bool {
        let odd = self.flags & (Self::RESCAN | Self::INCONSISTENT);
        self.is_full() && odd == 0 && self.generation >= last
    }

    /// Whether quotas are on and count every extent for the subvolume that created it.
    #[must_use]
    pub fn is_simple(&self) -> bool {
        self.flags & (Self::ON | Self::SIMPLE) == Self::ON | Self::SIMPLE
    }
}

/// The space that the members of a group use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QuotaInfo {
    /// Transaction that wrote the counts.
    pub generation: Generation,
    /// Bytes that the members use, exclusive or shared.
    pub referenced: u64,
    /// Equal to `referenced`, because the compressed size is not counted separately.
    pub referenced_compressed: u64,
    /// Bytes that no other group uses.
    pub exclusive: u64,
    /// Equal to `exclusive`.
    pub exclusive_compressed: u64,
}

impl QuotaInfo {
    /// Reads an item.
    ///
    /// # Errors
    ///
    /// If the item has the wrong length.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("quota group", bytes);
        let info = Self {
            generation: Generation(r.u64()?),
            referenced: r.u64()?,
            referenced_compressed: r.u64()?,
            exclusive: r.u64()?,
            exclusive_compressed: r.u64()?,
        };
        r.end()?;
        Ok(info)
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(40);
        w.u64(self.generation.0).u64(self.referenced).u64(self.referenced_compressed);
        w.u64(self.exclusive).u64(self.exclusive_compressed);
        w.0
    }

    /// Whether all counts are zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.referenced | self.referenced_compressed | self.exclusive | self.exclusive_compressed
            == 0
    }
}

/// The limits of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QuotaLimit {
    /// Flags that say which limits apply, from the constants of this type. Unknown flags are kept.
    pub flags: u64,
    /// The most that the members may use, in bytes.
    pub referenced: u64,
    /// The most bytes that the members may use and no other group uses.
    pub exclusive: u64,
    /// Never used by Linux.
    pub reserved_referenced: u64,
    /// Never used by Linux.
    pub reserved_exclusive: u64,
}

impl QuotaLimit {
    /// The limit [`QuotaLimit::referenced`] applies.
    pub const REFERENCED: u64 = 1;
    /// The limit [`QuotaLimit::exclusive`] applies.
    pub const EXCLUSIVE: u64 = 2;

    /// Reads an item.
    ///
    /// # Errors
    ///
    /// If the item has the wrong length.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("quota limit", bytes);
        let limit = Self {
            flags: r.u64()?,
            referenced: r.u64()?,
            exclusive: r.u64()?,
            reserved_referenced: r.u64()?,
            reserved_exclusive: r.u64()?,
        };
        r.end()?;
        Ok(limit)
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(40);
        w.u64(self.flags).u64(self.referenced).u64(self.exclusive);
        w.u64(self.reserved_referenced).u64(self.reserved_exclusive);
        w.0
    }

    /// The most that the members may use, if there is such a limit.
    #[must_use]
    pub fn max_referenced(&self) -> Option<u64> {
        (self.flags & Self::REFERENCED != 0).then_some(self.referenced)
    }

    /// The most bytes that the members may use and no other group uses, if there is such a limit.
    #[must_use]
    pub fn max_exclusive(&self) -> Option<u64> {
        (self.flags & Self::EXCLUSIVE != 0).then_some(self.exclusive)
    }
}
