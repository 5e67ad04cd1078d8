//! The threads that write back.

use std::time::Duration;

use buttress_base::{activity, clock};

use super::Writeback;
use super::dirty_list::{Call, ThreadRole};

/// The number of threads that write back. Each thread takes its own batch of files. Half of the
/// processors get a usual thread. Writers need the other half, because a writer may wait a whole
/// time slice for a thread that computes. The remaining threads are spare (`writeback::G3`).
const THREADS_MAX: usize = 4;

/// Period of a usual thread's checks without a request.
const FLUSH_PERIOD: Duration = Duration::from_millis(500);
/// Dirty data of this age is written back, even if no limit is exceeded.
const DIRTY_AGE: Duration = Duration::from_secs(5);

impl Writeback {
    /// The role of each thread that a mount starts.
    pub(crate) fn roles() -> impl Iterator<Item = ThreadRole> {
        let usual = (buttress_base::thread::parallelism() / 2).clamp(1, THREADS_MAX);
        (0..THREADS_MAX)
            .map(move |index| if index < usual { ThreadRole::Usual } else { ThreadRole::Spare })
    }

    /// Writes back until the mount ends.
    pub(crate) fn run(&self, role: ThreadRole) {
        loop {
            let call = self.list.wait(role, FLUSH_PERIOD);
            let _busy = activity::busy();
            match (call, role) {
                (Call::Stop, _) => return,
                (Call::Round(round), _) => {
                    self.clamp_round(&round);
                }
                (Call::Look, ThreadRole::Usual) => self.write_old(),
                (Call::Look, ThreadRole::Spare) => {
                    // Write batches here, because the devices would be idle while another thread
                    // finishes ordered extents.
                    while self.is_crowded() && self.write_batch(None) {}
                    self.list.end_crowding();
                }
            }
        }
    }

    /// Writes back dirty data that exceeds the limit in bytes, or is older than the age limit.
    fn write_old(&self) {
        while self.files.counters().dirty_bytes() > self.flush_above() && self.write_batch(None) {}
        let age = self.limits.commit_interval.min(DIRTY_AGE);
        if let Some(limit) = clock::now().checked_sub(age) {
            while self.write_batch(Some(limit)) {}
        }
        self.files.trim();
        if self.files.counters().dirty_bytes() == 0 {
            self.files.forget_unpacked();
        }
    }

    /// The amount of dirty data, in bytes, that may stay until it is old.
    fn flush_above(&self) -> u64 {
        if self.engine.reservations().pressure().is_some() {
            0
        } else {
            self.limits.dirty_bytes_max / 8
        }
    }
}
