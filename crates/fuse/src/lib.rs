//! The FUSE front end: a mounted volume for every program on the machine.
//!
//! Protocol in, calls to the library out. [`mount`] puts a [`buttress_fs::Filesystem`] into the
//! directory tree, [`Session::serve`] answers the kernel until it is unmounted.
//!
//! # Memory
//!
//! The kernel keeps what was read through a mount. A volume that is to be mounted is opened with
//! [`page_cache_bytes`](buttress_fs::MountOptions::page_cache_bytes) 0, as the program does, or
//! clean data is in memory twice. The library's default is for programs that have no kernel above
//! them.
//!
//! # What a FUSE mount cannot do
//!
//! - `sync` and syncfs(2) end in the kernel: it sends its dirty pages here, and never says that
//!   they shall be durable. fsync(2) of a file or directory does reach the volume and makes that
//!   one durable, of the top directory everything; and the volume commits by itself (`commit=`).
//! - Collapsing or inserting ranges is refused.
//! - Several subvolumes show as one device, unless each is mounted by itself (`submounts`); inodes
//!   of others than the mounted one have large numbers, so that no two are equal.

mod error;
mod options;

mod acl;
mod attr;
mod errno;
mod idmap;
mod leaving;
mod node;
mod shown;

mod mount;
mod mount_list;

mod aside;
mod counts;
mod device;
mod dispatch;
mod door;
#[cfg(feature = "baselines")]
mod empty;
mod exchange;
mod killed;
mod pool;
mod ring;
#[cfg(all(test, debug_assertions))]
mod seeds;
mod session;
mod sharer;
mod submounts;
mod voice;
mod whole;

pub use counts::requests;
#[cfg(feature = "baselines")]
pub use empty::serve_empty;
pub use error::Error;
pub use idmap::IdMap;
pub use mount::Unmounted;
pub use mount_list::Listed;
pub use options::{KNOWN as KNOWN_OPTIONS, Options};
pub use session::{Beside, Serving, Session, Unmounter, mount, serve_connection};
pub use sharer::Sharer;
pub use whole::{Subtree, UnderWay, can_share};
