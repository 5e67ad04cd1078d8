//! Linux's own btrfs: its tools, loop devices, mounts.
//!
//! # Invariants
//!
//! - **L1** What a guard attached or mounted is detached or unmounted when it drops, also when a
//!   test fails; a test leaves nothing behind that the next would meet.

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
