//! The invariants of the crate, for any order of calls.

mod gate;
mod kept;
#[cfg(debug_assertions)]
mod life;
mod model;
mod quiet;
mod regressions;
mod rows;
mod stress;
mod world;
