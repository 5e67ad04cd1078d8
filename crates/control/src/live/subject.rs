//! The names by which users refer to a mount or a server. A check tells whether a name still refers
//! to the same mount or server.
//!
//! # Invariants
//!
//! - **W1** A user names a server by a mount point, an image or a cache. The server must serve the
//!   file that has that name now. Two cases need the check. First, a mount may have been detached
//!   while it was used. Its server answers until everything is durable, and still reports the mount
//!   point and perhaps the device number. Second, another file may have replaced the image. The
//!   server of the old image keeps the name. An order to such a server would change a volume that
//!   no user can see.
//! - **W2** Of the devices, a server of an open volume serves only those that it has open itself. A
//!   device that was removed may be part of another volume now. A device that was added
//!   is known by the file that was opened, and not by its name: the name may lead to another file
//!   later.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use buttress_remote::Inside;
use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags};
use serde::{Deserialize, Serialize};

use crate::{closing, names};

/// The volume that a process serves, by the names that users know.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Subject {
    /// The image or device.
    #[serde(with = "names::path")]
    pub image: PathBuf,
    /// The identity of the image's file, which does not depend on its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileId>,
    /// The mount point.
    #[serde(default, with = "names::path_or_none", skip_serializing_if = "Option::is_none")]
    pub target: Option<PathBuf>,
    /// The device number of the mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<u64>,
    /// The other devices of the volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<FileId>,
    /// Whether all mounts of the volume share one file system. Its root is the top level, and each
    /// mount shows a part of it.
    #[serde(default)]
    pub is_shared: bool,
    /// The cache in front of the device.
    #[serde(default, with = "names::path_or_none", skip_serializing_if = "Option::is_none")]
    pub cache: Option<PathBuf>,
    /// The identity of the cache's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_file: Option<FileId>,
    /// The addresses at which the volume is served over the network protocol.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uris: Vec<String>,
}

/// The identity of a volume's file: its device and inode number, or the device number of a block
/// device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileId {
    File(u64, u64),
    Block(u64),
    /// A part of an image of a disk: the device and number of its file, and the first byte.
    Part(u64, u64, u64),
    /// A part of a block device: its device number, and the first byte.
    BlockPart(u64, u64),
}

/// The files that this process has open. `None` if the system does not tell.
///
/// The kernel answers from what it knows already. So a descriptor on a mount with a busy server
/// delays nothing.
pub(super) fn open_files() -> Option<Vec<FileId>> {
    let how = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let identity = |path: PathBuf| {
        let seen = rustix::fs::statx(CWD, &path, how, StatxFlags::BASIC_STATS).ok()?;
        Some(match FileType::from_raw_mode(seen.stx_mode.into()) {
            FileType::BlockDevice => {
                FileId::Block(rustix::fs::makedev(seen.stx_rdev_major, seen.stx_rdev_minor))
            }
            _ => {
                let device = rustix::fs::makedev(seen.stx_dev_major, seen.stx_dev_minor);
                FileId::File(device, seen.stx_ino)
            }
        })
    };
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    Some(entries.flatten().filter_map(|entry| identity(entry.path())).collect())
}

impl FileId {
    /// Returns whether the file, or the disk with the part, is one of the open files.
    pub(super) fn is_in(self, open: &[Self]) -> bool {
        open.contains(&match self {
            Self::Part(device, inode, _) => Self::File(device, inode),
            Self::BlockPart(device, _) => Self::Block(device),
            whole => whole,
        })
    }

    /// Returns the identity of the file at a path, or of the part of a disk, if there is one.
    pub(super) fn at(path: &Path) -> Option<Self> {
        if let Some(inside) = Inside::of(path) {
            let (disk, region) = (inside.disk().metadata().ok()?, inside.look().ok()?);
            return Some(match disk.file_type().is_block_device() {
                true => Self::BlockPart(disk.rdev(), region.start),
                false => Self::Part(disk.dev(), disk.ino(), region.start),
            });
        }
        let found = path.metadata().ok()?;
        Some(match found.file_type().is_block_device() {
            true => Self::Block(found.rdev()),
            false => Self::File(found.dev(), found.ino()),
        })
    }
}

impl Subject {
    /// Creates the subject of a server that has a file open, perhaps with a cache.
    pub fn of(image: PathBuf, cache: Option<PathBuf>) -> Self {
        let cache_file = cache.as_deref().and_then(FileId::at);
        Self { file: FileId::at(&image), image, cache, cache_file, ..Self::default() }
    }

    /// Adds the other devices of the volume.
    pub fn other_devices<'a>(&mut self, paths: impl Iterator<Item = &'a Path>) {
        for file in paths.filter_map(FileId::at) {
            if self.file != Some(file) && !self.more.contains(&file) {
                self.more.push(file);
            }
        }
    }

    /// Forgets devices that are not open any more (W2). `paths` are those of the present devices:
    /// if the image has left the volume, the first of them that is open takes its place.
    pub(super) fn keep_open(&mut self, open: &[FileId], paths: impl Iterator<Item = PathBuf>) {
        self.more.retain(|file| file.is_in(open));
        if self.file.is_none_or(|file| file.is_in(open)) {
            return;
        }
        let mut here = paths.filter_map(|path| {
            let file = FileId::at(&path).filter(|file| file.is_in(open))?;
            Some((closing::full_name(&path).ok()?, file))
        });
        if let Some((path, file)) = here.next() {
            self.more.retain(|other| *other != file);
            (self.image, self.file) = (path, Some(file));
        }
    }

    /// Returns whether `path`, a full path, is now the image, another device or the cache of this
    /// server (W1).
    pub(super) fn serves(&self, path: &Path) -> bool {
        let is_there = |name: &Path, file: Option<FileId>| {
            name == path && (file.is_none() || file == FileId::at(path))
        };
        is_there(&self.image, self.file)
            || FileId::at(path).is_some_and(|file| self.more.contains(&file))
            || self.cache.as_ref().is_some_and(|cache| is_there(cache, self.cache_file))
    }

    /// Returns whether the server's mount is the visible one at its mount point (W1).
    pub fn is_mounted(&self) -> bool {
        let Some(target) = &self.target else { return false };
        // The attributes that the kernel has cached are enough. The flags trigger no automount that
        // covers the mount. They also ask no server of another file system, which may never answer.
        let how = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let device_of = |seen: Statx| rustix::fs::makedev(seen.stx_dev_major, seen.stx_dev_minor);
        self.device.is_none_or(|own| {
            let seen = rustix::fs::statx(CWD, target, how, StatxFlags::empty());
            seen.is_ok_and(|seen| device_of(seen) == own)
        })
    }
}
