//! Data that waits for a log: plain bytes and their addresses.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::{Rank, Ranked};
use buttress_format::Logical;

/// A piece of data, and where it lies.
#[derive(Clone, Debug)]
pub struct DataPart {
    /// The address of the first byte on the volume.
    pub at: Logical,
    /// The memory that holds the data.
    pub piece: Arc<Vec<u8>>,
    /// The range of the data in `piece`.
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

    pub(crate) fn is_written(&self) -> bool {
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
    pub(crate) fn add(&self, parts: Vec<DataPart>) -> Arc<LogData> {
        let data = Arc::new(LogData { parts, is_written: AtomicBool::new(false) });
        self.0.lock().push(Arc::clone(&data));
        data
    }

    pub(crate) fn remove(&self, data: &Arc<LogData>) {
        self.0.lock().retain(|other| !Arc::ptr_eq(other, data));
    }

    /// The data that is not written yet (`logged_write::E2`).
    pub(crate) fn unwritten(&self) -> Vec<Arc<LogData>> {
        self.0.lock().iter().filter(|data| !data.is_written()).cloned().collect()
    }
}
