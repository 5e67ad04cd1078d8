//! Data that is written together with the log that names it.
//!
//! # Invariants
//!
//! - **E1** Whoever has the log made puts the extents of late data, has it written and says what became of it before
//!   the commit lock is free again: no commit finds extents whose data is not on the device (T7).
//! - **E2** Who gives late data to a log holds the claim of its file while he waits for that log. So whoever makes logs and
//!   commits waits for no claim, and what cannot be put is written by him who gave it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_format::Logical;

use crate::{Engine, Result};

/// Data of an inode that waits for a log to be made.
pub trait Late: Send + Sync {
    /// Makes its extents part of the running transaction; says whether it could, without waiting for anybody. Called
    /// under the commit lock. What could not be put is left to whoever gave it.
    fn put(&self) -> bool;

    /// Where it goes, and what.
    fn writes(&self) -> Vec<(Logical, &[u8])>;

    /// Says what became of data whose extents were put. Still under the commit lock. Answers whether the transaction may
    /// be committed: it may not where extents are left whose data was not written.
    #[must_use]
    fn written(&self, outcome: Result<()>) -> bool;
}

/// The late data of those who wait for one log.
#[derive(Default)]
pub(super) struct LateBatch {
    put: Vec<Arc<dyn Late>>,
    /// Whether that of `put` was written.
    pub(super) is_written: bool,
}

impl LateBatch {
    /// Puts what can be put (E1).
    pub(super) fn put(engine: &Engine, late: Vec<Arc<dyn Late>>) -> Self {
        let may = engine.check_writable().is_ok();
        let put = late.into_iter().filter(|late| may && late.put()).collect();
        Self { put, is_written: false }
    }

    pub(super) fn writes(&self) -> impl Iterator<Item = (Logical, &[u8])> {
        self.put.iter().flat_map(|late| late.writes())
    }

    /// Writes what no log wrote, and says what became of each (E1). Under the commit lock; answers whether the transaction
    /// may be committed.
    #[must_use]
    pub(super) fn end(&mut self, engine: &Engine) -> bool {
        let put = std::mem::take(&mut self.put);
        engine.counters.late.fetch_add(put.len() as u64, Ordering::Relaxed);
        let all = || put.iter().flat_map(|late| late.writes()).collect::<Vec<_>>();
        let written = self.is_written || engine.volume.write_batch(&all()).is_ok();
        let mut may_commit = true;
        for late in &put {
            // One that cannot be written is no other's loss.
            let alone = || engine.volume.write_batch(&late.writes()).map_err(Into::into);
            may_commit &= late.written(if written { Ok(()) } else { alone() });
        }
        may_commit
    }
}
