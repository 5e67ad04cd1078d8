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
//! The crate runs on Linux. Paths, names of calls and kinds of errors are those of [`std::fs`].
//!
//! # Opening
//!
//! [`Filesystem::open`] opens an image file or a block device, and with the feature `stores` every
//! place that the program `buttress` knows. [`OpenOptions`] opens a volume with
//! options, on several devices, or on a [`Device`] that the program implements. One program at a
//! time can have a volume open: a second program gets [`ErrorKind::Busy`]. Clones of a
//! [`Filesystem`] are handles of the same volume, and threads may share them.
//!
//! # Files
//!
//! [`Filesystem`] has calls by path: [`read`](Filesystem::read), [`write`](Filesystem::write),
//! [`create_dir_all`](Filesystem::create_dir_all), [`read_dir`](Filesystem::read_dir),
//! [`rename`](Filesystem::rename) and the like. A [`File`] is open: it has [`std::io::Read`],
//! [`std::io::Write`] and [`std::io::Seek`], and reads and writes at offsets.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let fs = buttress::CreateOptions::new(256 << 20).create(folder.path().join("a.img"))?;
//! use std::io::Write;
//!
//! let mut log = fs.open_with("/log", &buttress::FileOptions::new().append(true).create(true))?;
//! writeln!(log, "started")?;
//! log.sync_all()?;
//! let names: Vec<_> = fs.read_dir("/")?.map(|entry| entry.map(|it| it.path())).collect();
//! assert_eq!(names.len(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Snapshots
//!
//! A subvolume is a tree of files that can be copied in an instant. The copy shares all content
//! with its source, and takes space only for what changes later:
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
//! [`Filesystem::snapshot`] returns the state of the volume at one moment, for reading. This
//! snapshot has no name on the volume.
//!
//! # fs-verity
//!
//! [`Filesystem::enable_verity`] makes a Merkle tree of a file. The content then never changes, and
//! each read is compared with the tree.
//!
//! # Several files together
//!
//! [`Filesystem::transaction`] changes several files together or not at all, also after a crash.
//!
//! # Errors
//!
//! Every call returns [`Error`]. It has a kind, the operation and the path, and turns into
//! [`std::io::Error`] with `?`. A program decides by the [`ErrorKind`]:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let fs = buttress::CreateOptions::new(256 << 20).create(folder.path().join("a.img"))?;
//! let text = match fs.read_to_string("/settings") {
//!     Ok(text) => text,
//!     Err(error) if error.kind() == buttress::ErrorKind::NotFound => String::new(),
//!     Err(error) => return Err(error.into()),
//! };
//! # assert!(text.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # Resources
//!
//! - **Memory**: 64 MiB by default ([`OpenOptions::memory`]) for tree nodes, pages, dirty data and
//!   changes that are not committed. A volume in a store has half of it, and at least 16 MiB, for
//!   its map, a read cache and objects on their way.
//! - **Threads**: none, unless [`OpenOptions::background`] asks for them. Without threads, a call
//!   writes back and commits when the memory is full. [`Filesystem::sync`] does so at any time.
//! - **Durability**: a change is durable after [`File::sync_all`], [`Filesystem::sync`] or
//!   [`Filesystem::close`]. After a crash the volume has the last commit, and all files synced
//!   since.
//! - **Permissions**: the library stores them and does not check them.
//!
//! # Features
//!
//! All features but `stores` are on by default.
//!
//! | feature | what it adds |
//! |---|---|
//! | `io-uring` | several requests to a device in one system call |
//! | `lzo` | files compressed with LZO |
//! | `mkfs` | `CreateOptions`: creating volumes |
//! | `send` | the module `send`: making and receiving streams of `btrfs send` |
//! | `stores` | volumes in stores (`s3://bucket/volume`) and parts of disks (`disk.img#2`) |
//! | `zstd` | files compressed with zstd; the build then needs a C library |
//!
//! Without the codec of a compression, opening a volume with such files fails and names the codec.
//!
//! # Where things are
//!
//! [`Filesystem`] has calls by path, [`File`] is an open file, [`Admin`] has the tasks of an
//! operator: space, devices, scrub and balance. A program needs no other crate of the project:
//!
//! - [`admin`] has the types of [`Admin`], such as filters, the superblock and the accounts.
//! - [`device`] has the types with which a program implements [`Device`].
//! - [`engine`] is the crate below, reached by [`Filesystem::engine`] and [`File::inode`].
//! - `make` has the types of [`MakeOptions`](engine::MakeOptions). It needs the feature `mkfs`.
//! - `send` makes and receives streams of `btrfs send`. It needs the feature `send`.

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
mod verity;

pub mod admin;
pub mod device;
mod filesystem;
#[cfg(feature = "mkfs")]
pub mod make;
mod node;
mod options;
mod place;

pub use admin::Admin;
pub use buttress_block::{Device, FileDevice, MemoryDevice};
pub use buttress_fs as engine;
pub use buttress_fs::{
    BalanceOptions, BalanceProgress, DeviceId, DeviceInfo, FileKind, Generation, HashKind, Info,
    Ino, InodeId, Interrupt, ScrubOptions, ScrubProgress, SetAttr, SpaceStats, StatFs,
    SubvolumeInfo, Timespec, TreeId, TrimOptions, TrimProgress, VerityDescriptor, VerityOptions,
};
#[cfg(feature = "send")]
pub use buttress_send as send;
pub use dir::{DirEntry, ReadDir};
pub use error::{Error, ErrorKind, Result};
pub use file::{File, FileOptions};
pub use filesystem::Filesystem;
#[cfg(feature = "mkfs")]
pub use make::MakeOptions;
pub use metadata::Metadata;
pub use node::NodeKind;
#[cfg(feature = "mkfs")]
pub use options::CreateOptions;
pub use options::OpenOptions;
pub use snapshot::Snapshot;
pub use transaction::Transaction;
