//! Block groups that came to be empty give their chunk back.
//!
//! # Invariants
//!
//! - **G1** A group is removed only if it holds nothing and the last commit knows it. No view may
//!   read it any more, and no reservation may need it. At least one of each kind stays.
//! - **G2** Its device space is used again only after the removal is durable (`chunk_alloc::A2`).
//!   So a commit is asked for, and a thread that looks for a chunk in vain makes one.

use buttress_format::{Chunk, Logical};
use buttress_space::{Group, SpaceKind};

use crate::{Engine, commit_state::CommitState};

impl Engine {
    /// Notes a group that may have come to be empty.
    pub(crate) fn note_freed(&self, at: Logical) {
        if let Some(group) = self.space.group_at(at)
            && group.used() == 0
        {
            self.groups.note_empty(group.start());
        }
    }

    /// Removes the groups that were noted, in the running transaction. Under the commit lock: no
    /// transaction is frozen that could still touch them.
    pub(crate) fn remove_empty_groups(&self, state: &CommitState) {
        let noted = self.groups.take_empties();
        for start in noted {
            if !state.groups.contains_key(&start) {
                continue;
            }
            let (_inside, running) = self.enter();
            let Some(group) = self.space.group_at(start).filter(|g| self.is_dispensable(g)) else {
                continue;
            };
            // The last look is the account's own, under its locks.
            if self.space.remove_group(start).is_err() {
                continue;
            }
            self.devices.lock().keep_addresses(group.range());
            match self.volume.remove_chunk(start) {
                Ok(chunk) => {
                    tracing::info!(flags = %group.flags(), %start, "empty chunk removed");
                    running.removed.lock().push(Chunk::clone(&chunk));
                    // Until it is durable the devices lack them, and nothing else may come to be
                    // committed.
                    self.commit.want(true);
                    self.devices.lock().uncount_group(group.flags());
                }
                Err(error) => tracing::error!(%start, %error, "a group without a chunk"),
            }
        }
    }

    /// The groups of data and metadata: where each begins, how much of it is in use, how long it
    /// is.
    #[must_use]
    pub fn group_fill(&self) -> Vec<(Logical, u64, u64)> {
        let _ = self.know_groups();
        let groups = self.space.groups();
        let kinds = groups.iter().filter(|group| group.kind() != SpaceKind::System);
        kinds.map(|group| (group.start(), group.used(), group.len())).collect()
    }

    fn is_dispensable(&self, group: &Group) -> bool {
        let usage = group.usage();
        let kind = group.kind();
        if usage.used + usage.reserved + usage.pinned > 0 || self.space.count_of(kind) < 2 {
            return false;
        }
        match kind {
            SpaceKind::Data => true,
            SpaceKind::System => false,
            SpaceKind::Metadata => self.reservations.fits_without(group.len()),
        }
    }
}
