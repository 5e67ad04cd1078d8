//! The clock for the times of inodes, and new identifiers of subvolumes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::{clock, thread};
use buttress_format::Timespec;

/// The present time for an inode. The clock moves by ticks of the kernel. So a file that is written
/// and synced many times in a tick has one stamp, and its inode need not be written again.
#[must_use]
pub fn now() -> Timespec {
    let since = clock::wall();
    let sec = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timespec { sec, nsec: since.subsec_nanos() }
}

/// The seed of new identifiers, and the number of identifiers that were made from it.
static SEED: OnceLock<(u64, AtomicU64)> = OnceLock::new();

/// Makes this process repeatable, so that it makes equal volumes: new identifiers follow from
/// `seed`. With `second`, the clock stops at that second since 1970. Only the first call has an
/// effect.
pub fn be_repeatable(seed: u64, second: Option<u64>) {
    let _ = SEED.set((seed, AtomicU64::new(0)));
    if let Some(second) = second {
        clock::stop_wall(second);
    }
}

/// Returns a new version-4 identifier.
#[must_use]
pub fn new_uuid() -> [u8; 16] {
    if let Some((seed, drawn)) = SEED.get() {
        // `make` counts from one with the same seed, so these indexes must differ.
        let index = drawn.fetch_add(1, Ordering::Relaxed) | 1 << 63;
        return crate::seeded_uuid(*seed, index);
    }
    let uuid = match thread::seeded_bytes() {
        Some(bytes) => uuid::Builder::from_random_bytes(bytes).into_uuid(),
        None => uuid::Uuid::new_v4(),
    };
    uuid.into_bytes()
}
