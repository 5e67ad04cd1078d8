//! A write-back cache in dm-writecache's format, on a fast device in front of a slow one.
//!
//! # Place
//!
//! The cache and its origin form one device, so everything that takes a device can use it
//! unchanged. On disk, the cache has exactly the format of Linux's dm-writecache ([`layout`]). In
//! memory, the cache works differently: the index has shards, commits run beside writes, and
//! write-back sweeps in the order of the origin by default. [`options::Writeback`] also has the
//! orders of Linux, for comparison.
//!
//! `docs/internals/cache.md` explains the protocol; the headers of the modules name its rules.

#![deny(unsafe_code)]

mod background;
mod commit;
mod core;
mod count;
pub mod device;
mod discard;
mod drain;
pub mod error;
pub mod format;
mod gate;
mod identity;
mod index;
pub mod inspect;
pub mod layout;
mod medium;
pub mod options;
mod origin;
pub mod pmem;
mod read;
mod recover;
mod slots;
pub mod status;
mod sweep;
mod table;
pub mod units;
mod write;

pub use device::{CacheDevice, Drained};
pub use error::Error;
pub use format::format;
pub use options::{CacheOptions, Mode, Writeback};
pub use pmem::PmemDevice;
pub use status::Status;
