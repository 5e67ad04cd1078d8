//! Marks the counts of quota groups as inconsistent after fixes.
//!
//! # Invariants
//!
//! - **MQ1** Quotas are marked only if they are on and not simple, because a rescan counts such
//!   quotas anew. The counts of simple quotas follow from no other tree.

use buttress_format::{QuotaStatus, TreeId};

use crate::error::Result;
use crate::mend::editor::Editor;

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
