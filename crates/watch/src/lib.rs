//! What running mounts and servers report, for people and for Prometheus.
//!
//! # Place
//!
//! Above `control`, which asks the servers, and below the program. Everything here takes answers
//! and returns text or cells. It asks nothing and prints nothing.
//!
//! # What must hold
//!
//! - Names of files reach every output escaped, so that no name changes what a reader sees.

#![forbid(unsafe_code)]

pub mod openmetrics;
pub mod quantity;
pub mod screen;
pub mod tables;
