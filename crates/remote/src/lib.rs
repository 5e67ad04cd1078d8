//! A device over a store of objects: a bucket, or a folder.
//!
//! # Place
//!
//! The volume is a [`Device`](buttress_block::Device) like any other: no crate above knows of
//! objects. Writes go to a log of immutable data objects. A map says where each sector is. Numbered
//! manifests, each created only if absent, are the commits. `docs/format/remote.md` has the format.
//!
//! # Locks
//!
//! A commit takes the newest manifest's lock, which is held across I/O, then
//! [`Rank::RemoteState`](buttress_base::Rank::RemoteState) for a short time. A flush to the local
//! log takes the log's lock, which is held across I/O, before the lock of the state. Lines of the
//! read cache have [`Rank::Leaf`](buttress_base::Rank::Leaf).

#![forbid(unsafe_code)]

mod administer;
mod ahead;
mod behind;
mod budget;
mod cache;
mod cache_seal;
mod chain;
mod checkpoint;
mod claim;
mod collect;
mod copy;
mod core;
mod cut;
mod delete;
mod device;
mod disk_index;
mod disk_lines;
mod disk_slot;
mod envelope;
mod error;
mod fetch;
mod follow;
mod grow;
mod guard;
mod inside;
mod keyed;
mod keys;
mod lease;
mod lines;
mod load;
mod local;
mod log;
mod log_base;
mod manifest;
mod map;
mod map_cache;
mod names;
mod open;
mod options;
mod pin;
mod place;
mod random;
mod read;
mod rename;
mod retrying;
mod salvage;
mod seal;
mod secret;
mod segment;
mod signals;
mod spare;
mod status;
mod sweep;
mod trial;
mod units;
mod unsent;
mod upload;
mod write;

pub use behind::Behind;
pub use buttress_store as store;
pub use collect::Collected;
pub use copy::copy;
pub use device::RemoteDevice;
pub use error::{Error, Result};
pub use follow::Newest;
pub use guard::overwritten;
pub use inside::{Inside, Region, host_file};
pub use open::{Opened, Site, check_alone, create, open};
pub use options::{At, Durability, MOUNT_OPTION_NAMES, OPTION_NAMES, OpenRequest, Options};
pub use pin::Commit;
pub use place::{Divided, Place, StoreKind, divide, is_remote};
pub use secret::Secret;
pub use status::Status;
pub use units::CommitNumber;
pub use unsent::Unsent;
