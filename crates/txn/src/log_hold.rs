//! Taking and giving back the space of the log of fsync.

use std::collections::BTreeMap;

use buttress_base::sync::MutexGuard;
use buttress_format::{Extent, Generation, Logical};
use buttress_space::{AllocOutcome, AllocRequest, SpaceKind};

use crate::{Allocation, Commits, Error, Result, SharedRows, Storage};

/// The stream of allocations of log nodes. It is separate, because log nodes and tree nodes live
/// for different times.
const STREAM: u64 = 1;

/// A hold on the log's space: no commit frees this space as long as the hold lives
/// (`log_space::G1`).
pub struct LogHold<'e> {
    storage: &'e Storage,
    allocation: &'e Allocation,
    commits: &'e Commits,
    extents: MutexGuard<'e, BTreeMap<Logical, u64>>,
    /// With parity, the rest of the row of the last node. The log closes it before it is written.
    pub rows: SharedRows<'e>,
}

impl LogHold<'_> {
    /// Number of logs that commits have ended (`log_space::G2`).
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.allocation.log_space().ended()
    }

    /// Allocates a node of the log, in a chunk that the commit of generation `limit` has recorded.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`].
    pub fn allocate(&mut self, limit: Generation, goal: Option<Logical>) -> Result<Logical> {
        let size = u64::from(self.storage.store().geometry().nodesize);
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
            match self.storage.space().allocate_node(request, self.rows.get()) {
                AllocOutcome::Got(extent) => {
                    self.extents.insert(extent.start, extent.len);
                    return Ok(extent.start);
                }
                AllocOutcome::NeedsLoading(group) => {
                    self.storage.load_or_exclude(self.commits, &group);
                }
                AllocOutcome::Full { .. } => return Err(Error::NoSpace("a log")),
            }
        }
    }

    /// Frees a node that no log on disk names, if it has parity. Returns whether it is free now.
    pub fn give_back(&mut self, at: Logical) -> bool {
        if !self.storage.volume().has_parity(at) {
            return false;
        }
        let Some(len) = self.extents.remove(&at) else { return false };
        self.storage.space().free(Extent::new(at, len));
        true
    }
}

impl Allocation {
    /// Holds the log's space, to write a log or more copies of a log.
    pub fn hold_log<'e>(&'e self, storage: &'e Storage, commits: &'e Commits) -> LogHold<'e> {
        LogHold {
            storage,
            allocation: self,
            commits,
            extents: self.log_space().hold(),
            rows: storage.begin_rows(),
        }
    }

    /// Number of logs that commits have ended. Without a hold the number may change at any moment.
    #[must_use]
    pub fn logs_ended(&self) -> u64 {
        self.log_space().ended()
    }

    /// Frees the log's space, because a superblock without the log is durable.
    pub(crate) fn end_log(&self, storage: &Storage) {
        let ended = self.log_space().end();
        for extent in ended {
            storage.space().free(extent);
        }
    }
}
