//! The time that inodes are stamped with.

use std::time::{SystemTime, UNIX_EPOCH};

use buttress_format::Timespec;

/// Now, as inodes keep it; a clock before 1970 counts backwards.
pub(crate) fn now() -> Timespec {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => Timespec {
            sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nsec: since.subsec_nanos(),
        },
        Err(before) => Timespec {
            sec: -i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX),
            nsec: 0,
        },
    }
}
