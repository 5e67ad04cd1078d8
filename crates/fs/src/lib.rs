//! Names, inodes, subvolumes: a btrfs volume as a library.
//!
//! [`Filesystem`] is one mounted volume, [`Inode`] one file or directory in it. Both are cheap to
//! clone and may be used from any number of threads; every call blocks until it is answered.

mod error;
mod options;

mod attr;
mod statfs;

mod filesystem;
mod inode;
mod ops;

pub mod make;

pub use attr::{Attr, FileKind, InodeId, SetAttr, mode};
pub use buttress_format::{Ino, Timespec, TreeId};
pub use error::{Error, ErrorKind, NameError, Result};
pub use filesystem::Filesystem;
pub use inode::{DirEntry, FallocateMode, Inode, RenameFlags, XattrFlags};
pub use options::{Atime, MountOptions};
pub use statfs::{Info, StatFs, SubvolumeInfo};
