//! Space that the log of fsync takes beside the trees, until the commit that ends the log.
//!
//! # Invariants
//!
//! - **G1** What a log on disk names is given back by the commit alone that ends the log, and not
//!   while a [`LogHold`] lives.
//! - **G2** The number of ended logs changes with that, under the same lock: what was kept of an
//!   ended log is recognised by it.
//!
//! # Locks
//!
//! After the commit lock, before the gate. A holder may write to devices: it is no short lock.

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::sync::{Mutex, MutexGuard};
use buttress_format::{Extent, Generation, Logical};
use buttress_space::{AllocRequest, Outcome, SpaceKind};

use crate::{Engine, Error, Result};

/// The stream of allocations of log nodes: they come and go apart from the trees' nodes.
const STREAM: u64 = 1;

/// The space of one log.
#[derive(Debug, Default)]
pub(crate) struct LogSpace {
    ended: AtomicU64,
    /// Unranked: held across writes of the log.
    nodes: Mutex<Vec<Extent>>,
}

impl LogSpace {
    /// Space that the log on disk names.
    pub(crate) fn add(&self, extent: Extent) {
        self.nodes.lock().push(extent);
    }
}

/// The log's space, held: no commit gives it back as long as this lives (G1).
#[derive(Debug)]
pub struct LogHold<'e> {
    engine: &'e Engine,
    nodes: MutexGuard<'e, Vec<Extent>>,
}

impl LogHold<'_> {
    /// How many logs commits have ended (G2).
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.engine.log_space.ended.load(Ordering::Relaxed)
    }

    /// New space for a node of the log, in a chunk that the commit `limit` knows.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`].
    pub fn allocate(&mut self, limit: Generation, goal: Option<Logical>) -> Result<Logical> {
        let size = u64::from(self.engine.store.geometry().nodesize);
        let request = AllocRequest {
            kind: SpaceKind::Metadata,
            want: size,
            min: size,
            align: size,
            goal,
            limit,
            stream: STREAM,
            hurry: false,
        };
        loop {
            match self.engine.space.allocate(request) {
                Outcome::Got(extent) => {
                    self.nodes.push(extent);
                    return Ok(extent.start);
                }
                Outcome::NeedsLoading(group) => self.engine.load_or_leave(&group),
                Outcome::Full { .. } => return Err(Error::NoSpace("a log")),
            }
        }
    }
}

impl Engine {
    /// Holds the log's space, to write a log or more copies of one.
    pub fn hold_log(&self) -> LogHold<'_> {
        LogHold { engine: self, nodes: self.log_space.nodes.lock() }
    }

    /// How many logs commits have ended, without a hold: it may be one more in a moment.
    #[must_use]
    pub fn logs_ended(&self) -> u64 {
        self.log_space.ended.load(Ordering::Relaxed)
    }

    /// The log's space is free: a superblock without the log is durable.
    pub(crate) fn end_log(&self) {
        let mut nodes = self.log_space.nodes.lock();
        self.log_space.ended.fetch_add(1, Ordering::Relaxed);
        let ended = std::mem::take(&mut *nodes);
        drop(nodes);
        for extent in ended {
            self.space.free(extent);
        }
    }
}
