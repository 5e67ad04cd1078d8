//! Features of the format that can be chosen for a new volume.

use buttress_format::{BlockGroupFlags, CompatRo, Incompat};

use super::error::MakeError;

/// One feature, with the name that btrfs-progs uses.
#[derive(Clone, Copy, Debug)]
pub struct Feature {
    /// As written after `--features`.
    pub name: &'static str,
    /// Whether a new volume has the feature by default.
    pub default: bool,
    /// The effect of the feature, in one line.
    pub about: &'static str,
}

/// Every switch that can be chosen.
pub const FEATURES: &[Feature] = &[
    Feature { name: "extref", default: true, about: "up to 65536 hard links in one directory" },
    Feature { name: "skinny-metadata", default: true, about: "smaller records of tree nodes" },
    Feature { name: "no-holes", default: true, about: "holes in files take no items" },
    Feature { name: "free-space-tree", default: true, about: "free space kept in a tree" },
    Feature { name: "block-group-tree", default: true, about: "block groups in their own tree" },
    Feature { name: "raid-stripe-tree", default: false, about: "places of data kept in a tree" },
];

/// The features that are on in a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// `extref`.
    pub extref: bool,
    /// `skinny-metadata`.
    pub skinny_metadata: bool,
    /// `no-holes`.
    pub no_holes: bool,
    /// `free-space-tree`.
    pub free_space_tree: bool,
    /// `block-group-tree`.
    pub block_group_tree: bool,
    /// `raid-stripe-tree`.
    pub raid_stripe_tree: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            extref: true,
            skinny_metadata: true,
            no_holes: true,
            free_space_tree: true,
            block_group_tree: true,
            raid_stripe_tree: false,
        }
    }
}

impl Features {
    /// Parses a list in the form of btrfs-progs, separated by commas. A name switches a feature on,
    /// and `^name` switches it off. Other features keep their defaults.
    ///
    /// # Errors
    ///
    /// [`MakeError::UnknownFeature`] lists the known names. [`MakeError::FeatureNeeds`] if a
    /// feature is on without another feature that it needs.
    pub fn parse(list: &str) -> Result<Self, MakeError> {
        let mut features = Self::default();
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, on) = match word.strip_prefix('^') {
                Some(name) => (name, false),
                None => (word, true),
            };
            *features.switch(name)? = on;
        }
        features.check()?;
        Ok(features)
    }

    fn switch(&mut self, name: &str) -> Result<&mut bool, MakeError> {
        match name {
            "extref" => Ok(&mut self.extref),
            "skinny-metadata" => Ok(&mut self.skinny_metadata),
            "no-holes" => Ok(&mut self.no_holes),
            "free-space-tree" => Ok(&mut self.free_space_tree),
            "block-group-tree" => Ok(&mut self.block_group_tree),
            "raid-stripe-tree" => Ok(&mut self.raid_stripe_tree),
            _ => Err(MakeError::UnknownFeature {
                name: name.to_owned(),
                known: FEATURES.iter().map(|f| f.name).collect::<Vec<_>>().join(" "),
            }),
        }
    }

    /// Refuses a feature without another feature that it needs, because Linux refuses such a
    /// volume.
    ///
    /// # Errors
    ///
    /// [`MakeError::FeatureNeeds`] names both features.
    pub fn check(self) -> Result<(), MakeError> {
        if self.block_group_tree && !self.free_space_tree {
            return Err(MakeError::FeatureNeeds {
                feature: "block-group-tree",
                needs: "free-space-tree",
            });
        }
        if self.block_group_tree && !self.no_holes {
            return Err(MakeError::FeatureNeeds { feature: "block-group-tree", needs: "no-holes" });
        }
        Ok(())
    }

    /// The superblock's incompatible bits.
    pub(super) fn incompat(
        self,
        nodesize: u32,
        mixed: bool,
        profiles: BlockGroupFlags,
    ) -> Incompat {
        let mut bits = Incompat::MIXED_BACKREF.0;
        // Linux sets this flag on its first mount when a node is larger than a page of 4 KiB.
        if nodesize > 4096 {
            bits |= Incompat::BIG_METADATA.0;
        }
        if mixed {
            bits |= Incompat::MIXED_GROUPS.0;
        }
        let raid1c34 = BlockGroupFlags::RAID1C3.0 | BlockGroupFlags::RAID1C4.0;
        if profiles.0 & raid1c34 != 0 {
            bits |= Incompat::RAID1C34.0;
        }
        if profiles.0 & (BlockGroupFlags::RAID5.0 | BlockGroupFlags::RAID6.0) != 0 {
            bits |= Incompat::RAID56.0;
        }
        if self.extref {
            bits |= Incompat::EXTENDED_IREF.0;
        }
        if self.skinny_metadata {
            bits |= Incompat::SKINNY_METADATA.0;
        }
        if self.no_holes {
            bits |= Incompat::NO_HOLES.0;
        }
        if self.raid_stripe_tree {
            bits |= Incompat::RAID_STRIPE_TREE.0;
        }
        Incompat(bits)
    }

    /// The superblock's read-only-compatible bits: a program that does not know one of them must
    /// not write.
    pub(super) fn compat_ro(self) -> CompatRo {
        let mut bits = 0;
        if self.free_space_tree {
            bits |= CompatRo::FREE_SPACE_TREE.0 | CompatRo::FREE_SPACE_TREE_VALID.0;
        }
        if self.block_group_tree {
            bits |= CompatRo::BLOCK_GROUP_TREE.0;
        }
        CompatRo(bits)
    }
}
