//! Taking and giving back the space of the log of fsync.

use buttress_base::sync::MutexGuard;
use buttress_format::{Extent, Generation, Logical};
use buttress_space::{AllocRequest, Outcome, SpaceKind};

use crate::{Engine, Error, Result};

/// The stream of allocations of log nodes: they come and go apart from the trees' nodes.
const STREAM: u64 = 1;

/// The log's space, held: no commit gives it back as long as this lives (`log_space::G1`).
#[derive(Debug)]
pub struct LogHold<'e> {
    engine: &'e Engine,
    nodes: MutexGuard<'e, Vec<Extent>>,
}

impl LogHold<'_> {
    /// How many logs commits have ended (`log_space::G2`).
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.engine.log_space.ended()
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
        LogHold { engine: self, nodes: self.log_space.hold() }
    }

    /// How many logs commits have ended, without a hold: it may be one more in a moment.
    #[must_use]
    pub fn logs_ended(&self) -> u64 {
        self.log_space.ended()
    }

    /// The log's space is free: a superblock without the log is durable.
    pub(crate) fn end_log(&self) {
        let ended = self.log_space.end();
        for extent in ended {
            self.space.free(extent);
        }
    }
}
