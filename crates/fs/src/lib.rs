//! Names, inodes, subvolumes: a btrfs volume as a library.
//!
//! [`Filesystem`] is one mounted volume, [`Inode`] one file or directory in it. Both are cheap to
//! clone and may be used from any number of threads; every call blocks until it is answered.

mod clock;
mod error;
mod options;

pub mod make;

mod attr;
mod statfs;

mod acl;
mod batch;
mod cell;
mod inode_cache;
mod inode_refs;
mod lock_set;
mod names;
mod trees;

mod background;
mod mount;
mod orphan;
mod shared;

mod filesystem;
mod inode;
mod ops;

pub use attr::{Attr, FileKind, InodeId, SetAttr, mode};
pub use buttress_format::{Ino, InodeFlags, Timespec, TreeId};
pub use error::{Error, ErrorKind, NameError, Result};
pub use filesystem::Filesystem;
pub use inode::{DirEntry, FallocateMode, Inode, RenameFlags, XattrFlags};
pub use make::{MakeOptions, MakeReport};
pub use options::{Atime, MountOptions};
pub use statfs::{Info, StatFs, SubvolumeInfo};
