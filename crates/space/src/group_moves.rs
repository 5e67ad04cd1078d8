//! How bytes of a group go from one state to the next (S1), and how the group goes.

use std::sync::atomic::Ordering;

use buttress_format::{Extent, Logical};

use crate::account::{Counts, Ledger};
use crate::class::Class;
use crate::free_space::FreeSpace;
use crate::group_state::State;
use crate::{Error, Group};

impl Group {
    /// Reserves what `search` finds; of the account's promises, `promised` says whether that keeps
    /// one.
    pub(crate) fn allocate(
        &self,
        state: &mut State,
        ledger: &Ledger,
        promised: bool,
        want: u64,
        search: impl FnOnce(&mut FreeSpace) -> Option<Extent>,
    ) -> Option<Extent> {
        if !state.gives_out() {
            return None;
        }
        let before = self.counts(state);
        let extent = search(state.free.as_mut()?)?;
        state.reserved.insert(extent.start.0, extent.end().0);
        if state.class == Class::Unset {
            state.class = Class::of(self.kind, want);
        }
        self.summarise(state);
        ledger.shift(before, self.counts(state), if promised { extent.len } else { 0 });
        Some(extent)
    }

    /// Reserves what is free next, at or behind `from`: no more than `most`, of runs that have at least `least` from
    /// where they are met on. Of the account's promises, `promised` says whether that keeps one.
    pub(crate) fn borrow(
        &self,
        ledger: &Ledger,
        promised: bool,
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
        assert!(free.take_exact(start, end), "G1: what is found free is free");
        state.reserved.insert(start, end);
        self.summarise(&mut state);
        let len = end - start;
        ledger.shift(before, self.counts(&state), if promised { len } else { 0 });
        Some(Extent { start: Logical(start), len })
    }

    /// Reserves just this extent. The group is loaded; says whether all of the extent was free.
    pub(crate) fn claim(&self, state: &mut State, extent: Extent) -> bool {
        let (start, end) = (extent.start.0, extent.end().0);
        let free = state.free.as_mut().is_some_and(|free| free.take_exact(start, end));
        if free && !state.removed {
            state.reserved.insert(start, end);
        }
        free && !state.removed
    }

    /// Marks the group as gone, if nothing is in it and the account can do without.
    pub(crate) fn retire(&self, ledger: &Ledger) -> Result<(), Error> {
        let mut state = self.state.lock();
        let counts @ Counts { used, reserved, pinned, .. } = self.counts(&state);
        if used + reserved + pinned > 0 {
            return Err(Error::NotEmpty { start: self.start(), used, reserved, pinned });
        }
        let (len, super_bytes) = (self.len(), self.super_bytes());
        ledger
            .shrink(len, super_bytes, counts)
            .map_err(|short| Error::Promised { start: self.start(), missing: short.missing })?;
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
