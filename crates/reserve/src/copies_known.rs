//! What is known of the trees that share nodes, and how much is kept for copies of them.

use buttress_base::sync::Mutex;
use buttress_format::Generation;

use crate::copies_need::Trees;

/// What is known of the trees.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) is_known: bool,
    pub(crate) trees: Trees,
    /// Bytes that are kept.
    pub(crate) kept: u64,
    /// Bytes more that are needed once a transaction is published, and which.
    pub(crate) coming: Vec<(Generation, u64)>,
}

/// See `copies`.
#[derive(Debug, Default)]
pub(crate) struct Copies(
    /// Unranked: after the lock of the devices.
    pub(crate) Mutex<Known>,
);
