//! What can be done with names and inodes, one file an operation.
//!
//! # Invariants
//!
//! - **O1** Each operation that changes something goes the same way: lock the inodes it concerns;
//!   read the trees; gather the changes; reserve what they cost, which may wait for a commit; begin
//!   a handle; put; drop the handle. No device I/O and no waiting while a handle lives.
//! - **O2** An operation that frees space in the end may use the last reserve.

mod clone;
mod content;
mod create;
mod defragment;
mod flags;
mod keeping_times;
mod link;
mod lookup;
mod move_subvolume;
mod privileges;
mod readdir;
mod rename;
mod setattr;
mod side;
mod subvolume;
mod symlink;
mod together;
mod unlink;
mod xattr;

pub use keeping_times::KeepingTimes;
pub use together::{NameChange, NameDir};
