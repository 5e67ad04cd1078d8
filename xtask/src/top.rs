//! The place of the project.

use std::path::PathBuf;

/// The top of the working tree that `cargo xtask` was called in.
///
/// Cargo passes this path when it runs the program. The path from the build may belong to another
/// tree: several trees can share a folder of built programs.
pub(crate) fn top() -> PathBuf {
    let built = || env!("CARGO_MANIFEST_DIR").into();
    let mut top = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(built, PathBuf::from);
    top.pop();
    top
}
