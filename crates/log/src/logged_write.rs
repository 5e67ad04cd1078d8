//! Data that is written together with the log that names it.
//!
//! A thread that syncs a file puts the extents of its data first. It hands the data itself to the
//! next log as plain bytes, and is told when it is on the device. The log calls nothing of the
//! file.
//!
//! # Invariants
//!
//! - **E1** An open [`LoggedWrite`] keeps commits from beginning (`txn::unwritten::B1`). So no
//!   commit names extents with data that is not on the device.
//! - **E2** Data is listed within the handle that puts its extents. A log reads the trees between
//!   all handles, and takes the list in the same moment. So it writes the data of all extents that
//!   it sees.
//! - **E3** A log that failed is followed by a commit, and until then by no other log (`sync::S4`).
//!   So no log sees extents with data that could not be written.

use std::sync::Arc;

use buttress_format::{Ino, TreeId};
use buttress_txn::{Result, Unwritten};

use crate::queue::Logged;
use crate::sync_log::SyncLog;
use crate::waiting::{DataPart, LogData};

/// The right to put extents before their data is written, and the data once they are put (E1).
#[derive(Debug)]
#[must_use = "the right ends when it drops"]
pub struct LoggedWrite<'l> {
    log: &'l SyncLog,
    data: Option<Arc<LogData>>,
    _unwritten: Unwritten<'l>,
}

impl SyncLog {
    /// Begins a write that a log completes. `None` where there are no logs, or if a commit is about
    /// to begin: the data is to be written first then.
    pub fn begin_write(&self) -> Option<LoggedWrite<'_>> {
        if !self.options.is_on || self.engine.check_writable().is_err() {
            return None;
        }
        let unwritten = self.engine.open_unwritten()?;
        Some(LoggedWrite { log: self, data: None, _unwritten: unwritten })
    }
}

impl LoggedWrite<'_> {
    /// Lists the data. The caller has not dropped the handle that puts its extents (E2).
    pub fn note_put(&mut self, parts: Vec<DataPart>) {
        assert!(self.data.is_none(), "E2: the data of one file is listed once");
        self.log.counters.note_data();
        self.data = Some(self.log.waiting.add(parts));
    }

    /// Makes an inode durable with its data, as [`SyncLog::sync_inode`] does without.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn sync_inode(&self, tree: TreeId, ino: Ino) -> Result<Logged> {
        self.log.log_inode(tree, ino)
    }

    /// Writes the data if no log has.
    ///
    /// # Errors
    ///
    /// What the device says. The caller takes the extents back then, before this drops.
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
