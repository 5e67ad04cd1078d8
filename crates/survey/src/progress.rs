//! How far a survey is, for a caller that waits.
//!
//! # Invariants
//!
//! - **PG1** The share that is done never falls, and reaches one at the end.

use buttress_tree::{Error, Result};

/// Extents or entries of folders between two reports.
const STEP: u32 = 256;

/// How far one pass of a survey is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// The share that is done, from zero to one. It is an estimate.
    pub done: f64,
    /// Names of files that the pass met.
    pub files: u64,
}

/// A callback that gets the progress of a pass. It returns whether to continue.
pub type Watch<'w> = &'w mut dyn FnMut(Progress) -> bool;

/// Reports progress now and then.
pub(crate) struct Reports<'w> {
    pub(crate) now: Progress,
    waiting: u32,
    watch: Watch<'w>,
}

impl<'w> Reports<'w> {
    pub(crate) fn to(watch: Watch<'w>) -> Self {
        Self { now: Progress::default(), waiting: 0, watch }
    }

    /// Adds to the share that is done (PG1).
    pub(crate) fn add(&mut self, share: f64) -> Result<()> {
        self.now.done = (self.now.done + share).min(1.0);
        self.waiting += 1;
        if self.waiting < STEP { Ok(()) } else { self.report() }
    }

    /// Ends the pass (PG1).
    pub(crate) fn end(mut self) -> Result<()> {
        self.now.done = 1.0;
        self.report()
    }

    fn report(&mut self) -> Result<()> {
        self.waiting = 0;
        if (self.watch)(self.now) { Ok(()) } else { Err(Error::Above("stopped".to_owned())) }
    }
}

/// The share of one extent of all bytes that are used.
pub(crate) fn share_of(len: u64, used: u64) -> f64 {
    len as f64 / used.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PG1. A caller that does not go on ends the pass.
    #[test]
    fn shares_add_up_and_never_exceed_all() {
        let mut seen = Vec::new();
        let mut watch = |now: Progress| {
            seen.push(now.done);
            seen.len() < 4
        };
        let mut reports = Reports::to(&mut watch);
        for _ in 0..2 * STEP {
            reports.add(1.0 / 400.0).expect("it goes on");
        }
        reports.end().expect("it goes on");
        let mut reports = Reports::to(&mut watch);
        let ended = (0..STEP).find_map(|_| reports.add(0.0).err());
        assert!(ended.is_some());
        assert!(seen.is_sorted() || seen[3] == 0.0, "{seen:?}");
        assert_eq!((seen[1], seen[2]), (1.0, 1.0), "{seen:?}");
    }
}
