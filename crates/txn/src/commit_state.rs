//! What one commit hands to the next.

use std::collections::BTreeMap;

use buttress_format::{BlockGroupFlags, Logical, Superblock};
use buttress_tree::Roots;

/// A block group's item as the last commit left it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupRecord {
    pub(crate) len: u64,
    pub(crate) flags: BlockGroupFlags,
    pub(crate) used: u64,
}

/// What one commit hands to the next. Under the commit lock.
#[derive(Clone, Debug)]
pub(crate) struct CommitState {
    pub(crate) superblock: Superblock,
    /// Roots of the last commit.
    pub(crate) roots: Roots,
    pub(crate) groups: BTreeMap<Logical, GroupRecord>,
}
