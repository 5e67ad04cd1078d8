//! The FUSE front end: a mounted volume for every program on the machine.
//!
//! [`mount`] puts a [`buttress_fs::Filesystem`] into the directory tree. [`Session::serve`] answers
//! the requests of the kernel by calls of the library, until the volume is unmounted.
//!
//! # Memory
//!
//! The kernel caches all content that is read through a mount. So a volume that is to be mounted is
//! opened with [`page_cache_bytes`](buttress_fs::MountOptions::page_cache_bytes) 0, as the
//! `buttress` program does. Otherwise clean data is in memory twice. The library's default is for
//! programs without a kernel above them.
//!
//! # What a FUSE mount cannot do
//!
//! - `sync` and syncfs(2) make data durable only on a block device ([`Options::block_device`]).
//!   Otherwise the kernel sends its dirty pages, and does not pass the call on. fsync(2) of a file
//!   or directory makes it durable, and fsync(2) of the top directory makes everything durable. The
//!   volume also commits by itself (`commit=`).
//! - Collapsing or inserting ranges is refused.
//! - Several subvolumes show as one device, unless each is mounted by itself (`submounts`). Inodes
//!   of all subvolumes but the first mounted one have large numbers, so that no two inodes have the
//!   same number.

mod error;
mod options;

mod acl;
mod apart;
mod attr;
mod errno;
mod filled_pages;
mod freed_files;
mod idmap;
mod node;

mod mount;
mod mount_list;
mod mounts;

mod counts;
mod device;
mod dispatch;
#[cfg(feature = "baselines")]
mod empty;
mod ending;
mod exchange;
mod front_end;
mod killed;
mod message_pool;
mod mount_notifier;
mod notifier_threads;
mod placement;
mod pool;
mod ring;
#[cfg(all(test, debug_assertions))]
mod seeds;
mod session;
mod sharer;
mod submounts;
mod timed;
mod whole_mount;

pub use buttress_protocol::{KINDS, kind_name};
pub use counts::{Latency, latencies, requests};
#[cfg(feature = "baselines")]
pub use empty::serve_empty;
pub use error::Error;
pub use idmap::IdMap;
pub use mount::Unmounted;
pub use mount_list::Listed;
pub use options::{KNOWN as KNOWN_OPTIONS, Options};
pub use session::{KernelSync, KnownInodes, Serving, Session, Unmounter, mount, serve_connection};
pub use sharer::Sharer;
pub use whole_mount::{Subtree, Top, can_share};

/// Bytes of memory of requests and answers, by `/dev/fuse` and by io_uring. Memory that is kept for
/// later requests counts, too.
#[must_use]
pub fn message_bytes() -> u64 {
    message_pool::touched_bytes() + ring::touched_bytes()
}
