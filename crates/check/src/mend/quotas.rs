//! Mends the counts of full quotas, or marks them as inconsistent.
//!
//! # Invariants
//!
//! - **MQ1** Quotas are mended and marked only if they are on and not simple. A rescan counts such
//!   quotas anew, and the checker counts them from the trees of subvolumes. The counts of simple
//!   quotas follow from no other tree.
//! - **MQ2** Counts are the last stage, because other fixes change which extents subvolumes reach.

use buttress_format::{Key, Kind, QuotaGroup, QuotaInfo, QuotaStatus, TreeId};

use crate::error::Result;
use crate::mend::editor::{Edit, Editor, Fix};
use crate::quota::NOT_COUNTED;
use buttress_issue::Issue;

/// Whether an issue says that counts of quota groups may be wrong.
pub(super) fn are_doubtful(issue: &Issue) -> bool {
    matches!(issue, Issue::QuotaReach { .. } | Issue::NotChecked { what: NOT_COUNTED })
}

/// Gives one field of a group the bytes that the checker counted (MQ1).
pub(super) fn count(
    editor: &Editor,
    group: QuotaGroup,
    field: &str,
    expected: u64,
) -> Result<Option<Fix>> {
    let key = Key::new(0, Kind::QGROUP_INFO, group.0);
    let Some(bytes) = editor.get(TreeId::QUOTA, &key)? else { return Ok(None) };
    let Ok(mut info) = QuotaInfo::parse(&bytes) else { return Ok(None) };
    match field {
        "referenced" => (info.referenced, info.referenced_compressed) = (expected, expected),
        _ => (info.exclusive, info.exclusive_compressed) = (expected, expected),
    }
    let says = format!("quota group {group}: {field} becomes {expected} bytes");
    Ok(Some(Fix { says, edits: vec![Edit::Put(TreeId::QUOTA, key, info.to_bytes())] }))
}

/// Marks quotas. Returns whether they were on and not marked before.
pub(super) fn mark(editor: &Editor) -> Result<bool> {
    let key = QuotaStatus::KEY;
    if editor.root_item(TreeId::QUOTA)?.is_none() {
        return Ok(false);
    }
    let Some(bytes) = editor.get(TreeId::QUOTA, &key)? else { return Ok(false) };
    let Ok(mut status) = QuotaStatus::parse(&bytes) else { return Ok(false) };
    let wanted = QuotaStatus::ON;
    let others = QuotaStatus::SIMPLE | QuotaStatus::INCONSISTENT;
    if status.flags & (wanted | others) != wanted {
        return Ok(false);
    }
    status.flags |= QuotaStatus::INCONSISTENT;
    editor.edit_leaf(TreeId::QUOTA, &key, |items| {
        let ours = items.iter_mut().filter(|(other, _)| *other == key);
        ours.for_each(|(_, bytes)| *bytes = status.to_bytes());
    })
}
