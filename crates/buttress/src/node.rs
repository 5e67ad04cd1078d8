//! Objects that are neither files nor directories nor links: pipes, sockets and device nodes.

use std::path::Path;

use buttress_fs::NewInode;

use crate::error::{Context, Result};
use crate::file::FileOptions;
use crate::filesystem::Filesystem;
use crate::walk;

/// The kind of an object that [`Filesystem::create_node`] makes, in the words of
/// [`std::os::unix::fs::FileTypeExt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice {
        /// The major number, at most 4095.
        major: u32,
        /// The minor number, at most 1048575.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// The major number, at most 4095.
        major: u32,
        /// The minor number, at most 1048575.
        minor: u32,
    },
}

impl Filesystem {
    /// Makes a pipe, a socket or a device node, with the mode and the owner of `options`. The
    /// volume only stores the object: [`Filesystem::open_with`] does not open it.
    ///
    /// ```
    /// # fn main() -> buttress::Result<()> {
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let fs = buttress::CreateOptions::new(256 << 20).create(folder.path().join("a.img"))?;
    /// use buttress::{FileOptions, NodeKind};
    ///
    /// let null = NodeKind::CharDevice { major: 1, minor: 3 };
    /// fs.create_node("/null", null, &FileOptions::new().mode(0o666))?;
    /// fs.create_node("/queue", NodeKind::Fifo, &FileOptions::new().mode(0o600).owner(1000, 100))?;
    /// assert_eq!(fs.metadata("/queue")?.owner(), (1000, 100));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `NotFound` for the directory, `AlreadyExists`, `StorageFull`, `ReadOnly`; `InvalidInput` for
    /// a device number that is too large.
    pub fn create_node(
        &self,
        path: impl AsRef<Path>,
        kind: NodeKind,
        options: &FileOptions,
    ) -> Result<()> {
        let path = path.as_ref();
        let made = new_inode(kind, options).and_then(|new| {
            let (dir, name) = walk::find_parent(self.engine(), path)?;
            dir.create(name, new)
        });
        made.context("create node", path).map(drop)
    }
}

fn new_inode(kind: NodeKind, options: &FileOptions) -> buttress_fs::Result<NewInode> {
    Ok(match kind {
        NodeKind::Fifo => options.new_inode(NewInode::fifo),
        NodeKind::Socket => options.new_inode(NewInode::socket),
        NodeKind::CharDevice { major, minor } => {
            let number = device_number(major, minor)?;
            options.new_inode(|mode| NewInode::char_device(mode, number))
        }
        NodeKind::BlockDevice { major, minor } => {
            let number = device_number(major, minor)?;
            options.new_inode(|mode| NewInode::block_device(mode, number))
        }
    })
}

/// The number in the encoding of the volume. Its fields have the widths of Linux's `dev_t`.
fn device_number(major: u32, minor: u32) -> buttress_fs::Result<u64> {
    if major >= 1 << 12 || minor >= 1 << 20 {
        return Err(buttress_fs::Error::invalid("a device number that is too large"));
    }
    Ok(u64::from(major) << 20 | u64::from(minor))
}
