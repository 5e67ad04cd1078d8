//! A device over a store of objects: a bucket, or a folder.
//!
//! # Place
//!
//! A [`Device`](buttress_block::Device) like any other: nothing above knows of objects. Writes go
//! to a log of immutable data objects. A map says where each sector is. Numbered manifests, each
//! created only if absent, are the commits. `docs/format/remote.md` has the format.
//!
//! # Locks
//!
//! A commit takes the newest manifest's lock, which is held across I/O, then
//! [`Rank::RemoteState`](buttress_base::Rank::RemoteState) for moments. Lines of the read cache
//! have [`Rank::Leaf`](buttress_base::Rank::Leaf).

#![forbid(unsafe_code)]

mod administer;
mod chain;
mod checkpoint;
mod claim;
mod collect;
mod copy;
mod core;
mod cut;
mod device;
mod envelope;
mod error;
mod inside;
mod lease;
mod lines;
mod manifest;
mod map;
mod names;
mod open;
mod options;
mod patient;
mod pin;
mod place;
mod random;
mod read;
mod rename;
mod segment;
mod status;
pub mod store;
mod trial;
mod units;
mod upload;
mod write;

pub use collect::Collected;
pub use copy::copy;
pub use device::RemoteDevice;
pub use error::{Error, Result};
pub use inside::{Inside, Region, host_file};
pub use open::{Opened, Site, check_alone, create, open};
pub use options::{At, OPTION_NAMES, Options};
pub use pin::Commit;
pub use place::{Divided, Place, StoreKind, divide, is_remote};
pub use status::Status;
pub use units::CommitNumber;
