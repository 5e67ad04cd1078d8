//! The time that inodes are stamped with, and the identifiers that subvolumes get.

use buttress_base::{clock, thread};
use buttress_format::Timespec;

/// How exact stamps are, in nanoseconds: as exact as Linux's, which come from its timer. What is written and
/// synced many times in a tick has one stamp, and its inode need not be written again.
const TICK: u32 = 4_000_000;

/// Now, as inodes keep it. A clock before 1970 is a broken clock; zero is what such a machine's tools print too.
pub(crate) fn now() -> Timespec {
    let since = clock::wall();
    let nsec = since.subsec_nanos() / TICK * TICK;
    Timespec { sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nsec }
}

/// A new version-4 identifier.
pub(crate) fn new_uuid() -> [u8; 16] {
    let uuid = match thread::seeded_bytes() {
        Some(bytes) => uuid::Builder::from_random_bytes(bytes).into_uuid(),
        None => uuid::Uuid::new_v4(),
    };
    uuid.into_bytes()
}
