//! What time it is, for the engine: the system's, or that of a seeded run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The second at which the clock of the day stands; the last of all while it goes.
static STOPPED: AtomicU64 = AtomicU64::new(u64::MAX);

/// Stops the clock of the day at a second since 1970, for the rest of the process: for programs
/// that make images which are to be equal.
pub fn stop_wall(second: u64) {
    STOPPED.store(second, Ordering::Relaxed);
}

/// Returns the instant that is now.
#[must_use]
pub fn now() -> Instant {
    #[cfg(any(debug_assertions, buttress_seeded))]
    if let Some(now) = crate::seeded::instant() {
        return now;
    }
    Instant::now()
}

/// Returns how long ago an instant of this clock was.
#[must_use]
pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// Returns the time since 1970; zero, of a clock that stands before it. It is the clock that Linux
/// stamps files with (`CLOCK_REALTIME_COARSE`), and moves on with the kernel's ticks: between a
/// program's two looks at that clock no stamp lies outside of them.
#[must_use]
pub fn wall() -> Duration {
    #[cfg(any(debug_assertions, buttress_seeded))]
    if let Some(wall) = crate::seeded::wall() {
        return wall;
    }
    match STOPPED.load(Ordering::Relaxed) {
        u64::MAX => {}
        second => return Duration::from_secs(second),
    }
    let now = clock_gettime(ClockId::RealtimeCoarse);
    let (sec, nsec) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    sec.ok().zip(nsec.ok()).map_or(Duration::ZERO, |(sec, nsec)| Duration::new(sec, nsec))
}
