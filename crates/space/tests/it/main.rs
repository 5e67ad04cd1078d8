//! The gate of the crate: what it promises, whatever the order of calls.

mod gate;
mod model;
mod stress;
mod world;
