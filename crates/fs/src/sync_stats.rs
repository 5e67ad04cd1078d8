//! Counts of fsync since the volume was mounted.

use buttress_log::SyncStats;

use crate::filesystem::Filesystem;

impl Filesystem {
    /// Counts of fsync since the volume was mounted.
    #[must_use]
    pub fn sync_stats(&self) -> SyncStats {
        self.mount().log.stats()
    }
}
