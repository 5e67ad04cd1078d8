//! Learning what is free in block groups, when they are first needed.
//!
//! # Place
//!
//! An allocation names a group that must be read first. Upper layers attach a [`Loader`], which
//! reads it, and the next few as well, which are needed soon. Without one the allocating thread
//! reads it, and a commit always does.
//!
//! # Invariants
//!
//! - **D1** A group is read by one at a time, however many want it, and by the loader once.
//! - **D2** A thread that waits for a group is woken when it is known, when it cannot be known, and
//!   when the last loader leaves.
//! - **D3** A group that cannot be read gives out nothing in this session, and is not asked for
//!   again.

use std::sync::Arc;
use std::time::Duration;

use buttress_space::Group;

use crate::{Engine, Result, free_space_tree};

/// Groups behind the one that is needed now that are read as well.
const AHEAD: usize = 3;

/// A loader that reads groups for allocating threads, for as long as it lives.
#[derive(Debug)]
#[must_use = "it is detached when dropped"]
pub struct Loader {
    engine: Arc<Engine>,
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.engine.loading.detach();
    }
}

impl Loader {
    /// Reads the groups that are wanted, or waits until one is, at most so long.
    pub fn work(&self, limit: Duration) {
        let loading = &self.engine.loading;
        loading.wait(limit);
        while let Some(group) = loading.first() {
            self.engine.load_or_leave(&group);
            loading.end_first();
        }
    }
}

impl Engine {
    /// Says that from now on a loader reads groups that are wanted, with [`Loader::work`].
    pub fn attach_loader(self: &Arc<Self>) -> Loader {
        self.loading.attach();
        Loader { engine: Arc::clone(self) }
    }

    /// Wakes the loader, because it is to end.
    pub fn call_loader(&self) {
        self.loading.call();
    }

    /// Learns which bytes of a block group are free, from the last commit.
    pub(crate) fn load_group(&self, group: &Group) -> Result<()> {
        let view = self.view();
        let trusted = self.groups.trusts_free_space();
        let free = free_space_tree::read_committed(&view, group.range(), trusted)?;
        self.space.load(group, free.into_iter())?;
        self.counters.note_loaded();
        Ok(())
    }

    /// The same; a group of which it cannot be learnt is left alone (D3).
    pub fn load_or_leave(&self, group: &Group) {
        if group.is_loaded() || group.largest_free() == 0 {
            return;
        }
        if let Err(error) = self.load_group(group) {
            tracing::error!(start = %group.start(), %error, "nothing is allocated in a damaged block group");
            self.counters.note_left();
            self.space.leave(group);
        }
    }

    /// Asks for the group at a goal, if it is not known yet; does not wait.
    pub(crate) fn want_loaded(&self, groups: impl IntoIterator<Item = Arc<Group>>) -> bool {
        self.loading.want(groups)
    }

    /// Waits until a group is known, or known to be of no use.
    pub(crate) fn have_loaded(&self, group: &Arc<Group>) {
        let ahead = self.space.unloaded_behind(group, AHEAD);
        if !self.want_loaded(std::iter::once(Arc::clone(group)).chain(ahead)) {
            return self.load_or_leave(group);
        }
        let needs = || !group.is_loaded() && group.largest_free() > 0;
        if !self.loading.wait_for(group, needs) {
            self.load_or_leave(group);
        }
    }
}
