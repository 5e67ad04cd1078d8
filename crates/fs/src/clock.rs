//! The time that inodes are stamped with, and the identifiers that subvolumes get.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// What new identifiers follow from, and how many there were.
static SEED: OnceLock<(u64, AtomicU64)> = OnceLock::new();

/// Makes this process one that makes equal volumes: new identifiers follow from a seed, and where a
/// second since 1970 is given the clock stands at it. The first call counts.
pub fn be_repeatable(seed: u64, second: Option<u64>) {
    let _ = SEED.set((seed, AtomicU64::new(0)));
    if let Some(second) = second {
        clock::stop_wall(second);
    }
}

/// A new version-4 identifier.
pub(crate) fn new_uuid() -> [u8; 16] {
    if let Some((seed, drawn)) = SEED.get() {
        // The makers of volumes count from one with the same seed; these must be others.
        let index = drawn.fetch_add(1, Ordering::Relaxed) | 1 << 63;
        return crate::make::seeded_uuid(*seed, index);
    }
    let uuid = match thread::seeded_bytes() {
        Some(bytes) => uuid::Builder::from_random_bytes(bytes).into_uuid(),
        None => uuid::Uuid::new_v4(),
    };
    uuid.into_bytes()
}
