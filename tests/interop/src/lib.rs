//! Tests of Linux and Buttress on each other's volumes: the helpers of the tests in `tests/it`.
//!
//! # Place
//!
//! This package is above all others, and no crate of the project uses it. It uses the library as a
//! program would, and Linux through its own tools.

#![forbid(unsafe_code)]

pub mod linux;
pub mod manifest;
pub mod program;
pub mod sample;
pub mod scratch;

/// Returns whether a block holds anything but zeros. One comparison is fast even in this crate,
/// which is not optimised and checks gigabytes.
pub fn holds_data(block: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    block.chunks(ZEROS.len()).any(|part| *part != ZEROS[..part.len()])
}
