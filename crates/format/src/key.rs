//! Keys, by which the items of a tree are sorted.

use std::fmt;

use crate::{Error, Result, objectid_name};

/// The kind of an item; middle part of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Kind(pub u8);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        #[allow(missing_docs, reason = "the names are the format's own")]
        impl Kind {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// The name of the kind in the output of `btrfs inspect-internal dump-tree`.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    INODE_ITEM = 1;
    INODE_REF = 12;
    INODE_EXTREF = 13;
    XATTR_ITEM = 24;
    VERITY_DESC_ITEM = 36;
    VERITY_MERKLE_ITEM = 37;
    ORPHAN_ITEM = 48;
    DIR_LOG_ITEM = 60;
    DIR_LOG_INDEX = 72;
    DIR_ITEM = 84;
    DIR_INDEX = 96;
    EXTENT_DATA = 108;
    EXTENT_CSUM = 128;
    ROOT_ITEM = 132;
    ROOT_BACKREF = 144;
    ROOT_REF = 156;
    EXTENT_ITEM = 168;
    METADATA_ITEM = 169;
    EXTENT_OWNER_REF = 172;
    TREE_BLOCK_REF = 176;
    EXTENT_DATA_REF = 178;
    SHARED_BLOCK_REF = 182;
    SHARED_DATA_REF = 184;
    BLOCK_GROUP_ITEM = 192;
    FREE_SPACE_INFO = 198;
    FREE_SPACE_EXTENT = 199;
    FREE_SPACE_BITMAP = 200;
    DEV_EXTENT = 204;
    DEV_ITEM = 216;
    CHUNK_ITEM = 228;
    RAID_STRIPE = 230;
    QGROUP_STATUS = 240;
    QGROUP_INFO = 242;
    QGROUP_LIMIT = 244;
    QGROUP_RELATION = 246;
    TEMPORARY_ITEM = 248;
    PERSISTENT_ITEM = 249;
    DEV_REPLACE = 250;
    UUID_KEY_SUBVOL = 251;
    UUID_KEY_RECEIVED_SUBVOL = 252;
    STRING_ITEM = 253;
}

/// The key of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key {
    /// The object that the item belongs to.
    pub objectid: u64,
    /// The kind of information about the object.
    pub kind: Kind,
    /// An offset within the object; its meaning depends on the kind.
    pub offset: u64,
}

impl Key {
    /// Bytes on disk.
    pub const LEN: usize = 17;
    /// The smallest key.
    pub const MIN: Self = Self { objectid: 0, kind: Kind(0), offset: 0 };
    /// The largest key.
    pub const MAX: Self = Self { objectid: u64::MAX, kind: Kind(u8::MAX), offset: u64::MAX };

    /// A key from its parts.
    #[must_use]
    pub const fn new(objectid: u64, kind: Kind, offset: u64) -> Self {
        Self { objectid, kind, offset }
    }

    /// The smallest greater key.
    #[must_use]
    pub fn next(&self) -> Option<Self> {
        if let Some(offset) = self.offset.checked_add(1) {
            return Some(Self { offset, ..*self });
        }
        if let Some(kind) = self.kind.0.checked_add(1) {
            return Some(Self { kind: Kind(kind), offset: 0, ..*self });
        }
        let objectid = self.objectid.checked_add(1)?;
        Some(Self { objectid, kind: Kind(0), offset: 0 })
    }

    /// Reads a key from the front of `bytes`.
    ///
    /// # Errors
    ///
    /// When there are fewer than 17 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let Some(b) = bytes.first_chunk::<17>() else {
            return Err(Error::Short { what: "key", needed: 17, found: bytes.len() });
        };
        let [o0, o1, o2, o3, o4, o5, o6, o7, kind, f0, f1, f2, f3, f4, f5, f6, f7] = *b;
        Ok(Self {
            objectid: u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
            kind: Kind(kind),
            offset: u64::from_le_bytes([f0, f1, f2, f3, f4, f5, f6, f7]),
        })
    }

    /// The key's 17 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 17] {
        let mut out = [0; 17];
        out[..8].copy_from_slice(&self.objectid.to_le_bytes());
        out[8] = self.kind.0;
        out[9..].copy_from_slice(&self.offset.to_le_bytes());
        out
    }

    /// Writes the key to the front of `into`.
    ///
    /// # Panics
    ///
    /// When there is no room for 17 bytes: the caller's bug.
    pub fn write_to(&self, into: &mut [u8]) {
        into[..Self::LEN].copy_from_slice(&self.to_bytes());
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} ", objectid_name(self.objectid, self.kind))?;
        match self.kind.name() {
            Some(name) => write!(f, "{name} ")?,
            None if self.kind.0 == 0 && self.objectid == crate::ids::FREE_SPACE_V1 => {
                f.write_str("UNTYPED ")?;
            }
            None => write!(f, "UNKNOWN.{} ", self.kind.0)?,
        }
        if self.offset == u64::MAX { f.write_str("-1)") } else { write!(f, "{})", self.offset) }
    }
}
