//! Volumes and messages made to do harm, and what is done with them.
//!
//! # Place
//!
//! Above everything. The tests of this package run each target from seeds; the folder `fuzz` runs
//! the same targets under libFuzzer. Nothing of the project uses this.
//!
//! # What must hold
//!
//! Whatever a target is given: no panic in any thread, no end that does not come, no memory that
//! only a number in the input asked for.

#![forbid(unsafe_code)]

pub mod cache;
pub mod checker;
pub mod dice;
pub mod exercise;
pub mod image;
pub mod mutate;
pub mod requests;
pub mod sample;
pub mod seeds;
pub mod small;
pub mod steps;
pub mod stores;
pub mod streams;
pub mod targets;
pub mod trees;
