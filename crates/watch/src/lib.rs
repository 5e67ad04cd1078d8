//! The figures of running mounts and servers, for people and for Prometheus; pictures of volumes.
//!
//! # Place
//!
//! This crate is above `control`, which asks the servers, and below the program. All functions here
//! take answers and return text or cells. They ask no server and print nothing.
//!
//! # What must hold
//!
//! - Names of files reach every output escaped, so that no name changes what a reader sees.

#![forbid(unsafe_code)]

pub mod map;
pub mod openmetrics;
pub mod quantity;
pub mod screen;
pub mod tables;
