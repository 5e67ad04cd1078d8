//! What time it is, for the engine: the system's, or that of a seeded run.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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

/// Returns the time since 1970; zero, of a clock that stands before it.
#[must_use]
pub fn wall() -> Duration {
    #[cfg(any(debug_assertions, buttress_seeded))]
    if let Some(wall) = crate::seeded::wall() {
        return wall;
    }
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
