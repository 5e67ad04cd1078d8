//! Moves of a group's bytes from one state to the next, and the removal of the group.
//!
//! # Invariants
//!
//! - **G1** Every byte is in one state: free, reserved, used, pinned, or under a superblock. The
//!   order of the states is `space::S1`.

use std::sync::atomic::Ordering;

use buttress_format::{Extent, Logical};

use crate::account::{Counts, SharedAccount};
use crate::free_space::FreeSpace;
use crate::group_state::State;
use crate::size_class::SizeClass;
use crate::{Error, Group};

impl Group {
    /// Reserves the extent that `search` finds. `from_reservation` says whether the extent's bytes
    /// come from a reservation of the account.
    pub(crate) fn allocate(
        &self,
        state: &mut State,
        account: &SharedAccount,
        from_reservation: bool,
        want: u64,
        search: impl FnOnce(&mut FreeSpace) -> Option<Extent>,
    ) -> Option<Extent> {
        if !state.gives_out() {
            return None;
        }
        let before = self.counts(state);
        let extent = search(state.free.as_mut()?)?;
        state.reserved.insert(extent.start.0, extent.end().0);
        if state.class == SizeClass::Unset {
            state.class = SizeClass::of(self.kind, want);
        }
        self.summarise(state);
        account.apply_change(
            before,
            self.counts(state),
            if from_reservation { extent.len } else { 0 },
        );
        Some(extent)
    }

    /// Reserves the next free bytes at or behind `from`, at most `most` of them. Runs with less
    /// than `least` bytes at or behind `from` are skipped. `from_reservation` says whether the
    /// bytes come from a reservation of the account.
    pub(crate) fn take_for_trim(
        &self,
        account: &SharedAccount,
        from_reservation: bool,
        from: u64,
        least: u64,
        most: u64,
    ) -> Option<Extent> {
        let mut state = self.state.lock();
        if !state.gives_out() {
            return None;
        }
        let before = self.counts(&state);
        let free = state.free.as_mut()?;
        let mut at = from;
        let (start, end) = loop {
            let (start, end) = free.next(at)?;
            if end - start >= least {
                break (start, end.min(start + most));
            }
            at = end;
        };
        assert!(free.take_exact(start, end), "G1: a free run that was found is free");
        state.reserved.insert(start, end);
        self.summarise(&mut state);
        let len = end - start;
        account.apply_change(before, self.counts(&state), if from_reservation { len } else { 0 });
        Some(Extent { start: Logical(start), len })
    }

    /// Reserves exactly this extent of a loaded group. Returns whether all of it was free and the
    /// group has not been removed.
    pub(crate) fn reserve_exact(&self, state: &mut State, extent: Extent) -> bool {
        let (start, end) = (extent.start.0, extent.end().0);
        let free = state.free.as_mut().is_some_and(|free| free.take_exact(start, end));
        if free && !state.removed {
            state.reserved.insert(start, end);
        }
        free && !state.removed
    }

    /// Marks the group as removed, if it is empty and the account has enough space without it.
    pub(crate) fn retire(&self, account: &SharedAccount) -> Result<(), Error> {
        let mut state = self.state.lock();
        let counts @ Counts { used, reserved, pinned, .. } = self.counts(&state);
        if used + reserved + pinned > 0 {
            return Err(Error::NotEmpty { start: self.start(), used, reserved, pinned });
        }
        let (len, super_bytes) = (self.len(), self.super_bytes());
        account
            .shrink(len, super_bytes, counts)
            .map_err(|short| Error::Reserved { start: self.start(), missing: short.missing })?;
        state.removed = true;
        self.stopped.store(true, Ordering::SeqCst);
        self.summarise(&mut state);
        Ok(())
    }

    /// Moves a used extent to pinned.
    pub(crate) fn pin(&self, state: &mut State, extent: Extent) -> Result<(), Error> {
        let (start, end) = (extent.start.0, extent.end().0);
        let elsewhere = state.pinned.overlaps(start, end)
            || state.reserved.overlaps(start, end)
            || self.superblocks.overlaps(start, end)
            || state.free.as_ref().is_some_and(|free| free.overlaps(start, end));
        let whole = |bytes: u64| bytes.is_multiple_of(self.sectorsize);
        let odd = extent.len == 0 || !whole(start) || !whole(extent.len);
        if odd || extent.len > state.used || elsewhere {
            return Err(Error::NotUsed { extent });
        }
        state.used -= extent.len;
        state.pinned.insert(start, end);
        Ok(())
    }
}
