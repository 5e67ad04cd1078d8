//! The time that inodes are stamped with, and the identifiers that subvolumes get.

use buttress_base::{clock, thread};
use buttress_format::Timespec;

/// Now, as inodes keep it. The clock moves by ticks of the kernel: what is written and synced many
/// times in a tick has one stamp, and its inode need not be written again.
#[must_use]
pub fn now() -> Timespec {
    let since = clock::wall();
    let sec = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timespec { sec, nsec: since.subsec_nanos() }
}

/// A new version-4 identifier.
pub(crate) fn new_uuid() -> [u8; 16] {
    let uuid = match thread::seeded_bytes() {
        Some(bytes) => uuid::Builder::from_random_bytes(bytes).into_uuid(),
        None => uuid::Uuid::new_v4(),
    };
    uuid.into_bytes()
}
