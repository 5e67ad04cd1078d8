//! The rights of a caller, where the kernel leaves the check to the server.
//!
//! # Place
//!
//! With `default_permissions` the kernel checks modes, owners and access lists before it sends a
//! request. The kernel checks nothing for ioctl(2), and it does not send a caller's capabilities
//! and groups.
//!
//! # Invariants
//!
//! - **RI1** The kernel names no task for a caller outside of the server's namespaces, or for
//!   itself. If the kernel names no task, the user id decides: root has all capabilities, and other
//!   users have none. Such a caller has no further groups. If the kernel names a task but `/proc`
//!   does not describe it, the caller has no capabilities and no further groups.
//! - **RI2** Capabilities of another user namespace do not count.

use std::fs;

use buttress_fs::{Attr, FileKind, Inode, InodeFlags};
use buttress_protocol::Errno;

use super::{Caller, FrontEnd};
use crate::acl::{self, Acl};
use crate::errno::Answer;

const ROOT_UID: u32 = 0;
/// On a directory: users remove their own names only.
const STICKY: u32 = 0o1000;
/// The mask of a process that the kernel says nothing about.
const UMASK: u32 = 0o022;

/// Kinds of access to a file, as a mode has them for each class of users.
pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const EXECUTE: u32 = 1;

/// Capabilities, with the numbers of their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capability {
    DacOverride = 1,
    DacReadSearch = 2,
    Fowner = 3,
    Fsetid = 4,
    LinuxImmutable = 9,
    SysAdmin = 21,
}

/// The rights of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    capabilities: u64,
    /// The permission bits that new files of the caller do not get.
    pub(super) umask: u32,
}

impl Rights {
    /// Asks the kernel about a caller (RI1).
    pub(super) fn of(caller: Caller) -> Self {
        if caller.task == 0 {
            return Self::unknown(caller);
        }
        let place = format!("/proc/{}", caller.task);
        let status = fs::read(format!("{place}/status")).unwrap_or_default();
        let Some(mut rights) = Self::parse(caller, &status) else {
            return Self { capabilities: 0, ..Self::unknown(caller) };
        };
        if !is_ours(&place) {
            rights.capabilities = 0;
        }
        rights
    }

    fn unknown(caller: Caller) -> Self {
        let Caller { uid, gid, .. } = caller;
        let capabilities = if uid == ROOT_UID { u64::MAX } else { 0 };
        Self { uid, gid, groups: Vec::new(), capabilities, umask: UMASK }
    }

    /// Reads the `status` of a thread, which begins with a name of any bytes.
    fn parse(caller: Caller, status: &[u8]) -> Option<Self> {
        let status = String::from_utf8_lossy(status);
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let capabilities = u64::from_str_radix(field("CapEff:")?.trim(), 16).ok()?;
        let groups = field("Groups:")?.split_whitespace().map(str::parse);
        let groups = groups.collect::<Result<_, _>>().ok()?;
        let umask = field("Umask:").and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok());
        let Caller { uid, gid, .. } = caller;
        Some(Self { uid, gid, groups, capabilities, umask: umask.unwrap_or(UMASK) })
    }

    pub(super) fn has(&self, capability: Capability) -> bool {
        self.capabilities & 1 << capability as u32 != 0
    }

    pub(super) fn is_member(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

/// Whether a task is in the user namespace of this process.
fn is_ours(place: &str) -> bool {
    let namespace = |place: &str| fs::read_link(format!("{place}/ns/user"));
    match (namespace(place), namespace("/proc/self")) {
        (Ok(its), Ok(ours)) => its == ours,
        _ => false,
    }
}

impl FrontEnd {
    /// Whether a caller owns a file, or may do what its owner may.
    pub(super) fn is_owner(&self, rights: &Rights, attr: &Attr) -> bool {
        rights.uid == self.options.users.show(attr.uid) || rights.has(Capability::Fowner)
    }

    /// Checks that a caller has every kind of access in `wanted` to a file or directory.
    ///
    /// # Errors
    ///
    /// `EACCES`; `EPERM` for writing to an immutable file or directory.
    pub(super) fn expect_access(&self, rights: &Rights, inode: &Inode, wanted: u32) -> Answer<()> {
        let attr = inode.attr();
        if wanted & WRITE != 0 && attr.flags & InodeFlags::IMMUTABLE != 0 {
            return Err(Errno::EPERM);
        }
        if self.is_granted(rights, inode, &attr, wanted) {
            return Ok(());
        }
        let is_directory = attr.kind == FileKind::Directory;
        let can_run = is_directory || attr.mode & 0o111 != 0 || wanted & EXECUTE == 0;
        let only_looks = wanted & WRITE == 0 && (is_directory || wanted == READ);
        let is_overridden = can_run && rights.has(Capability::DacOverride)
            || only_looks && rights.has(Capability::DacReadSearch);
        if is_overridden { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Whether mode and access list give a caller all wanted kinds of access.
    fn is_granted(&self, rights: &Rights, inode: &Inode, attr: &Attr, wanted: u32) -> bool {
        if rights.uid == self.options.users.show(attr.uid) {
            return attr.mode >> 6 & wanted == wanted;
        }
        let list = inode.xattr(acl::ACCESS).ok().and_then(|list| Acl::parse(&list));
        let owning = self.options.groups.show(attr.gid);
        if let Some(list) = list {
            let is_user = |id| self.options.users.show(id) == rights.uid;
            let is_group = |id| rights.is_member(self.options.groups.show(id));
            return list.grants(wanted, is_user, rights.is_member(owning), is_group);
        }
        let class = if rights.is_member(owning) { 3 } else { 0 };
        attr.mode >> class & wanted == wanted
    }

    /// Checks that a caller may add names to a directory.
    pub(super) fn expect_may_add(&self, rights: &Rights, dir: &Inode) -> Answer<()> {
        self.expect_access(rights, dir, WRITE | EXECUTE)
    }

    /// Checks that a caller may remove the name of an inode from a directory.
    pub(super) fn expect_may_remove(
        &self,
        rights: &Rights,
        dir: &Inode,
        victim: &Attr,
    ) -> Answer<()> {
        self.expect_access(rights, dir, WRITE | EXECUTE)?;
        let attr = dir.attr();
        let is_own = |attr: &Attr| rights.uid == self.options.users.show(attr.uid);
        let is_kept = attr.mode & STICKY != 0
            && !is_own(&attr)
            && !is_own(victim)
            && !rights.has(Capability::Fowner);
        let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        if is_kept || attr.flags & InodeFlags::APPEND != 0 || victim.flags & fixed != 0 {
            return Err(Errno::EPERM);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: Caller = Caller { uid: 7, gid: 8, task: 0 };

    /// The umask, the groups and the capabilities are parsed from the `status` of a thread.
    #[test]
    fn rights_are_read() {
        let status = b"Name:\tx \xc3\nUmask:\t0027\nGroups:\t5 1000 \nCapEff:\t0000000000000010\n";
        let rights = Rights::parse(CALLER, status).expect("all fields");
        assert!(rights.has(Capability::Fsetid) && !rights.has(Capability::SysAdmin));
        assert!([5, 1000, 8].iter().all(|group| rights.is_member(*group)));
        assert_eq!((rights.is_member(7), rights.umask), (false, 0o027));
        let status = b"Name:\tx\nGroups:\t\nCapEff:\t000001ffffffffef\n";
        let rights = Rights::parse(CALLER, status).expect("all fields");
        assert!(!rights.has(Capability::Fsetid) && rights.has(Capability::SysAdmin));
        assert_eq!(Rights::parse(CALLER, b""), None);
    }

    /// RI1: root has all capabilities if the kernel names no task, and none if `/proc` does not
    /// describe the task.
    #[test]
    fn unknown_callers_are_taken_by_id() {
        let has = |uid, task| Rights::of(Caller { uid, gid: 0, task }).has(Capability::Fsetid);
        assert!(has(0, 0));
        assert!(!has(1, 0));
        assert!(!has(0, u32::MAX) && !has(1, u32::MAX));
    }
}
