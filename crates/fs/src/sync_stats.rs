//! What fsync did since the volume was mounted.

use std::collections::BTreeMap;

use crate::filesystem::Filesystem;

/// How often inodes were made durable, and by what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncStats {
    /// Inodes that were to be made durable.
    pub syncs: u64,
    /// Logs written for them: those that arrive together share one.
    pub logs: u64,
    /// Inodes whose data was written together with a log.
    pub late: u64,
    /// Nodes of logs whose other copies were written when the log rested.
    pub log_copies: u64,
    /// Commits made for them instead, by why a log could not say it.
    pub commits: BTreeMap<&'static str, u64>,
}

impl Filesystem {
    /// What fsync did since the volume was mounted.
    #[must_use]
    pub fn sync_stats(&self) -> SyncStats {
        let engine = &self.shared().engine;
        let done = engine.statistics();
        SyncStats {
            syncs: done.syncs,
            logs: done.logs,
            late: done.late,
            log_copies: done.log_copies,
            commits: engine.log_fallbacks(),
        }
    }
}
