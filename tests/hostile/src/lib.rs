//! Volumes and messages made to do harm, and the code that processes them.
//!
//! # Place
//!
//! This package is above all others, and no crate of the project uses it. Its tests run each target
//! from seeds. The folder `fuzz` runs the same targets under libFuzzer.
//!
//! # What must hold
//!
//! For any input of a target, no thread panics, the target ends, and no number of the input alone
//! makes the target allocate much memory.

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
