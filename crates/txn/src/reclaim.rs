//! Removes block groups that became empty, together with their chunks.
//!
//! # Invariants
//!
//! - **G1** A group is removed only if nothing in it is used, reserved or pinned, and the last
//!   commit has recorded it. No view may still read the group, and no reservation may need the
//!   group. At least one group of each kind stays.
//! - **G2** The device space of a removed group is used again only after the removal is durable
//!   (`chunk_alloc::A2`). So the removal requests a commit. A thread that finds no room for a chunk
//!   commits at once.

use buttress_format::{Chunk, Logical};
use buttress_space::{Group, SpaceKind};

use crate::reserve::Reservations;
use crate::{Commits, Storage, commits::CommitState};

impl Storage {
    /// Notes the group at an address if no space in the group is used any more.
    pub(crate) fn note_freed(&self, at: Logical) {
        if let Some(group) = self.space().group_at(at)
            && group.used() == 0
        {
            self.groups().note_empty(group.start());
        }
    }

    /// Removes the noted groups in the running transaction. The caller holds the commit lock, so no
    /// frozen transaction can still use these groups.
    pub(crate) fn remove_empty_groups(
        &self,
        commits: &Commits,
        reservations: &Reservations,
        state: &CommitState,
    ) {
        let noted = self.groups().take_empties();
        for start in noted {
            if !state.groups.contains_key(&start) {
                continue;
            }
            let (_inside, running) = commits.enter();
            let Some(group) =
                self.space().group_at(start).filter(|g| self.is_dispensable(reservations, g))
            else {
                continue;
            };
            // The account checks once more under its locks that the group is empty.
            if self.space().remove_group(start).is_err() {
                continue;
            }
            self.devices().keep_addresses(group.range());
            match self.volume().remove_chunk(start) {
                Ok(chunk) => {
                    tracing::info!(flags = %group.flags(), %start, "empty chunk removed");
                    running.removed.lock().push(Chunk::clone(&chunk));
                    // The devices get the space back only when the removal is durable. Perhaps no
                    // other change will cause a commit, so ask for one.
                    commits.set_wanted(true);
                    self.devices().uncount_group(group.flags());
                }
                Err(error) => tracing::error!(%start, %error, "a group without a chunk"),
            }
        }
    }

    /// The start, used bytes and length of each group of data and metadata.
    pub(crate) fn group_fill(&self) -> Vec<(Logical, u64, u64)> {
        let groups = self.space().groups();
        let kinds = groups.iter().filter(|group| group.kind() != SpaceKind::System);
        kinds.map(|group| (group.start(), group.used(), group.len())).collect()
    }

    fn is_dispensable(&self, reservations: &Reservations, group: &Group) -> bool {
        let usage = group.usage();
        let kind = group.kind();
        if usage.used + usage.reserved + usage.pinned > 0 || self.space().count_of(kind) < 2 {
            return false;
        }
        match kind {
            SpaceKind::Data => true,
            SpaceKind::System => false,
            SpaceKind::Metadata => reservations.fits_without(group.len()),
        }
    }
}
