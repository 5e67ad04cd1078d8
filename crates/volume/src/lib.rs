//! Many devices as one logical address space: chunk map, profiles, mirrors, repair, superblocks.
//!
//! # Place
//!
//! The crate is above `block`, which knows one device, and below `tree`, which knows nodes. Callers
//! *give* the chunks to this crate. This crate never reads the chunk tree, since that tree lies in
//! the address space that this crate makes.

#![forbid(unsafe_code)]

mod chunk_map;
mod deferred;
pub mod device;
pub mod device_space;
pub mod error;
pub mod journal;
mod known_chunks;
mod layout;
mod open;
mod pair;
mod params;
mod parity;
pub mod patch;
pub mod place;
mod read;
mod read_many;
mod recover;
mod replace;
mod resolver;
mod row_scrub;
mod rows;
mod salvage;
mod scrub;
mod seed_ids;
mod seeds;
pub mod stats;
mod stripe_items;
mod superblocks;
mod target;
mod target_item;
pub mod volume;
mod write;

pub use device::{DeviceTrust, Fault, VolumeDevice};
pub use device_space::DeviceSpace;
pub use error::{Error, Kind, Uuid};
pub use open::OpenOptions;
pub use pair::Pair;
pub use params::{Params, Parity};
pub use read_many::SOON_MAX;
pub use resolver::ChunkSource;
pub use row_scrub::{FoundParity, Sector};
pub use rows::{RowGaps, new_rows};
pub use scrub::{Compared, OnDevice};
pub use seed_ids::{SeedIds, is_seed};
pub use seeds::holds_seed;
pub use stats::Stats;
pub use target::Target;
pub use volume::Volume;
pub use write::{Copies, NotDurable};
