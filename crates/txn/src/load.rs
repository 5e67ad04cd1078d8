//! Reads the free extents of block groups when they are first needed.
//!
//! # Place
//!
//! An allocation may need a group that is not read yet. Upper layers attach a [`Loader`]. The
//! loader reads this group and the next few groups, which will be needed soon. Without a loader the
//! allocating thread reads the group. A commit always reads its groups itself.
//!
//! # Invariants
//!
//! - **D1** One thread at a time reads a group, even if many threads wait for the group. The loader
//!   reads the group only once.
//! - **D2** A thread that waits for a group is woken when the group was read or cannot be read, and
//!   when the last loader leaves.
//! - **D3** A group that cannot be read serves no allocation in this session and is not requested
//!   again.

use std::sync::Arc;
use std::time::Duration;

use buttress_base::interrupt;
use buttress_space::Group;

use crate::{Commits, Engine, Result, Storage, free_space_tree};

/// Number of groups after the needed group that are read as well.
const AHEAD: usize = 3;

/// An attached loader, which reads groups for allocating threads, until this value is dropped.
#[derive(Debug)]
#[must_use = "it is detached when dropped"]
pub struct Loader {
    engine: Arc<Engine>,
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.engine.storage().loading().detach();
    }
}

impl Loader {
    /// Attaches a loader, which reads wanted groups with [`Loader::work`].
    pub fn attach(engine: Arc<Engine>) -> Self {
        engine.storage().loading().attach();
        Self { engine }
    }

    /// Waits at most `limit` for wanted groups, and reads them.
    pub fn work(&self, limit: Duration) {
        let storage = self.engine.storage();
        let loading = storage.loading();
        loading.wait(limit);
        while let Some(group) = loading.first() {
            storage.load_or_exclude(self.engine.commits(), &group);
            loading.end_first();
        }
    }
}

impl Storage {
    /// Wakes the loader, because it must end.
    pub fn call_loader(&self) {
        self.loading().call();
    }

    /// Reads the free extents of a block group from the last commit.
    pub(crate) fn load_group(&self, commits: &Commits, group: &Group) -> Result<()> {
        let view = commits.view();
        let trusted = self.groups().trusts_free_space();
        let free = free_space_tree::read_committed(&view, group.range(), trusted)?;
        self.space().load(group, free.into_iter())?;
        self.loading().note_loaded();
        Ok(())
    }

    /// As `load_group`, but a group that cannot be read is excluded from allocation (D3).
    pub fn load_or_exclude(&self, commits: &Commits, group: &Group) {
        if group.is_loaded() || group.largest_free() == 0 {
            return;
        }
        // A caller that gives up must not exclude the group (D3).
        if let Err(error) = interrupt::without_cancel(|| self.load_group(commits, group)) {
            tracing::error!(start = %group.start(), %error, "nothing is allocated in a damaged block group");
            self.loading().note_unreadable();
            self.space().exclude_damaged(group);
        }
    }

    /// Queues groups for the loader, without a wait. Returns whether a loader is attached.
    pub(crate) fn request_loading(&self, groups: impl IntoIterator<Item = Arc<Group>>) -> bool {
        self.loading().enqueue(groups)
    }

    /// Waits until a group is read or excluded.
    pub(crate) fn wait_until_loaded(&self, commits: &Commits, group: &Arc<Group>) {
        let ahead = self.space().unloaded_behind(group, AHEAD);
        if !self.request_loading(std::iter::once(Arc::clone(group)).chain(ahead)) {
            return self.load_or_exclude(commits, group);
        }
        let needs = || !group.is_loaded() && group.largest_free() > 0;
        if !self.loading().wait_for(group, needs) {
            self.load_or_exclude(commits, group);
        }
    }
}
