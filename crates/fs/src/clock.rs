//! The time that inodes are stamped with, and the identifiers that subvolumes get.

use buttress_base::{clock, thread};
use buttress_format::Timespec;

/// Now, as inodes keep it. A clock before 1970 is a broken clock; zero is what such a machine's tools print too.
pub(crate) fn now() -> Timespec {
    let since = clock::wall();
    Timespec { sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nsec: since.subsec_nanos() }
}

/// A new version-4 identifier.
pub(crate) fn new_uuid() -> [u8; 16] {
    let uuid = match thread::seeded_bytes() {
        Some(bytes) => uuid::Builder::from_random_bytes(bytes).into_uuid(),
        None => uuid::Uuid::new_v4(),
    };
    uuid.into_bytes()
}
