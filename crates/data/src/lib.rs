//! Bytes of files: delayed allocation, read, write, writeback, holes, preallocation.
//!
//! This crate knows a tree, an inode number and ranges. It knows no names and no list of inodes,
//! and has no threads except those that read ahead. [`Files`] is what all files of a volume share,
//! and [`File`] is one file in memory. Every operation is a method of the first on the second.

mod error;
mod exclusive;

mod backoff;
mod claim;
mod codec;
mod compress;
mod covered;
mod dirty;
mod drop_extents;
mod extent_map;
mod file;
mod files;
mod fresh;
mod heuristic;
mod job;
mod pack;
mod packing;
mod pages;
#[cfg(test)]
mod pages_tests;

mod reservation;
mod step;

mod ahead;
mod allocate;
mod allocate_range;
mod clone;
mod defragment;
mod finish;
mod helpers;
mod in_place;
mod prepared;
mod punch;
mod read;
mod read_long;
mod read_packed;
mod read_plan;
mod remove;
mod replay;
mod seek;
mod streams;
mod sync;
mod truncate;
mod unpacked;
mod write;
mod write_through;
mod writeback;

pub use ahead::Ahead;
pub use clone::CloneRange;
pub use codec::Codec;
pub use compress::decompress;
pub use defragment::Defragment;
pub use error::{Error, Result};
pub use file::File;
pub use files::{Files, FilesOptions, NocowCheck};
pub use pages::ReadBatch;
pub use prepared::PreparedData;
pub use read::DataMismatch;
pub use remove::Removal;
pub use reservation::ReclaimEffort;
pub use writeback::Written;
