//! Quotas: whether they are marked inconsistent. What they count is not counted here.

use buttress_format::{Kind, Logical, TreeId};

use crate::context::{Context, Tree};
use crate::issue::Issue;
use crate::walk::each_leaf;

/// Quotas are counted.
const ON: u64 = 1;
/// They are being counted anew, or have to be.
const RESCAN_OR_INCONSISTENT: u64 = 2 | 4;
/// Where the flags lie in the status item, behind version and generation.
const FLAGS_AT: usize = 16;

/// Looks at the status of quotas.
pub(crate) fn check(context: &Context<'_>, tree: &Tree) {
    each_leaf(context, tree, &mut |leaf| {
        for slot in 0..leaf.len() {
            let key = leaf.key(slot);
            if key.kind != Kind::QGROUP_STATUS {
                continue;
            }
            let bytes = leaf.item(slot).get(FLAGS_AT..).and_then(|rest| rest.first_chunk::<8>());
            let Some(bytes) = bytes else {
                let (tree, logical) = (TreeId::QUOTA, Logical(leaf.logical().0));
                let why = "it is cut short".to_owned();
                context.add(Issue::ItemMalformed { tree, logical, key, why });
                continue;
            };
            let flags = u64::from_le_bytes(*bytes);
            if flags & RESCAN_OR_INCONSISTENT != 0 {
                context.add(Issue::QuotaInconsistent { flags });
            } else if flags & ON != 0 {
                context.add(Issue::NotChecked { what: "the counts of quota groups" });
            }
        }
    });
}
