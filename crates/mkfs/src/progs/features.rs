//! The features that `mkfs.btrfs` can give a volume, by their names.

use std::io::Write;

use buttress_fs::make::Features;

use crate::exit::{Exit, Failure, Result};
use crate::plan::Counting;

/// A feature, with the kernels that read it.
struct Known {
    name: &'static str,
    about: &'static str,
    kernels: &'static str,
    /// Whether the table of a new volume lists the feature as one that only writers must know.
    is_runtime: bool,
    is_default: bool,
}

const fn known(
    name: &'static str,
    about: &'static str,
    kernels: &'static str,
    (is_runtime, is_default): (bool, bool),
) -> Known {
    Known { name, about, kernels, is_runtime, is_default }
}

/// All features that can be chosen, in the order of their bits.
const KNOWN: [Known; 11] = [
    known("mixed-bg", "data and metadata share block groups", "2.6.37", (false, false)),
    known("extref", "up to 65536 hard links of a file in a directory", "3.7", (false, true)),
    known("raid56", "chunks with parity", "3.9", (false, false)),
    known("skinny-metadata", "smaller records of tree nodes", "3.10", (false, true)),
    known("no-holes", "holes in files take no items", "3.14", (false, true)),
    known("raid1c34", "mirrors with 3 or 4 copies", "5.5", (false, false)),
    known("raid-stripe-tree", "places of data kept in a tree", "6.7", (false, false)),
    known("quota", "counts of the space that subvolumes use", "3.4", (true, false)),
    known("squota", "counts of what each subvolume created", "6.7", (true, false)),
    known("free-space-tree", "free space kept in a tree", "4.5", (true, true)),
    known("block-group-tree", "block groups in their own tree", "6.1", (true, false)),
];

/// The features that a command line chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    is_on: [bool; KNOWN.len()],
}

impl Chosen {
    /// Reads lists of names, separated by commas.
    pub(super) fn parse<'a>(lists: impl Iterator<Item = &'a String>) -> Result<Self> {
        let mut is_on = KNOWN.map(|feature| feature.is_default);
        let words = lists.flat_map(|list| list.split(',')).filter(|word| !word.is_empty());
        for word in words {
            let (name, on) = match word.strip_prefix('^') {
                Some(name) => (name, false),
                None => (word, true),
            };
            match KNOWN.iter().position(|feature| feature.name == name) {
                Some(at) => is_on[at] = on,
                None => {
                    let what = format!("unrecognized filesystem feature '{word}'");
                    return Err(Failure::new(Exit::Usage, what));
                }
            }
        }
        Ok(Self { is_on })
    }

    fn has(&self, name: &str) -> bool {
        KNOWN.iter().zip(self.is_on).any(|(feature, is_on)| is_on && feature.name == name)
    }

    /// Whether data and metadata share block groups.
    pub(super) fn mixed(&self) -> bool {
        self.has("mixed-bg")
    }

    /// Whether quotas are on from the beginning, and of which kind.
    pub(super) fn counting(&self) -> Option<Counting> {
        // Simple quotas need no count of a volume that exists, so they win.
        let simple = self.has("squota").then_some(Counting::Simple);
        simple.or(self.has("quota").then_some(Counting::Full))
    }

    /// The features of the new volume's format.
    pub(super) fn features(&self) -> Features {
        Features {
            extref: self.has("extref"),
            skinny_metadata: self.has("skinny-metadata"),
            no_holes: self.has("no-holes"),
            free_space_tree: self.has("free-space-tree"),
            block_group_tree: self.has("block-group-tree"),
            raid_stripe_tree: self.has("raid-stripe-tree"),
        }
    }

    /// The names of the features that the volume has, of one of the two kinds. `implied` are those
    /// that follow from other options.
    pub(super) fn names(&self, is_runtime: bool, implied: &[&str]) -> String {
        let is_hidden = |name| name == "quota" && self.counting() == Some(Counting::Simple);
        let has = |feature: &&Known| {
            let is_on = self.has(feature.name) || implied.contains(&feature.name);
            feature.is_runtime == is_runtime && is_on && !is_hidden(feature.name)
        };
        let names: Vec<&str> = KNOWN.iter().filter(has).map(|feature| feature.name).collect();
        names.join(", ")
    }
}

/// Prints all features on standard error, as btrfs-progs do.
pub(super) fn list() {
    let mut lines = vec!["Filesystem features available:".to_owned()];
    lines.extend(KNOWN.iter().map(|feature| {
        let default = if feature.is_default { ", default" } else { "" };
        format!("{:<20}- {} (compat={}{default})", feature.name, feature.about, feature.kernels)
    }));
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "{}", lines.join("\n"));
}
