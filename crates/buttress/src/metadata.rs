//! The metadata of a file.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use buttress_fs::{Attr, FileKind, InodeId, Timespec};

/// Attributes of a file, directory or other object, as they were at the time of the call.
#[derive(Clone, Debug)]
pub struct Metadata {
    attr: Attr,
}

impl Metadata {
    pub(crate) fn new(attr: Attr) -> Self {
        Self { attr }
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "as std::fs::Metadata")]
    pub fn len(&self) -> u64 {
        self.attr.size
    }

    /// Whether the object is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.attr.kind == FileKind::Regular
    }

    /// Whether the object is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.attr.kind == FileKind::Directory
    }

    /// Whether the object is a symbolic link.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.attr.kind == FileKind::Symlink
    }

    /// Whether the object is a named pipe.
    #[must_use]
    pub fn is_fifo(&self) -> bool {
        self.attr.kind == FileKind::Fifo
    }

    /// Whether the object is a socket.
    #[must_use]
    pub fn is_socket(&self) -> bool {
        self.attr.kind == FileKind::Socket
    }

    /// Whether the object is a character device.
    #[must_use]
    pub fn is_char_device(&self) -> bool {
        self.attr.kind == FileKind::Character
    }

    /// Whether the object is a block device.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.attr.kind == FileKind::Block
    }

    /// Major and minor number of a device node.
    #[must_use]
    pub fn device_number(&self) -> (u32, u32) {
        ((self.attr.rdev >> 20) as u32, (self.attr.rdev & 0xf_ffff) as u32)
    }

    /// Returns the kind of the object.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.attr.kind
    }

    /// Subvolume and inode number.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.attr.id
    }

    /// Type and permission bits.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.attr.mode
    }

    /// Owner and group.
    #[must_use]
    pub fn owner(&self) -> (u32, u32) {
        (self.attr.uid, self.attr.gid)
    }

    /// Returns the number of names of the object; one for a directory.
    #[must_use]
    pub fn nlink(&self) -> u32 {
        self.attr.nlink
    }

    /// Returns the allocated bytes of the object, dirty data included.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.attr.blocks * 512
    }

    /// Last change of the content.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        time(self.attr.mtime)
    }

    /// Last read that was recorded.
    #[must_use]
    pub fn accessed(&self) -> SystemTime {
        time(self.attr.atime)
    }

    /// Last change of the attributes.
    #[must_use]
    pub fn changed(&self) -> SystemTime {
        time(self.attr.ctime)
    }

    /// Creation.
    #[must_use]
    pub fn created(&self) -> SystemTime {
        time(self.attr.otime)
    }
}

fn time(at: Timespec) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(at.nsec));
    let seconds = Duration::from_secs(at.sec.unsigned_abs());
    let whole =
        if at.sec < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}
