//! The three kinds of space, each with groups and an account of its own.

use std::fmt;

use buttress_format::BlockGroupFlags;

/// The kind of content of a block group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpaceKind {
    /// Bytes of files.
    Data,
    /// Nodes of all trees except the chunk tree.
    Metadata,
    /// Nodes of the chunk tree, which must be readable before any other chunk is known.
    System,
}

impl SpaceKind {
    /// All kinds, data first.
    pub const ALL: [Self; 3] = [Self::Data, Self::Metadata, Self::System];

    /// The kind that `flags` name; `None` when they name no kind, or several kinds. Groups that
    /// hold data and metadata mixed count as metadata: see [`crate::Space::mixed`].
    #[must_use]
    pub fn from_flags(flags: BlockGroupFlags) -> Option<Self> {
        const DATA: u64 = BlockGroupFlags::DATA.0;
        const METADATA: u64 = BlockGroupFlags::METADATA.0;
        const SYSTEM: u64 = BlockGroupFlags::SYSTEM.0;
        const MIXED: u64 = DATA | METADATA;
        match flags.0 & (DATA | METADATA | SYSTEM) {
            DATA => Some(Self::Data),
            METADATA | MIXED => Some(Self::Metadata),
            SYSTEM => Some(Self::System),
            _ => None,
        }
    }

    /// The index in arrays that have one element for each kind.
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Data => 0,
            Self::Metadata => 1,
            Self::System => 2,
        }
    }
}

impl fmt::Display for SpaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Data => "data",
            Self::Metadata => "metadata",
            Self::System => "system",
        })
    }
}
