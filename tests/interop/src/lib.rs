//! What Linux and Buttress make of each other's volumes: the helpers of the tests in `tests/it`.
//!
//! # Place
//!
//! Above everything: uses the library as a program would, and Linux through its own tools. Nothing
//! of the project uses this.

#![forbid(unsafe_code)]

pub mod linux;
pub mod manifest;
pub mod program;
pub mod sample;
pub mod scratch;

/// Says whether a block holds anything but zeros, by one comparison: this crate is not optimised,
/// and is shown gigabytes.
pub fn holds_data(block: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    block.chunks(ZEROS.len()).any(|part| *part != ZEROS[..part.len()])
}
