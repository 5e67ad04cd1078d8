//! The threads that write back.

use std::time::Duration;

use buttress_base::clock;

use super::Writeback;
use super::dirty_list::{Call, Duty};

/// Most threads that write back. Each takes a batch of files of its own. Half of the processors get
/// a usual thread: writers need the others, and wait behind a thread that computes for a whole time
/// slice. The rest are spare (`writeback::G3`).
const THREADS_MAX: usize = 4;

/// How often a usual thread looks without a call.
const FLUSH_PERIOD: Duration = Duration::from_millis(500);
/// How old dirty data grows at least.
const DIRTY_AGE: Duration = Duration::from_secs(5);

impl Writeback {
    /// The duties of the threads that a mount starts.
    pub(crate) fn duties() -> impl Iterator<Item = Duty> {
        let usual = (buttress_base::thread::parallelism() / 2).clamp(1, THREADS_MAX);
        (0..THREADS_MAX).map(move |index| if index < usual { Duty::Usual } else { Duty::Spare })
    }

    /// Writes back until the mount ends.
    pub(crate) fn run(&self, duty: Duty) {
        loop {
            match (self.list.wait(duty, FLUSH_PERIOD), duty) {
                (Call::Stop, _) => return,
                (Call::Round(round), _) => {
                    self.clamp_round(&round);
                }
                (Call::Look, Duty::Usual) => self.write_old(),
                (Call::Look, Duty::Spare) => {
                    // While one thread finishes ordered extents, the devices would be idle.
                    while self.is_crowded() && self.write_batch(None) {}
                    self.list.is_no_longer_crowded();
                }
            }
        }
    }

    /// Writes what is too much or too old.
    fn write_old(&self) {
        while self.files.counters().dirty_bytes() > self.flush_above() && self.write_batch(None) {}
        let age = self.limits.commit_interval.min(DIRTY_AGE);
        if let Some(limit) = clock::now().checked_sub(age) {
            while self.write_batch(Some(limit)) {}
        }
        if self.files.counters().dirty_bytes() == 0 {
            self.files.trim();
        }
    }

    /// As much may be dirty and grow old.
    fn flush_above(&self) -> u64 {
        if self.engine.reservations().pressure().is_some() {
            0
        } else {
            self.limits.dirty_bytes_max / 8
        }
    }
}
