//! Operations on names and inodes, one file for each.
//!
//! # Invariants
//!
//! - **O1** Each operation that changes something has the same steps. It locks the inodes that it
//!   concerns, reads the trees and collects its changes. It reserves their cost, which may wait for
//!   a commit. Then it begins a handle, puts the changes and drops the handle. While a handle
//!   lives, the thread does no device I/O and does not wait.
//! - **O2** An operation that frees space may use the global reserve.

mod adopt;
mod clone;
mod content;
mod create;
mod defragment;
mod flags;
mod link;
mod lookup;
mod move_subvolume;
mod preserve_times;
mod privileges;
mod readdir;
mod rename;
mod setattr;
mod side;
mod subvolume;
mod symlink;
mod together;
mod unlink;
mod verity;
mod xattr;

pub use create::NewInode;
pub use preserve_times::PreserveTimes;
pub use together::{NameChange, NameDir};
pub use verity::VerityOptions;
