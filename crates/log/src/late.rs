//! Data that is written together with the log that names it.
//!
//! # Invariants
//!
//! - **E1** The thread that makes the log puts the extents of late data and writes it. It says what
//!   became of it before the commit lock is free again. So no commit finds extents without data
//!   on the device.
//! - **E2** A thread that gives late data to a log holds the claim of its file while it waits for
//!   that log. So a thread that makes logs and commits waits for no claim. What cannot be put is
//!   written by the thread that gave it.

use std::sync::Arc;

use buttress_format::Logical;

use buttress_txn::{Engine, Result};

/// Data of an inode that waits for a log to be made.
pub trait Late: Send + Sync {
    /// Makes its extents part of the running transaction; says whether it could, without any
    /// wait. Called under the commit lock. What could not be put is left to the thread that gave
    /// it.
    fn put(&self) -> bool;

    /// Where it goes, and what.
    fn writes(&self) -> Vec<(Logical, &[u8])>;

    /// Says what became of data that was put. Still under the commit lock. Answers whether the
    /// transaction may be committed: it may not where extents are left without their data.
    #[must_use]
    fn written(&self, outcome: Result<()>) -> bool;
}

/// The late data of all that wait for one log.
#[derive(Default)]
pub(crate) struct LateBatch {
    put: Vec<Arc<dyn Late>>,
    /// Whether that of `put` was written.
    pub(crate) is_written: bool,
}

impl LateBatch {
    /// Puts what can be put (E1).
    pub(crate) fn put(engine: &Engine, late: Vec<Arc<dyn Late>>) -> Self {
        let may = engine.check_writable().is_ok();
        let put = late.into_iter().filter(|late| may && late.put()).collect();
        Self { put, is_written: false }
    }

    /// How many inodes' data it is.
    pub(crate) fn len(&self) -> usize {
        self.put.len()
    }

    pub(crate) fn writes(&self) -> impl Iterator<Item = (Logical, &[u8])> {
        self.put.iter().flat_map(|late| late.writes())
    }

    /// Writes what no log wrote, and says what became of each (E1). Under the commit lock;
    /// answers whether the transaction may be committed.
    #[must_use]
    pub(crate) fn end(&mut self, engine: &Engine) -> bool {
        let put = std::mem::take(&mut self.put);
        let all = || put.iter().flat_map(|late| late.writes()).collect::<Vec<_>>();
        let written = self.is_written || engine.volume().write_batch(&all()).is_ok();
        let mut may_commit = true;
        for late in &put {
            // One that cannot be written is no other's loss.
            let alone = || engine.volume().write_batch(&late.writes()).map_err(Into::into);
            may_commit &= late.written(if written { Ok(()) } else { alone() });
        }
        may_commit
    }
}
