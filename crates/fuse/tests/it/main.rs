//! The front end from the outside: volumes in temporary files are mounted and used by system calls.
//!
//! Every test mounts a volume of its own. At its end, the test unmounts the volume and opens it
//! once more. Where `btrfs check` is installed, it checks the volume, too. The tests need root and
//! `/dev/fuse`; elsewhere they report that they are skipped.

mod access_times;
mod attributes;
mod calls;
mod coherence;
mod commands;
mod content;
mod deleted;
mod full;
mod held_locks;
mod ioctls;
mod killed;
mod lifetime;
mod linux;
mod listing;
mod lists;
mod mounted;
mod names;
mod overlay;
mod privileges;
mod random;
mod times;
mod users;
mod verity;
mod volume;
mod waiting;

/// How requests come to the mounts of these tests. `by_ring` runs the same tests with the other
/// transport.
const TRANSPORT: &str = "noio_uring";

/// Whether the kernel has this transport.
fn has_transport() -> bool {
    true
}
