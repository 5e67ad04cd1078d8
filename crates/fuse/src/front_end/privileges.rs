//! Privileges of a file that a change takes away: set-user-id, set-group-id and file capabilities.
//!
//! # Place
//!
//! With `FUSE_HANDLE_KILLPRIV_V2` the kernel leaves the removal of privileges to the server. The
//! kernel itself removes only capabilities. It does so before most changes, but not before a direct
//! write or a truncating open.
//!
//! # Invariants
//!
//! - **S1** A change of content removes capabilities, also if root makes it, as in Linux. It
//!   removes set-id bits if the caller lacks `CAP_FSETID`. Writes from the kernel's cache remove
//!   nothing. The kernel checked for privileges when the program called write(2). A change through
//!   a mapping removes nothing in Linux either.
//! - **S2** A change of owner or group removes all privileges, also if root makes it. S3 is an
//!   exception. Directories keep their set-id bits.
//! - **S3** The set-group-id bit of a file without execute permission for its group may stay. It
//!   stays if the caller is a member of the group or has `CAP_FSETID`.
//! - **S5** The kernel caches modes for a long time (`front_end::D2`). If an answer carries no
//!   attributes, the cached attributes are invalidated before the answer is sent. The invalidation
//!   takes no lock of an inode or a folio (`front_end::D4`).

use buttress_fs::{FileKind, mode};

use super::rights::{Capability, Rights};
use super::{Caller, FrontEnd, Node, refuse};
use crate::errno::Answer;

const GROUP_RUNS: u32 = 0o010;

/// How a change affects privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A change of content, by a caller that may have `CAP_FSETID`.
    Content,
    /// A change of content, by a caller without `CAP_FSETID`, as the kernel says.
    ContentUnprivileged,
    /// A change of content, by a caller with `CAP_FSETID`, as the kernel says.
    ContentPrivileged,
    /// A change of owner or group.
    Owner,
}

impl FrontEnd {
    /// Removes the privileges that a change of content removes (S1), and invalidates the mode in
    /// the kernel's cache (S5).
    pub(super) fn content_changes(
        &self,
        id: u64,
        node: &Node,
        caller: Caller,
        change: Change,
    ) -> Answer<()> {
        drop_capability(node)?;
        let lost = self.lost_bits(node, caller, change);
        if lost != 0 {
            node.inode.clear_suid_sgid(lost).map_err(refuse)?;
            self.notifier_threads.doubt_attributes(id);
        }
        Ok(())
    }

    /// Returns the set-id bits that a change removes (S1 to S3).
    pub(super) fn lost_bits(&self, node: &Node, caller: Caller, change: Change) -> u32 {
        let attr = node.inode.attr();
        let (set_uid, set_gid) = (attr.mode & mode::SETUID, attr.mode & mode::SETGID);
        let is_owner = change == Change::Owner;
        let may_lose = match attr.kind {
            FileKind::Regular => true,
            FileKind::Directory => false,
            _ => is_owner,
        };
        if !may_lose || set_uid | set_gid == 0 || change == Change::ContentPrivileged {
            return 0;
        }
        let rights = Rights::of(caller);
        let has_fsetid = change != Change::ContentUnprivileged && rights.has(Capability::Fsetid);
        if has_fsetid && !is_owner {
            return 0;
        }
        let is_run_by_group = attr.mode & GROUP_RUNS != 0;
        let keeps_group = has_fsetid || rights.is_member(self.options.groups.show(attr.gid));
        if is_run_by_group || !keeps_group { set_uid | set_gid } else { set_uid }
    }

    /// Whether a caller may set a file's set-group-id bit: it is in the group, or has `CAP_FSETID`.
    pub(super) fn may_set_group_id(&self, node: &Node, caller: Caller) -> bool {
        let rights = Rights::of(caller);
        let gid = self.options.groups.show(node.inode.attr().gid);
        rights.has(Capability::Fsetid) || rights.is_member(gid)
    }
}

/// Removes the file capabilities, if there may be any.
pub(super) fn drop_capability(node: &Node) -> Answer<()> {
    if node.lacks_capability() {
        return Ok(());
    }
    node.inode.drop_capability().map_err(refuse)?;
    node.set_lacks_capability(true);
    Ok(())
}
