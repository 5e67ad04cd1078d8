//! A btrfs volume inside a program: files by path, snapshots, checksums, compression.
//!
//! The volume is an ordinary btrfs, in a file or on a device. Linux mounts it, `btrfs check` passes
//! it, and this crate needs neither the kernel's btrfs nor root.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("notes.img");
//! // Makes a sparse image of 256 MiB with a volume in it.
//! let fs = buttress::CreateOptions::new(256 << 20).label("notes").create(&image)?;
//! fs.create_dir_all("/2026/march")?;
//! fs.write("/2026/march/first.txt", "hello")?;
//! fs.close()?;
//!
//! let fs = buttress::Filesystem::open(&image)?;
//! assert_eq!(fs.read_to_string("/2026/march/first.txt")?, "hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Snapshots
//!
//! A subvolume is a tree of files that can be copied in an instant:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let fs = buttress::CreateOptions::new(256 << 20).create(folder.path().join("a.img"))?;
//! fs.create_subvolume("/plans")?;
//! fs.write("/plans/text", "one")?;
//! fs.create_snapshot("/plans", "/monday", true)?;
//! fs.write("/plans/text", "two")?;
//! assert_eq!(fs.read("/monday/text")?, b"one");
//! # Ok(())
//! # }
//! ```
//!
//! # Several files together
//!
//! [`Filesystem::transaction`] changes several files together or not at all, also after a crash.
//! [`Filesystem::snapshot`] is one moment of the volume, for reading.
//!
//! # What it takes
//!
//! - **Memory**: 64 MiB by default ([`OpenOptions::memory`]) for tree nodes, pages, dirty data and
//!   changes that are not committed.
//! - **Threads**: none, unless [`OpenOptions::background`] asks for them. Without them a call of
//!   the program writes back and commits when its memory is full, and [`Filesystem::sync`] at any
//!   time.
//! - **Durability**: a change is durable after [`File::sync_all`], [`Filesystem::sync`] or
//!   [`Filesystem::close`]. A crash leaves the last commit, and what was synced since.
//! - **Permissions** are kept and not checked.
//!
//! # Where things are
//!
//! [`Filesystem`] has the calls of `std::fs` by path, [`File`] is an open file, [`Admin`] is what
//! an operator does. The engine below is `buttress_fs`; [`Filesystem::engine`] and [`File::inode`]
//! lead there.

#![forbid(unsafe_code)]

mod error;
mod look;
mod many;
mod metadata;

mod walk;

mod dir;
mod file;

mod snapshot;
mod transaction;

mod admin;
mod filesystem;
mod options;

pub use admin::Admin;
pub use buttress_block::{Device, FileDevice, MemoryDevice};
pub use buttress_format::DeviceId;
pub use buttress_fs::{
    BalanceOptions, BalanceProgress, DeviceInfo, FileKind, Generation, Info, Ino, InodeId,
    ScrubOptions, ScrubProgress, SetAttr, SpaceStats, StatFs, SubvolumeInfo, Timespec, TreeId,
    TrimOptions, TrimProgress,
};
#[cfg(feature = "send")]
pub use buttress_send as send;
pub use dir::{DirEntry, ReadDir};
pub use error::{Error, ErrorKind, Result};
pub use file::{File, FileOptions};
pub use filesystem::Filesystem;
pub use metadata::Metadata;
#[cfg(feature = "mkfs")]
pub use options::CreateOptions;
pub use options::OpenOptions;
pub use snapshot::Snapshot;
pub use transaction::Transaction;
