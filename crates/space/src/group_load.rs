//! Loading of a group: it gets its free extents.
//!
//! # Invariants
//!
//! - **G2** A loaded group knows all its free extents. Before loading, nothing is allocated in it.
//! - **G4** Loading a group with parity, which allocates whole rows (`group::G4`), changes its
//!   account. So [`Space`](crate::Space), which has the account, loads such a group.
//!
//! Before loading, the group keeps extents that become free in a separate list. The free-space tree
//! that loading reads may be older than these extents.

use buttress_format::Extent;

use crate::account::SharedAccount;
use crate::extent_set::ExtentSet;
use crate::free_space::FreeSpace;
use crate::{Error, Group};

impl Group {
    /// Takes the free extents, in ascending order, from a *committed* free-space tree of this
    /// session. On a volume without that tree, the free extents are the gaps in a committed extent
    /// tree. They may include ranges under superblocks, as on disk; these ranges are never
    /// allocated.
    ///
    /// Loading a loaded group changes nothing, so two threads may load the same group.
    ///
    /// # Errors
    ///
    /// When the extents are out of order or outside the group. Also when the extents do not add up
    /// to the length of the group minus its used bytes. In these cases the volume is inconsistent,
    /// and the group stays unloaded.
    ///
    /// # Panics
    ///
    /// When the group has rows: [`Space::load`](crate::Space::load) loads such a group, because
    /// this changes the account.
    pub fn load(&self, free: impl Iterator<Item = Extent>) -> Result<(), Error> {
        assert!(self.row.is_none(), "G4: a group with rows is loaded by its space");
        self.load_into(None, free)
    }

    /// As [`Group::load`]; also changes the account, if the group belongs to one.
    pub(crate) fn load_into(
        &self,
        account: Option<&SharedAccount>,
        free: impl Iterator<Item = Extent>,
    ) -> Result<(), Error> {
        let mut set = self.collect_free(free)?;
        let mut state = self.state.lock();
        let before = self.counts(&state);
        if state.free.is_some() {
            return Ok(());
        }
        assert_eq!(state.reserved.bytes(), 0, "G2: nothing is allocated before loading");
        for (start, end) in state.freed_unloaded.iter() {
            set.insert_missing(start, end);
        }
        for (start, end) in self.superblocks.iter().chain(state.pinned.iter()) {
            set.remove_overlap(start, end);
        }
        let expected = self.free_bytes(&state);
        if set.bytes() != expected {
            let found = set.bytes();
            return Err(Error::FreeBytes { group: self.start(), expected, found });
        }
        let mut extents = match self.row {
            Some(row) => FreeSpace::of_rows(self.range, self.sectorsize, row),
            None => FreeSpace::new(self.range, self.sectorsize, self.unit),
        };
        for (start, end) in set.iter() {
            extents.insert(start, end);
        }
        state.freed_unloaded = ExtentSet::default();
        state.free = Some(extents);
        self.summarise(&mut state);
        if let Some(account) = account.filter(|_| state.is_counted()) {
            account.apply_change(before, self.counts(&state), 0);
        }
        Ok(())
    }

    fn collect_free(&self, free: impl Iterator<Item = Extent>) -> Result<ExtentSet, Error> {
        let mut set = ExtentSet::default();
        let mut last_end = self.start().0;
        for extent in free {
            let end = extent.start.checked_add(extent.len).filter(|&end| end <= self.range.end());
            let Some(end) = end.filter(|_| extent.start >= self.start()) else {
                return Err(Error::Outside { group: self.start(), extent });
            };
            let whole = |bytes: u64| bytes.is_multiple_of(self.sectorsize);
            if extent.len == 0 || !whole(extent.start.0) || !whole(extent.len) {
                return Err(Error::Unaligned { extent });
            }
            if extent.start.0 < last_end {
                return Err(Error::Disorder { extent });
            }
            last_end = end.0;
            set.insert(extent.start.0, end.0);
        }
        Ok(set)
    }
}
