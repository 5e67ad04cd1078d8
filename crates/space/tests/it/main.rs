//! The invariants of the crate, for any order of calls.

mod gate;
mod kept;
mod known;
#[cfg(debug_assertions)]
mod life;
mod model;
mod quiet;
mod rows;
mod stress;
mod world;
