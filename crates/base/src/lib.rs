//! Ground: latches, ranges, aligned buffers, seeded chance. No disk words in here.
//!
//! # Place
//!
//! Every crate rests on this one; it rests on the standard library and `parking_lot`. Nothing here
//! knows what a device or a tree is, except that [`Rank`] names who takes which short lock: the
//! order of locks must be one list, and a list of everybody's locks can only live below everybody.

#![deny(unsafe_code)]

pub mod aligned;
pub mod latch;
pub mod range_set;
pub mod rank;
pub mod rng;

pub use aligned::AlignedBuf;
pub use latch::Latch;
pub use range_set::RangeSet;
pub use rank::{Held, Rank, Ranked};
pub use rng::Rng;
