//! The clock of the engine: the clock of the system, or the clock of a seeded run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The second at which the wall clock is stopped; `u64::MAX` while it runs.
static STOPPED: AtomicU64 = AtomicU64::new(u64::MAX);

/// Stops the wall clock at a second since 1970, for the rest of the process. Programs that must
/// make equal images call this.
pub fn stop_wall(second: u64) {
    STOPPED.store(second, Ordering::Relaxed);
}

/// Returns the current instant.
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

/// Returns the time since 1970, or zero if the clock stands before 1970. Linux stamps files with
/// the same clock (`CLOCK_REALTIME_COARSE`), which advances with the ticks of the kernel. So if a
/// program reads that clock before and after a change, the stamp of the change lies between both
/// readings.
#[must_use]
pub fn wall() -> Duration {
    wall_of(ClockId::RealtimeCoarse)
}

/// Returns the time since 1970, also between the ticks of the kernel. Linux takes some stamps of
/// files from this clock (`CLOCK_REALTIME`). Its later stamps are never before them, but after a
/// late tick [`wall`] may be.
#[must_use]
pub fn fine_wall() -> Duration {
    wall_of(ClockId::Realtime)
}

fn wall_of(clock: ClockId) -> Duration {
    #[cfg(any(debug_assertions, buttress_seeded))]
    if let Some(wall) = crate::seeded::wall() {
        return wall;
    }
    match STOPPED.load(Ordering::Relaxed) {
        u64::MAX => {}
        second => return Duration::from_secs(second),
    }
    let now = clock_gettime(clock);
    let (sec, nsec) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    sec.ok().zip(nsec.ok()).map_or(Duration::ZERO, |(sec, nsec)| Duration::new(sec, nsec))
}
