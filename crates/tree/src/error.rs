//! Errors of reading and rebuilding trees.

use buttress_format::{Generation, Key, Logical, TreeId};

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a node is not the node that its parent points to, or not a node at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// Bit rot or a torn write.
    #[error("checksum does not match")]
    Checksum,
    /// Misdirected write or read.
    #[error("it says it lives at {0}")]
    Bytenr(Logical),
    /// The node belongs to another file system.
    #[error("it carries another filesystem's id")]
    Fsid,
    /// Lost write: the address holds an older or newer node.
    #[error("it has generation {found}, its parent says {expected}")]
    Generation {
        /// The generation in the node.
        found: Generation,
        /// The generation in the pointer.
        expected: Generation,
    },
    /// The node has another level than the pointer to it requires.
    #[error("it has level {found}, its parent says {expected}")]
    Level {
        /// The level in the node.
        found: u8,
        /// The level in the pointer.
        expected: u8,
    },
    /// More entries than fit.
    #[error("it claims {0} entries, more than fit")]
    Count(u32),
    /// An inner node without children leads nowhere.
    #[error("it is an inner node without children")]
    NoChildren,
    /// The keys are out of order at this slot, so a search could miss items.
    #[error("its keys are out of order at slot {0}")]
    Order(u32),
    /// An item's bytes lie outside the leaf or overlap the bytes of another item.
    #[error("item {0} lies outside its place")]
    ItemBounds(u32),
    /// A child pointer is zero or not a multiple of the sector size.
    #[error("child pointer {0} is impossible")]
    Child(u32),
    /// The first key differs from the key in the parent.
    #[error("its first key differs from its parent's")]
    FirstKey,
    /// The last key is not before the first key of the next node.
    #[error("its last key belongs to the next node")]
    LastKey,
}

/// A failure of this crate.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No mirror holds the node that the pointer names. Run the checker.
    #[error("tree node at {logical} (owner {owner}) is damaged: {why}")]
    Damaged {
        /// The address of the node.
        logical: Logical,
        /// Tree that was being read.
        owner: TreeId,
        /// The fault of the last copy that was tried.
        why: Mismatch,
    },
    /// The device below failed.
    #[error("cannot read or write tree nodes")]
    Volume(#[source] std::sync::Arc<buttress_volume::Error>),
    /// A tree that the volume must have is missing.
    #[error("the volume has no {0}")]
    NoTree(TreeId),
    /// An item does not parse.
    #[error("item {key} of {tree} is malformed")]
    Item {
        /// The tree.
        tree: TreeId,
        /// The item.
        key: Key,
        /// The fault of the item.
        #[source]
        source: buttress_format::Error,
    },
    /// An item is larger than a leaf: a caller's bug, refused before anything is written.
    #[error("item {key} of {len} bytes does not fit a leaf")]
    TooLarge {
        /// The item.
        key: Key,
        /// The length of its payload.
        len: usize,
    },
    /// Chunk items overlap or are otherwise impossible.
    #[error("the chunk tree is malformed: {0}")]
    Chunks(String),
    /// No space was left for a new node: the commit had reserved too little.
    #[error("no space for a tree node in the middle of a commit")]
    NoSpace,
    /// The layer above refused, with its reason.
    #[error("{0}")]
    Above(String),
}

impl From<buttress_volume::Error> for Error {
    fn from(e: buttress_volume::Error) -> Self {
        Self::Volume(std::sync::Arc::new(e))
    }
}
