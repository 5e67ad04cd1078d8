//! Ground: latches, ranges, shared maps, aligned buffers, locks, threads, time, seeded chance. No
//! disk words in here.
//!
//! # Place
//!
//! Every crate rests on this one; it rests on the standard library, `parking_lot`, `rustix` and
//! `crossbeam-utils`. Nothing here knows what a device or a tree is, except [`Rank`], which names
//! all short locks. The order of locks must be one list, and a list of all locks can only live
//! below all crates. The engine takes locks, threads and time from here alone, so that one seed can
//! decide all of them. That is `seeded`, in debug builds and in release builds with
//! `--cfg buttress_seeded`.

#![deny(unsafe_code)]

pub mod aligned;
pub mod clock;
pub mod cow_map;
pub mod event;
pub mod interrupt;
pub mod latch;
pub mod nearest;
pub mod range_set;
pub mod rank;
pub mod rng;
#[cfg(any(debug_assertions, buttress_seeded))]
pub mod seeded;
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
pub use rank::{Held, Rank, Ranked};
pub use rng::Rng;
