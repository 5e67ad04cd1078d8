//! Names, inodes, subvolumes: a btrfs volume as a library.
//!
//! [`Filesystem`] is one mounted volume, [`Inode`] one file or directory in it. Both are cheap to
//! clone and may be used from any number of threads. Every call blocks until it has its result.
//!
//! ```
//! use std::sync::Arc;
//!
//! use buttress_block::{Device, MemoryDevice};
//! use buttress_fs::{Filesystem, MakeOptions, MountOptions, NewInode};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(128 << 20));
//! Filesystem::make(&*device, &MakeOptions::default())?;
//!
//! let fs = Filesystem::open(vec![Arc::clone(&device)], MountOptions::default())?;
//! let file = fs.root().create(b"greeting", NewInode::file(0o644))?;
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
//! # Layers
//!
//! A module uses the modules above it in this list. Neighbours on a line use each other without
//! cycles.
//!
//! ```text
//! options                        types of the interface
//! inode_table, clean_queue,      one inode in memory; the table and queue that it reports to
//!   cell, lock_set, trees
//! status, inodes, writeback,     the owners: each owns one kind of state, with its locks
//!   cleaner, space, upkeep
//! mount, background, open        the owners side by side, their threads, opening
//! inode, ops                     operations on one inode, one file for each
//! filesystem, subvolume, inspect the volume as a whole
//! ```

mod baselines;
mod options;
mod sprout;
mod statfs;

pub use buttress_make as make;

mod cell;
mod clean_queue;
mod inode_table;
mod lock_set;
mod pending_times;
mod trees;

mod aside;
mod cleaner;
mod inodes;
mod space;
mod status;
mod stop;
mod threads;
mod throttle;
mod times;
mod upkeep;
mod writeback;

mod background;
mod mount;
mod open;
mod replay;

mod devices;
mod filesystem;
mod inode;
mod inspect;
mod label;
mod ops;
mod quota;
mod renew;
mod replace;
mod scrubs;
mod space_stats;
mod subvolume;
mod sync_stats;

#[cfg(test)]
mod gated_device;
#[cfg(test)]
mod regressions;
#[cfg(test)]
mod upkeep_tests;

pub use baselines::Baselines;
pub use buttress_base::Interrupt;
pub use buttress_data::{Codec, Defragment, NocowCheck, PageStats, Piece, ReadBatch};
pub use buttress_format::{
    DevStats, DeviceId, DeviceItem, Generation, HashKind, Ino, InodeFlags, Key, Kind, Logical,
    RootFlags, RootItem, Superblock, Timespec, TreeId, VerityDescriptor,
};
pub use buttress_items::{
    Attr, Error, ErrorKind, FileKind, InodeId, NameError, Result, SetAttr, mode,
};
pub use buttress_log::SyncStats;
pub use buttress_maintenance::{
    BalanceOptions, BalanceProgress, DeviceCounts, Filter, LoopSteps, ScrubOptions, ScrubProgress,
    TrimOptions, TrimProgress,
};
pub use buttress_make::clock::{be_repeatable, now};
pub use buttress_tree::Steps;
pub use buttress_txn::CommitReason;
pub use buttress_txn::{
    Account, Accounts, Cost, FlushState, FlushSteps, GroupsRead, HeldCommit, KindUsage, Preempt,
    Reach, Refusal, SpaceKind, Stats, StepFigures, Usage, Waits, WaitsByQueue,
};
pub use buttress_volume::{DeviceTrust, Parity, Stats as IoStats, Uuid, holds_seed};
pub use filesystem::Filesystem;
pub use inode::{DirEntry, FallocateMode, Inode, RenameFlags, XattrFlags};
pub use inspect::{Searched, TreeItem};
pub use make::{MakeOptions, MakeReport};
pub use ops::{NameChange, NameDir, NewInode, PreserveTimes, VerityOptions};
pub use options::{Atime, MountOptions, OPTION_NAMES, unknown as unknown_option};
pub use quota::{QuotaGroup, QuotaInfo, QuotaLimit, QuotaStatus, QuotaUse, Quotas};
pub use space_stats::{SpaceStats, WaitingBytes};
pub use statfs::{DeviceInfo, Info, StatFs, SubvolumeInfo};
pub use subvolume::ReceivedUuid;
pub use upkeep::{BalanceStatus, ReplaceState, ReplaceStatus, Stopped};
