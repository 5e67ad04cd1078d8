//! Names, inodes, subvolumes: a btrfs volume as a library.
//!
//! [`Filesystem`] is one mounted volume, [`Inode`] one file or directory in it. Both are cheap to
//! clone and may be used from any number of threads; every call blocks until it is answered.
//!
//! ```
//! use std::sync::Arc;
//!
//! use buttress_block::{Device, MemoryDevice};
//! use buttress_fs::{Filesystem, MakeOptions, MountOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(128 << 20));
//! Filesystem::make(&*device, &MakeOptions::default())?;
//!
//! let fs = Filesystem::open(vec![Arc::clone(&device)], MountOptions::default())?;
//! let file = fs.root().create(b"greeting", 0o644, 0, 0, 0)?;
//! file.write_at(0, b"hello")?;
//! file.sync()?;
//! drop(file);
//! fs.close()?;
//!
//! let fs = Filesystem::open(vec![device], MountOptions::parse("ro")?)?;
//! let mut text = [0; 5];
//! fs.resolve("greeting")?.read_at(0, &mut text)?;
//! assert_eq!(&text, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Where things are
//!
//! ```text
//! mount, filesystem     opening, closing, asking about the whole
//! inode, ops            what can be done with one inode, an operation a file
//! cell, inode_cache     inodes in memory: one cell for all users of an inode
//! names, inode_refs     the items that names have, in the directory and at the inode
//! property              how an inode says it shall be compressed
//! batch, lock_set       how an operation gathers its changes, and locks what it concerns
//! flush, throttle       writeback, and how fast writers may be
//! background, orphan    removal and commits that nobody asked for
//! upkeep                the volume as a whole: balance, devices, groups that are emptied
//! replay                logs of fsync, when a volume is mounted
//! trees, subvolume      subvolumes
//! make                  new volumes
//! ```

mod clock;
mod error;
mod options;

pub mod make;

mod attr;
mod statfs;

mod acl;
mod batch;
mod cell;
#[cfg(test)]
mod doors;
mod inode_cache;
mod inode_refs;
#[cfg(test)]
mod known;
mod lock_set;
mod names;
mod subvolume_items;
mod trees;
mod xattr_items;

mod background;
mod baselines;
mod flush;
mod mount;
mod orphan;
mod preempt;
mod property;
mod replay;
mod room;
mod shared;
mod space_stats;
mod sync_stats;
mod throttle;
mod upkeep;

mod filesystem;
mod inode;
mod ops;
mod subvolume;

pub use attr::{Attr, FileKind, InodeId, SetAttr, mode};
pub use baselines::Baselines;
pub use buttress_base::Interrupt;
pub use buttress_data::{Codec, Defragment, NocowCheck, ReadBatch};
pub use buttress_format::{Generation, Ino, InodeFlags, RootFlags, RootItem, Timespec, TreeId};
pub use buttress_log::SyncStats;
pub use buttress_maintenance::{
    BalanceOptions, BalanceProgress, Filter, ScrubOptions, ScrubProgress, TrimOptions, TrimProgress,
};
pub use buttress_txn::{
    Account, Accounts, FlushSteps, GroupsRead, Preempt, Reach, Refusal, SpaceKind, Stats, Step,
    StepFigures, Waits, WaitsByLine,
};
pub use buttress_volume::{Parity, Stats as IoStats};
pub use clock::now;
pub use error::{Error, ErrorKind, NameError, Result};
pub use filesystem::Filesystem;
pub use inode::{DirEntry, FallocateMode, Inode, RenameFlags, XattrFlags};
pub use make::{MakeOptions, MakeReport};
pub use ops::{KeepingTimes, NameChange, NameDir};
pub use options::{Atime, MountOptions, OPTION_NAMES, unknown as unknown_option};
pub use space_stats::SpaceStats;
pub use statfs::{DeviceInfo, Info, StatFs, SubvolumeInfo};
pub use subvolume::Received;
pub use upkeep::BalanceStatus;
