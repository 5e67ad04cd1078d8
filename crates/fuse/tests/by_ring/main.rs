//! The tests of `it` once more, with requests that come by io_uring.
//!
//! The kernel offers io_uring if `fuse.enable_uring` is on. These tests switch it on, and leave it
//! on. On a kernel without io_uring for FUSE (before Linux 6.14), they report that they are
//! skipped.

#[path = "../it/access_times.rs"]
mod access_times;
#[path = "../it/attributes.rs"]
mod attributes;
#[path = "../it/calls.rs"]
mod calls;
#[path = "../it/coherence.rs"]
mod coherence;
#[path = "../it/commands.rs"]
mod commands;
#[path = "../it/content.rs"]
mod content;
#[path = "../it/deleted.rs"]
mod deleted;
#[path = "../it/full.rs"]
mod full;
#[path = "../it/held_locks.rs"]
mod held_locks;
#[path = "../it/ioctls.rs"]
mod ioctls;
#[path = "../it/killed.rs"]
mod killed;
#[path = "../it/lifetime.rs"]
mod lifetime;
#[path = "../it/linux.rs"]
mod linux;
#[path = "../it/listing.rs"]
mod listing;
#[path = "../it/lists.rs"]
mod lists;
#[path = "../it/mounted.rs"]
mod mounted;
#[path = "../it/names.rs"]
mod names;
#[path = "../it/overlay.rs"]
mod overlay;
#[path = "../it/privileges.rs"]
mod privileges;
#[path = "../it/random.rs"]
mod random;
#[path = "../it/times.rs"]
mod times;
#[path = "../it/users.rs"]
mod users;
#[path = "../it/verity.rs"]
mod verity;
#[path = "../it/volume.rs"]
mod volume;
#[path = "../it/waiting.rs"]
mod waiting;

/// How requests come to the mounts of these tests.
const TRANSPORT: &str = "io_uring";

/// Whether the kernel has this transport.
fn has_transport() -> bool {
    buttress_test_program::has_fuse_uring()
}
