//! What a copy makes beyond files and folders: subvolumes, and inodes with flags.
//!
//! # Invariants
//!
//! - **S1** Each path that was asked for is used, or [`Special::unused`] names it.
//! - **S2** What lies below a folder with flags has them as well.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use buttress_fs::{Inode, InodeFlags, TreeId};

/// How the data of files is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Data is overwritten in place, and has no checksums.
    pub nodatacow: bool,
    /// Data has no checksums.
    pub nodatasum: bool,
}

/// Paths below the top of a copy, and what becomes of them.
#[derive(Debug, Default)]
pub struct Special {
    /// Folders that become subvolumes, and the subvolumes that were made of them.
    subvolumes: BTreeMap<PathBuf, Option<TreeId>>,
    flags: BTreeMap<PathBuf, Flags>,
    /// The paths in `flags` that the copy has met.
    used: BTreeSet<PathBuf>,
}

impl Special {
    /// Makes a subvolume of the folder at a path.
    pub fn subvolume(&mut self, path: PathBuf) {
        self.subvolumes.insert(path, None);
    }

    /// Adds these flags to those of the file or folder at a path.
    pub fn flags(&mut self, path: PathBuf, flags: Flags) {
        let all = self.flags.entry(path).or_default();
        all.nodatacow |= flags.nodatacow;
        all.nodatasum |= flags.nodatasum;
    }

    /// Returns the subvolume that was made at a path.
    pub fn made(&self, path: &Path) -> Option<TreeId> {
        self.subvolumes.get(path).copied().flatten()
    }

    /// Returns a path that was asked for and was not there (S1).
    pub fn unused(&self) -> Option<&Path> {
        let mut subvolumes = self.subvolumes.iter().filter(|(_, made)| made.is_none());
        let first = subvolumes.next().map(|(path, _)| path);
        let mut flags = self.flags.keys().filter(|path| !self.used.contains(*path));
        first.or_else(|| flags.next()).map(PathBuf::as_path)
    }

    /// Makes the folder at `path`: as a subvolume with this mode and these owners, or else by
    /// `make`.
    pub(super) fn directory(
        &mut self,
        path: &Path,
        dir: &Inode,
        (mode, uid, gid): (u32, u32, u32),
        make: impl FnOnce() -> buttress_fs::Result<Inode>,
    ) -> buttress_fs::Result<Inode> {
        let inode = match (self.subvolumes.get_mut(path), path.file_name()) {
            (Some(made), Some(name)) if made.is_none() => {
                let inode = dir.create_subvolume(name.as_bytes(), mode & 0o7777, uid, gid)?;
                *made = Some(inode.id().tree);
                inode
            }
            _ => make()?,
        };
        self.set(path, &inode)?;
        Ok(inode)
    }

    /// Gives a new file in the folder `dir` its flags, before it has content.
    pub(super) fn file(
        &mut self,
        dir: &Path,
        name: &[u8],
        inode: &Inode,
    ) -> buttress_fs::Result<()> {
        if self.flags.is_empty() {
            return Ok(());
        }
        let path = dir.join(OsStr::from_bytes(name));
        self.set(&path, inode)?;
        let sums = path.ancestors().filter_map(|path| self.flags.get(path));
        let leaves_out = sums.clone().any(|flags| flags.nodatasum);
        if leaves_out && !sums.clone().any(|flags| flags.nodatacow) {
            inode.leave_out_checksums()?;
        }
        Ok(())
    }

    /// Sets the flag for writing in place, if the path has it. What is made in a folder inherits
    /// the flag.
    fn set(&mut self, path: &Path, inode: &Inode) -> buttress_fs::Result<()> {
        let Some(flags) = self.flags.get(path) else { return Ok(()) };
        if flags.nodatacow {
            inode.set_flags(InodeFlags::NODATACOW)?;
        }
        self.used.insert(path.to_owned());
        Ok(())
    }
}
