//! Bytes of files: delayed allocation, read, write, writeback, holes, preallocation.
//!
//! The crate works on a tree, an inode number and ranges. It has no names and no list of inodes.
//! Its only lasting threads read ahead. [`Files`] holds the parts that all files of a volume share,
//! and [`File`] is one file in memory. Every operation on a file is a method of [`Files`] or of one
//! of its parts.

mod error;

mod backoff;
mod buffers;
mod claim;
mod codec;
mod compress;
mod dirty;
mod drop_extents;
mod extent_map;
mod file;
mod heuristic;
mod in_place_hints;
mod job;
mod pack;
mod pages;
#[cfg(test)]
mod pages_tests;
mod sequential;
mod step;
mod streams;
mod sync;
mod verity;

mod growth;
mod packing;
mod params;

mod counters;
mod placement;
mod reader;
mod writeback;

mod files;

mod adopt;
mod allocate_range;
mod clone;
mod defragment;
mod punch;
mod remove;
mod replay;
mod truncate;
mod write;
mod write_through;

pub use adopt::Piece;
pub use clone::CloneRange;
pub use codec::Codec;
pub use compress::decompress;
pub use counters::Counters;
pub use defragment::Defragment;
pub use error::{Error, Result};
pub use file::File;
pub use files::Files;
pub use pages::{PageStats, ReadBatch};
pub use params::{FilesOptions, NocowCheck};
pub use placement::ReclaimEffort;
pub use reader::{Ahead, DataMismatch, Reader};
pub use remove::Removal;
pub use sequential::Coming;
pub use verity::VerityTree;
pub use writeback::{PreparedData, Writeback, Written};
