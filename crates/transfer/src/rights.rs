//! The rights of a copy: owner, mode and lists, in any place.
//!
//! # Invariants
//!
//! - **R1** A copy gives no rights that its source does not give. A program runs as its owner or
//!   group only if the copy has the owner or group of the source. A copy with the mode of its
//!   source has the source's lists, too: with a list, the group's bits of the mode are the mask.
//! - **R2** Until a new copy is finished, only its maker has rights to it.
//! - **R3** Without `Keep`, a copy has the permissions of its source that the umask leaves, as a
//!   new file.

use std::sync::OnceLock;

use buttress_fs::{Attr, FileKind, Inode, SetAttr, Timespec, XattrFlags};
use rustix::fs::{Mode, Stat};

use crate::{Keep, acl};

/// The bits of a mode by which a program runs as the owner, or as the group, of its file.
const SET_USER: u32 = 0o4000;
pub(crate) const SET_GROUP: u32 = 0o2000;

/// The lists of rights that a new object may inherit.
pub(crate) const LISTS: [&[u8]; 2] = [acl::ACCESS, acl::DEFAULT];

/// Extended attributes, by name.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// The attributes of a source that its copy may get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) kind: Option<FileKind>,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) atime: Timespec,
    pub(crate) mtime: Timespec,
}

impl From<&Attr> for Attributes {
    fn from(attr: &Attr) -> Self {
        let (kind, mode) = (Some(attr.kind), attr.mode);
        let (atime, mtime) = (attr.atime, attr.mtime);
        Self { kind, mode, uid: attr.uid, gid: attr.gid, atime, mtime }
    }
}

impl From<&Stat> for Attributes {
    fn from(stat: &Stat) -> Self {
        Self {
            kind: FileKind::from_mode(stat.st_mode),
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        }
    }
}

/// Converts a time. Seconds may be negative; nanoseconds from the kernel are below a billion.
fn time(sec: i64, nsec: impl TryInto<u32>) -> Timespec {
    Timespec { sec, nsec: nsec.try_into().unwrap_or(0) }
}

impl Keep {
    /// Whether copies have the modes and times of their sources.
    pub(crate) fn modes(self) -> bool {
        self.attributes || self.everything
    }

    /// Whether copies have an extended attribute of their sources (R1).
    pub(crate) fn has_xattr(self, name: &[u8]) -> bool {
        self.everything || self.attributes && LISTS.contains(&name)
    }
}

impl Attributes {
    /// The kind and mode with which a copy is made on the host (R2, R3). Directories are filled
    /// before others may enter. A file that its owner may not write could not get attributes.
    pub(crate) fn mode_at_first(&self, keep: Keep) -> u32 {
        let permissions = match self.kind {
            Some(FileKind::Directory) => 0o700,
            _ if keep.modes() => 0o600,
            _ => self.mode & 0o777 & !umask(),
        };
        self.mode & !0o7777 | permissions
    }

    /// As [`mode_at_first`](Self::mode_at_first), in a volume, which has no other users meanwhile.
    /// The mode of a new object limits the list that it inherits. A later mode would not.
    pub(crate) fn mode_in_volume(&self, keep: Keep) -> u32 {
        match keep.modes() {
            true => self.mode & !0o7777 | self.mode & 0o700,
            false => self.mode & !0o7777 | self.mode & 0o777 & !umask(),
        }
    }

    /// The mode of a finished copy that has this owner and group, or nothing if it stays as it was
    /// made (R1). `is_new` says that the copy made the object, which has the mode `found`.
    pub(crate) fn mode_at_last(
        &self,
        keep: Keep,
        (uid, gid): (u32, u32),
        (found, is_new): (u32, bool),
    ) -> Option<u32> {
        if self.kind == Some(FileKind::Symlink) {
            return None;
        }
        if !keep.modes() {
            let is_closed = self.kind == Some(FileKind::Directory) && is_new;
            // A directory keeps the bit that it inherited from its parent.
            return is_closed.then(|| self.mode & 0o777 & !umask() | found & SET_GROUP);
        }
        let mut mode = self.mode & 0o7777;
        if uid != self.uid {
            mode &= !SET_USER;
        }
        if gid != self.gid {
            mode &= !SET_GROUP;
        }
        Some(mode)
    }

    /// Gives a copy in a volume its owner, lists and other extended attributes, mode and times, in
    /// an order in which none takes another away. `may_inherit` says that the directory may have a
    /// list for new objects.
    pub(crate) fn set_in_volume(
        &self,
        keep: Keep,
        inode: &Inode,
        (xattrs, may_inherit): (&Xattrs, bool),
        is_new: bool,
    ) -> buttress_fs::Result<()> {
        let found = inode.attr();
        if keep.everything && (found.uid, found.gid) != (self.uid, self.gid) {
            let (uid, gid) = (Some(self.uid), Some(self.gid));
            inode.set_attr(&SetAttr { uid, gid, ..SetAttr::default() })?;
        }
        // An object that was there may have lists of its own.
        if may_inherit || !is_new {
            remove_lists(keep, inode, xattrs)?;
        }
        for (name, value) in xattrs.iter().filter(|(name, _)| keep.has_xattr(name)) {
            inode.set_xattr(name, value, XattrFlags::default())?;
        }
        let found = inode.attr();
        let mode = self.mode_at_last(keep, (found.uid, found.gid), (found.mode, is_new));
        let mode = mode.filter(|_| keep.modes());
        let atime = keep.modes().then_some(self.atime);
        let mtime = keep.modes().then_some(self.mtime);
        if mode.is_some() || mtime.is_some() {
            inode.set_attr(&SetAttr { mode, atime, mtime, ..SetAttr::default() })?;
        }
        Ok(())
    }
}

/// Reads the extended attributes of an object in a volume that its copy keeps.
pub(crate) fn xattrs_of(inode: &Inode, keep: Keep) -> buttress_fs::Result<Xattrs> {
    if !keep.modes() {
        return Ok(Vec::new());
    }
    let names = inode.list_xattrs()?;
    let kept = names.into_iter().filter(|name| keep.has_xattr(name));
    kept.map(|name| inode.xattr(&name).map(|value| (name, value))).collect()
}

/// Removes lists that a copy in a volume has and its source lacks.
fn remove_lists(keep: Keep, inode: &Inode, all: &Xattrs) -> buttress_fs::Result<()> {
    for list in LISTS.into_iter().filter(|list| keep.has_xattr(list)) {
        if all.iter().all(|(name, _)| name != list) && inode.xattr(list).is_ok() {
            inode.remove_xattr(list)?;
        }
    }
    Ok(())
}

/// The permissions that new files of this process do not get.
fn umask() -> u32 {
    // Reading it sets it, for all threads. So it is read once.
    static UMASK: OnceLock<u32> = OnceLock::new();
    *UMASK.get_or_init(|| {
        let umask = rustix::process::umask(Mode::empty());
        rustix::process::umask(umask);
        umask.bits()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests R1.
    /// Programs run as their owner only where the owner is kept.
    #[test]
    fn modes_follow_the_owner() {
        let zero = Timespec::default();
        let kind = Some(FileKind::Regular);
        let program =
            Attributes { kind, mode: 0o106_755, uid: 7, gid: 8, atime: zero, mtime: zero };
        let keep = Keep { attributes: true, everything: false };
        let mode = |owner| program.mode_at_last(keep, owner, (0, true));
        assert_eq!(mode((7, 8)), Some(0o6755));
        assert_eq!(mode((0, 8)), Some(0o2755));
        assert_eq!(mode((7, 0)), Some(0o4755));
        assert_eq!(mode((0, 0)), Some(0o755));
        assert_eq!(program.mode_at_first(keep), 0o100_600);
        assert_eq!(program.mode_in_volume(keep), 0o100_700);
        for mode in
            [program.mode_at_first(Keep::default()), program.mode_in_volume(Keep::default())]
        {
            assert_eq!(mode & 0o177_700, 0o100_700);
        }
        assert_eq!(program.mode_at_last(Keep::default(), (7, 8), (0, true)), None);
    }
}
