//! The special objects that a copy makes: subvolumes, and inodes with flags.
//!
//! # Invariants
//!
//! - **S1** Each path that was asked for is used, or [`Special::unused`] names it.
//! - **S2** All objects below a folder with flags have the flags as well, also in subvolumes. A
//!   file of several names has the flags of the name that was copied first.

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

/// Paths below the top of a copy that become subvolumes or get flags.
#[derive(Debug, Default)]
pub struct Special {
    /// Folders that become subvolumes, and the subvolumes that were made of them.
    subvolumes: BTreeMap<PathBuf, Option<TreeId>>,
    flags: BTreeMap<PathBuf, Flags>,
    /// The paths in `flags` that the copy has met.
    used: BTreeSet<PathBuf>,
}

impl Special {
    /// Notes that the folder at a path is to become a subvolume.
    pub fn subvolume(&mut self, path: PathBuf) {
        self.subvolumes.insert(path, None);
    }

    /// Adds flags to the flags that are already noted for the file or folder at a path.
    pub fn flags(&mut self, path: PathBuf, flags: Flags) {
        let all = self.flags.entry(path).or_default();
        all.nodatacow |= flags.nodatacow;
        all.nodatasum |= flags.nodatasum;
    }

    /// Returns the subvolume that was made at a path.
    pub fn made(&self, path: &Path) -> Option<TreeId> {
        self.subvolumes.get(path).copied().flatten()
    }

    /// Returns a requested path that the source did not have (S1).
    pub fn unused(&self) -> Option<&Path> {
        let mut subvolumes = self.subvolumes.iter().filter(|(_, made)| made.is_none());
        let first = subvolumes.next().map(|(path, _)| path);
        let mut flags = self.flags.keys().filter(|path| !self.used.contains(*path));
        first.or_else(|| flags.next()).map(PathBuf::as_path)
    }

    /// Makes the folder at `path`. If it is to be a subvolume, the subvolume gets this mode and
    /// these owners. Otherwise `make` makes the folder.
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
                // The root of a subvolume inherits nothing from the folder above (S2).
                let mut above = path.ancestors().filter_map(|path| self.flags.get(path));
                if above.any(|flags| flags.nodatacow) {
                    inode.set_flags(InodeFlags::NODATACOW)?;
                }
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

    /// Notes one more name of a file that has its content already (S1).
    pub(super) fn link(&mut self, dir: &Path, name: &[u8]) {
        if !self.flags.is_empty() {
            let path = dir.join(OsStr::from_bytes(name));
            if self.flags.contains_key(&path) {
                self.used.insert(path);
            }
        }
    }

    /// Sets the flag for writing in place, if the path has it. New objects in a folder inherit the
    /// flag.
    fn set(&mut self, path: &Path, inode: &Inode) -> buttress_fs::Result<()> {
        let Some(flags) = self.flags.get(path) else { return Ok(()) };
        if flags.nodatacow {
            inode.set_flags(InodeFlags::NODATACOW)?;
        }
        self.used.insert(path.to_owned());
        Ok(())
    }
}

/// Finds out which paths of a [`Special`] a source has, before the copy makes anything.
#[derive(Debug)]
pub struct Search<'s> {
    special: &'s Special,
    directories: BTreeSet<PathBuf>,
    files: BTreeSet<PathBuf>,
}

impl<'s> Search<'s> {
    /// Begins a search that has seen nothing.
    #[must_use]
    pub fn new(special: &'s Special) -> Self {
        Self { special, directories: BTreeSet::new(), files: BTreeSet::new() }
    }

    /// Notes a file or a folder of the source, and the folders above it.
    pub fn saw(&mut self, path: &Path, is_directory: bool) {
        let Special { subvolumes, flags, .. } = self.special;
        for (above, path) in path.ancestors().enumerate() {
            if subvolumes.contains_key(path) || flags.contains_key(path) {
                let is_directory = is_directory || above > 0;
                let seen = if is_directory { &mut self.directories } else { &mut self.files };
                seen.insert(path.to_owned());
            }
        }
    }

    /// Looks for all requested paths in a folder of the host. Follows no symbolic link below the
    /// folder.
    pub fn look_below(&mut self, dir: &Path) {
        let special = self.special;
        for path in special.subvolumes.keys().chain(special.flags.keys()) {
            let kind =
                |path: &Path| dir.join(path).symlink_metadata().map(|found| found.file_type());
            let is_directory = |path: &Path| kind(path).is_ok_and(|kind| kind.is_dir());
            let mut above = path.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty());
            let is_below = above.all(is_directory);
            if is_below && kind(path).is_ok_and(|kind| kind.is_dir() || kind.is_file()) {
                self.saw(path, is_directory(path));
            }
        }
    }

    /// Returns a requested path that is missing or has the wrong kind.
    #[must_use]
    pub fn missing(&self) -> Option<&'s Path> {
        let Special { subvolumes, flags, .. } = self.special;
        let mut folders = subvolumes.keys().filter(|path| !self.directories.contains(*path));
        let is_seen =
            |path: &&PathBuf| self.directories.contains(*path) || self.files.contains(*path);
        let mut flagged = flags.keys().filter(|path| !is_seen(path));
        folders.next().or_else(|| flagged.next()).map(PathBuf::as_path)
    }
}
