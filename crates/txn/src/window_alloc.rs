//! Allocates space for bytes that a file will get after its end (`window`).

use std::sync::Arc;

use buttress_format::{Extent, Generation, Logical};
use buttress_space::{AllocOutcome, AllocPolicy, AllocRequest, Priority, SpaceKind};

use crate::window::{Ahead, Window};
use crate::{DataRef, Engine, Handle, QuotaCharge};

/// An allocation with its window may take at most 1/`SHARE` of the available bytes of data.
const SHARE: u64 = 16;

impl Engine {
    /// Allocates `want` bytes, and puts up to `ahead` more bytes after them into a window. The call
    /// makes its own reservation. Returns `None` if too little space is free for a window, or if a
    /// ticket waits for data. The caller then reserves and uses
    /// [`allocate_data`](Self::allocate_data). [`Handle::take_ahead`] takes space from the window.
    /// The extent takes the charge for `want` bytes out of `charge`.
    pub fn allocate_ahead(
        &self,
        window: &Arc<Window>,
        want: u64,
        ahead: u64,
        goal: Option<Logical>,
        stream: u64,
        charge: &mut QuotaCharge,
    ) -> Option<Extent> {
        // The published baseline policies use no windows.
        if self.storage().options().alloc != AllocPolicy::default() {
            return None;
        }
        let sector = u64::from(self.storage().store().geometry().sectorsize);
        let most =
            self.storage().space().account(SpaceKind::Data).available() / SHARE / sector * sector;
        let all = (want + ahead).min(most);
        if all < 2 * want
            || self.storage().space().is_mixed()
            || self.storage().row_slack() > 0
            || self.check_writable().is_err()
        {
            return None;
        }
        let mut reserved =
            self.storage().space().reserve_data_at_once(Priority::Normal, all, || true).ok()?;
        let request = AllocRequest {
            kind: SpaceKind::Data,
            want: all,
            min: want,
            align: sector,
            goal,
            limit: Generation(u64::MAX),
            stream,
            hurry: true,
        };
        let AllocOutcome::Got(extent) =
            self.storage().space().allocate_data(&mut reserved, request)
        else {
            return None;
        };
        self.allocation().unreferenced().insert(extent.start, charge.split(want));
        if extent.len > want {
            let rest = Extent::new(extent.start.end(want), extent.len - want);
            let group = self
                .storage()
                .space()
                .group_at(extent.start)
                .expect("it was allocated there")
                .range();
            self.allocation().windows().fill(window, Ahead { extent: rest, group });
            if self.storage().space().is_stopped(extent.start) {
                window.close();
            }
            window.note_used();
        }
        Some(Extent::new(extent.start, want))
    }
}

impl Handle<'_> {
    /// Takes the first `want` bytes of a window and adds a reference to them (`window::W3`). If the
    /// bytes lie right after `last` and `last` may grow, they extend `last`. Otherwise they become
    /// an extent of `user`. Returns the extent that contains the bytes, or `None` if the window has
    /// fewer bytes. The extent takes the charge for `want` bytes out of `charge`.
    pub fn take_ahead(
        &self,
        window: &Window,
        want: u64,
        last: Option<(Extent, DataRef)>,
        user: DataRef,
        charge: &mut QuotaCharge,
    ) -> Option<Extent> {
        window.take(want, |taken, group| {
            if let Some((last, user)) = last
                && group.contains(last.start)
                && self.join(last, taken, user)
            {
                charge.split(want).add_first_ref(last.start, self.generation());
                return Extent::new(last.start, last.len + want);
            }
            charge.split(want).add_first_ref(taken.start, self.generation());
            self.add_first_ref(taken, user);
            taken
        })
    }
}
