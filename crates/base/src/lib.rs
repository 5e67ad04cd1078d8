//! The foundation: latches, ranges, sets, shared maps, queues, aligned buffers, locks, threads,
//! time, seeded randomness, and what threads wait for. This crate knows nothing of the disk format.
//!
//! # Place
//!
//! Every crate depends on this one. This crate depends on the standard library, `parking_lot`,
//! `rustix` and `crossbeam-utils`. It knows neither devices nor trees, except in [`Rank`], which
//! names all short locks. The order of locks must be one list, and only the lowest crate can hold
//! that list. The engine takes locks, threads and time only from this crate, so that in a test one
//! seed can decide the order of everything. The module for that is `seeded`. Debug builds, and
//! release builds with `--cfg buttress_seeded`, have this module.

#![deny(unsafe_code)]

pub mod activity;
pub mod aligned;
pub mod clock;
pub mod cow_map;
pub mod event;
pub mod interrupt;
pub mod latch;
pub mod nearest;
pub mod queue;
pub mod range_set;
pub mod rank;
pub mod rng;
pub mod sector_set;
#[cfg(any(debug_assertions, buttress_seeded))]
pub mod seeded;
pub mod sets;
pub mod shard;
pub mod sync;
pub mod text;
pub mod thread;

pub use aligned::AlignedBuf;
pub use cow_map::CowMap;
pub use crossbeam_utils::CachePadded;
pub use event::Event;
pub use interrupt::Interrupt;
pub use latch::Latch;
pub use range_set::RangeSet;
pub use rank::{Rank, Ranked, RankedGuard};
pub use rng::Rng;
pub use sector_set::SectorSet;
