//! Data that is written together with the log that names it.
//!
//! A thread that syncs a file puts the extents of its data first. It hands the data itself to the
//! next log as plain bytes, and is told when it is on the device. The log calls nothing of the
//! file.
//!
//! # Invariants
//!
//! - **E1** An open [`LoggedWrite`] keeps commits from beginning (`txn::unwritten::B1`). So no
//!   commit names extents whose data is not on the device.
//! - **E2** Data is listed within the handle that puts its extents. A log reads the trees between
//!   all handles, and takes the list in the same moment. So it writes the data of all extents that
//!   it sees.
//! - **E3** A log that failed is followed by a commit, and until then by no other log (`sync::S4`).
//!   So no log sees extents whose data could not be written.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::{Rank, Ranked};
use buttress_format::{Ino, Logical, TreeId};
use buttress_txn::{Result, Unwritten};

use crate::sync_log::{Logged, SyncLog};

/// A piece of data, and where it lies.
#[derive(Clone, Debug)]
pub struct DataPart {
    /// Its first byte on the volume.
    pub at: Logical,
    /// The memory that holds it.
    pub piece: Arc<Vec<u8>>,
    /// Its bytes in that.
    pub bytes: Range<usize>,
}

/// The data of one file that waits for a log.
#[derive(Debug)]
pub(crate) struct LogData {
    parts: Vec<DataPart>,
    is_written: AtomicBool,
}

impl LogData {
    pub(crate) fn parts(&self) -> impl Iterator<Item = (Logical, &[u8])> {
        self.parts.iter().map(|part| (part.at, &part.piece[part.bytes.clone()]))
    }

    pub(crate) fn note_written(&self) {
        self.is_written.store(true, Ordering::Release);
    }

    fn is_written(&self) -> bool {
        self.is_written.load(Ordering::Acquire)
    }
}

/// All data that waits for a log.
#[derive(Debug)]
pub(crate) struct WaitingData(Ranked<Vec<Arc<LogData>>>);

impl Default for WaitingData {
    fn default() -> Self {
        Self(Ranked::new(Rank::Leaf, Vec::new()))
    }
}

impl WaitingData {
    /// What is not written yet (E2).
    pub(crate) fn unwritten(&self) -> Vec<Arc<LogData>> {
        self.0.lock().iter().filter(|data| !data.is_written()).cloned().collect()
    }
}

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
        let data = Arc::new(LogData { parts, is_written: AtomicBool::new(false) });
        self.log.waiting.0.lock().push(Arc::clone(&data));
        self.log.counters.late.fetch_add(1, Ordering::Relaxed);
        self.data = Some(data);
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
            self.log.waiting.0.lock().retain(|other| !Arc::ptr_eq(other, data));
        }
    }
}
