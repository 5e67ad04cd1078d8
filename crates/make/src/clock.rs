//! The clock for the times of inodes, and new identifiers of subvolumes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use buttress_base::{clock, thread};
use buttress_format::Timespec;

/// The present time for an inode. The clock moves by ticks of the kernel. So a file that is written
/// and synced many times in a tick has one stamp, and its inode need not be written again.
#[must_use]
pub fn now() -> Timespec {
    timespec(clock::wall())
}

/// The time for a change of an inode that has the stamp `last`. The kernel's write-back cache may
/// have stamped the inode with a time that [`now`] reaches with the next tick. Then this is a later
/// time, so that the change can be seen. A stamp in the future has no effect, as in Linux.
#[must_use]
pub fn now_after(last: Timespec) -> Timespec {
    let now = now();
    if now >= last {
        return now;
    }
    let fine = timespec(clock::fine_wall());
    if fine >= last { fine } else { now }
}

fn timespec(since: Duration) -> Timespec {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A change behind a stamp of the fine clock has a later stamp. A change behind a stamp in the
    /// future has the present time.
    #[test]
    fn times_go_back_only_from_the_future() {
        for _ in 0..10_000 {
            let last = timespec(clock::fine_wall());
            let stamp = now_after(last);
            let later = timespec(clock::fine_wall());
            assert!(last <= stamp && stamp <= later, "{last:?} {stamp:?} {later:?}");
        }
        let future = Timespec { sec: i64::MAX, nsec: 0 };
        assert!(now_after(future) <= timespec(clock::fine_wall()));
    }
}
