//! What of the `buttress` program is of use without its command line: copies of trees between the host and volumes,
//! with what they say and how they fail.
//!
//! The program is `main.rs`; this is a library so that tests which feed copies with hostile trees can call them
//! as often as they like without starting a process each time.

pub mod exit;
pub mod listing;
pub mod location;
pub mod transfer;
pub mod ui;
