//! The bytes of one group by state, under the group's lock.
//!
//! # Invariants
//!
//! - **G1** Every byte is in one state: free, reserved, used, pinned, or under a superblock.
//! - **Q1** A group is read-only while at least one hold on it lives; several holds may live at
//!   once.

use buttress_format::Extent;

use crate::extent_set::ExtentSet;
use crate::free_space::FreeSpace;
use crate::index::Entry;
use crate::size_class::SizeClass;

#[derive(Debug)]
pub(crate) struct State {
    /// The free space; `None` before loading.
    pub(crate) free: Option<FreeSpace>,
    pub(crate) reserved: ExtentSet,
    pub(crate) pinned: ExtentSet,
    /// Extents that became free before loading.
    pub(crate) freed_unloaded: ExtentSet,
    pub(crate) used: u64,
    /// The number of holds that forbid allocation in the group.
    pub(crate) read_only: u32,
    pub(crate) class: SizeClass,
    /// The group's entry in the index.
    pub(crate) entry: Entry,
    /// Whether the account includes the group. Before that, nothing is allocated in the group, and
    /// its changes do not change the account.
    pub(crate) counted: bool,
    /// Whether the group was removed from the directory. Another thread may still hold the `Arc`.
    pub(crate) removed: bool,
}

impl State {
    /// Makes a range free. The range was just taken out of its former state.
    fn set_free(&mut self, start: u64, end: u64) {
        match &mut self.free {
            Some(free) => free.insert(start, end),
            None => self.freed_unloaded.insert(start, end),
        }
    }

    /// Whether allocation is allowed.
    pub(crate) fn gives_out(&self) -> bool {
        self.read_only == 0 && self.is_counted()
    }

    /// Whether the account includes the group's changes.
    pub(crate) fn is_counted(&self) -> bool {
        self.counted && !self.removed
    }

    /// Stops allocation in the group for one more hold (Q1).
    pub(crate) fn stop_writes(&mut self) {
        self.read_only += 1;
    }

    /// Ends one hold. After the last hold has ended, allocation is allowed again.
    pub(crate) fn allow_writes(&mut self) {
        self.read_only = self.read_only.checked_sub(1).expect("Q1: it was stopped before");
    }

    /// Moves a reserved extent to used.
    pub(crate) fn commit_used(&mut self, extent: Extent) {
        self.reserved.remove(extent.start.0, extent.end().0);
        self.used += extent.len;
    }

    /// Moves an extent, reserved or used, to free.
    pub(crate) fn release(&mut self, extent: Extent) {
        let (start, end) = (extent.start.0, extent.end().0);
        assert!(!self.pinned.overlaps(start, end), "G1: {start}..{end} is pinned and freed");
        let was_used = extent.len - self.reserved.remove_overlap(start, end);
        self.used = self.used.checked_sub(was_used).expect("G1: a freed extent was in use");
        self.set_free(start, end);
    }

    /// Moves a pinned extent to free.
    pub(crate) fn unpin(&mut self, extent: Extent) {
        let (start, end) = (extent.start.0, extent.end().0);
        self.pinned.remove(start, end);
        self.set_free(start, end);
    }
}
