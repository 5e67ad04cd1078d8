//! Tells repairs which tree an issue is about.
//!
//! # Invariants
//!
//! - **KI1** An issue belongs to a derived tree only if deriving this tree anew from the other
//!   trees repairs the issue.

use buttress_format::TreeId;

use buttress_issue::Issue;

/// The tree with the damage, for an issue about damaged nodes or items.
pub(crate) fn damaged_tree(issue: &Issue) -> Option<TreeId> {
    match issue {
        Issue::NodeDamaged { tree, .. }
        | Issue::NodeOwner { tree, .. }
        | Issue::NodeFlags { tree, .. }
        | Issue::NodeGeneration { tree, .. }
        | Issue::NodeBounds { tree, .. }
        | Issue::NodeShared { tree, .. }
        | Issue::ItemMalformed { tree, .. }
        | Issue::ItemUnexpected { tree, .. }
        | Issue::RootMissing { tree } => Some(*tree),
        _ => None,
    }
}

/// Whether an issue belongs to the checksum tree.
pub(crate) fn is_of_sums(issue: &Issue) -> bool {
    match issue {
        Issue::CsumMissing { .. }
        | Issue::CsumUnexpected { .. }
        | Issue::CsumUnused { .. }
        | Issue::CsumOverlap { .. }
        | Issue::DataDamaged { .. } => true,
        other => damaged_tree(other) == Some(TreeId::CSUM),
    }
}

/// Whether an issue belongs to the extent tree, or to the trees that are derived with the extent
/// tree.
pub(crate) fn is_of_extents(issue: &Issue) -> bool {
    let is_derived =
        |tree: TreeId| matches!(tree, TreeId::EXTENT | TreeId::BLOCK_GROUP | TreeId::FREE_SPACE);
    match issue {
        Issue::ItemGeneration { tree, .. } => is_derived(*tree),
        Issue::BlockGroupMissing { .. }
        | Issue::BlockGroupMismatch { .. }
        | Issue::ChunkMissing { .. }
        | Issue::NodeOwnerRef { .. }
        | Issue::ExtentMissing { .. }
        | Issue::ExtentUnused { .. }
        | Issue::ExtentOverlap { .. }
        | Issue::ExtentMismatch { .. }
        | Issue::ExtentRefs { .. }
        | Issue::ExtentOutside { .. }
        | Issue::BackrefMissing { .. }
        | Issue::BackrefUnused { .. }
        | Issue::BackrefCount { .. }
        | Issue::BackrefOrder { .. } => true,
        other => damaged_tree(other).is_some_and(is_derived),
    }
}
