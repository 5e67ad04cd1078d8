//! Feature flags: what a volume requires of programs that read or write it.

macro_rules! features {
    ($(#[$doc:meta])* $name:ident { $($flag:ident = $bit:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub u64);

        #[allow(missing_docs, reason = "the names are the format's own")]
        impl $name {
            $(pub const $flag: Self = Self($bit);)*

            /// Every flag with a name, and the name that mkfs and the kernel use.
            pub const NAMED: &'static [(Self, &'static str)] = &[$((Self::$flag, $text),)*];

            /// Whether all flags of `other` are set.
            #[must_use]
            pub fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The flags, together with those of `other`.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The flags, without those of `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Names of the set flags. A bit without a name gets a generated name.
            #[must_use]
            pub fn names(self) -> Vec<String> {
                (0..64)
                    .map(|bit| 1_u64 << bit)
                    .filter(|bit| self.0 & bit != 0)
                    .map(|bit| {
                        Self::NAMED
                            .iter()
                            .find(|(flag, _)| flag.0 == bit)
                            .map_or_else(|| format!("unknown flag {bit:#x}"), |(_, n)| (*n).into())
                    })
                    .collect()
            }
        }
    };
}

features! {
    /// Features that a program must know to read the volume.
    Incompat {
        MIXED_BACKREF = 0x1, "mixed-backref";
        DEFAULT_SUBVOL = 0x2, "default-subvol";
        MIXED_GROUPS = 0x4, "mixed-bg";
        COMPRESS_LZO = 0x8, "compress-lzo";
        COMPRESS_ZSTD = 0x10, "compress-zstd";
        BIG_METADATA = 0x20, "big-metadata";
        EXTENDED_IREF = 0x40, "extref";
        RAID56 = 0x80, "raid56";
        SKINNY_METADATA = 0x100, "skinny-metadata";
        NO_HOLES = 0x200, "no-holes";
        METADATA_UUID = 0x400, "metadata-uuid";
        RAID1C34 = 0x800, "raid1c34";
        ZONED = 0x1000, "zoned";
        EXTENT_TREE_V2 = 0x2000, "extent-tree-v2";
        RAID_STRIPE_TREE = 0x4000, "raid-stripe-tree";
        SIMPLE_QUOTA = 0x10000, "squota";
        REMAP_TREE = 0x20000, "remap-tree";
    }
}

features! {
    /// Features that a program must know to write the volume. Other programs may still read it.
    CompatRo {
        FREE_SPACE_TREE = 0x1, "free-space-tree";
        FREE_SPACE_TREE_VALID = 0x2, "free-space-tree-valid";
        VERITY = 0x4, "verity";
        BLOCK_GROUP_TREE = 0x8, "block-group-tree";
    }
}

impl Incompat {
    /// The features that this program can read.
    pub const READABLE: Self = Self(
        Self::MIXED_BACKREF.0
            | Self::DEFAULT_SUBVOL.0
            | Self::MIXED_GROUPS.0
            | Self::COMPRESS_LZO.0
            | Self::COMPRESS_ZSTD.0
            | Self::BIG_METADATA.0
            | Self::EXTENDED_IREF.0
            | Self::RAID56.0
            | Self::SKINNY_METADATA.0
            | Self::NO_HOLES.0
            | Self::METADATA_UUID.0
            | Self::RAID1C34.0
            | Self::RAID_STRIPE_TREE.0
            | Self::SIMPLE_QUOTA.0,
    );
    /// The features that this program can write. With RAID56, some block groups may still be
    /// read-only.
    pub const WRITABLE: Self = Self::READABLE;
}

impl CompatRo {
    /// The features that this program keeps up to date while it writes.
    pub const WRITABLE: Self = Self(
        Self::FREE_SPACE_TREE.0
            | Self::FREE_SPACE_TREE_VALID.0
            | Self::VERITY.0
            | Self::BLOCK_GROUP_TREE.0,
    );
}
