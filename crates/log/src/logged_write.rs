//! Data that is written together with the log that references it.
//!
//! A thread that syncs a file first puts the extents of the file's data. The thread passes the data
//! to the next log as plain bytes, and gets a notice when the data is on the device. The log does
//! not call the code of the file.
//!
//! # Invariants
//!
//! - **E1** An open [`LoggedWrite`] keeps commits from beginning (`txn::unwritten::B1`). So no
//!   commit names extents with data that is not on the device.
//! - **E2** Data is listed within the handle that puts its extents. A log reads the trees while no
//!   handle is open, and takes the list at the same moment. So the log has the data of all extents
//!   that it sees.
//! - **E3** After a failed log, no other log is made before a commit (`sync::S4`). So no log sees
//!   extents with data that could not be written.

use std::sync::Arc;

use buttress_format::{Ino, TreeId};
use buttress_txn::{Result, UnwrittenPermit};

use crate::queue::Logged;
use crate::sync_log::SyncLog;
use crate::waiting::{DataPart, LogData};

/// The right to put extents before their data is written. After the put this value holds the data
/// (E1).
#[derive(Debug)]
#[must_use = "the right ends when it drops"]
pub struct LoggedWrite<'l> {
    log: &'l SyncLog,
    data: Option<Arc<LogData>>,
    _unwritten: UnwrittenPermit<'l>,
}

impl SyncLog {
    /// Begins a write that a log completes. `None` where there are no logs, or if a commit is about
    /// to begin. The caller then writes the data first.
    pub fn begin_write(&self) -> Option<LoggedWrite<'_>> {
        if !self.options.is_on || self.engine.check_writable().is_err() {
            return None;
        }
        let unwritten = self.engine.allocation().open_unwritten()?;
        Some(LoggedWrite { log: self, data: None, _unwritten: unwritten })
    }
}

impl LoggedWrite<'_> {
    /// Lists the data. The caller still holds the handle that puts its extents (E2).
    pub fn note_put(&mut self, parts: Vec<DataPart>) {
        assert!(self.data.is_none(), "E2: the data of one file is listed once");
        self.log.counters.note_data();
        self.data = Some(self.log.waiting.add(parts));
    }

    /// Makes an inode and its data durable, as [`SyncLog::sync_inode`] does for an inode without
    /// such data.
    ///
    /// # Errors
    ///
    /// As [`SyncLog::sync_inode`].
    pub fn sync_inode(&self, tree: TreeId, ino: Ino) -> Result<Logged> {
        self.log.log_inode(tree, ino)
    }

    /// Writes the data, unless a log has written it.
    ///
    /// # Errors
    ///
    /// The error of the device. The caller must then remove the extents before this value drops.
    pub fn complete(&self) -> Result<()> {
        let Some(data) = self.data.as_ref().filter(|data| !data.is_written()) else {
            return Ok(());
        };
        let parts: Vec<_> = data.parts().collect();
        self.log.engine.volume().write_batch(&parts)?;
        data.note_written();
        Ok(())
    }
}

impl Drop for LoggedWrite<'_> {
    fn drop(&mut self) {
        if let Some(data) = &self.data {
            self.log.waiting.remove(data);
        }
    }
}
