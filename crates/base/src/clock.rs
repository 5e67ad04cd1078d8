//! What time it is, for the engine: the system's, or that of a seeded run.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

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
    let now = clock_gettime(ClockId::RealtimeCoarse);
    let (sec, nsec) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    sec.ok().zip(nsec.ok()).map_or(Duration::ZERO, |(sec, nsec)| Duration::new(sec, nsec))
}
