//! Linux's own btrfs: its tools, loop devices, mounts.
//!
//! # Invariants
//!
//! - **L1** A guard detaches its device or unmounts its mount when it is dropped, also if a test
//!   fails. So no test leaves anything behind for the next test.

mod command;
mod image;
mod loop_device;
mod mount;
mod part;
mod requirements;

pub use command::{run, try_run};
pub use image::{Images, check, check_all, save, sparse_copy, sparse_file};
pub use mount::{Mount, unmount};
pub use part::Part;
pub use requirements::{can_mount_fuse, has_linux_btrfs, has_program};
