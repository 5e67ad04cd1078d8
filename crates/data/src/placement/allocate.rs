//! Allocates space for the data of a job from its reservation, and gives unused space back.
//!
//! # Invariants
//!
//! - **O1** An extent is allocated from the data reservation of the run that it will hold.
//! - **O2** An extent that no item will name is given back at once.

use std::ops::Range;

use buttress_format::{Extent, TreeId};
use buttress_txn::InPlaceToken;

use crate::error::Result;
use crate::job::{Placed, Supply, Target};
use crate::placement::Placement;

/// Longest extent, in bytes.
const EXTENT_BYTES_MAX: u64 = 128 << 20;

impl Placement {
    /// Adjusts the reservation of a run to its need if `in_place` of its bytes are written in
    /// place. Since the write, an extent may have become shared, or may no longer be shared.
    pub(crate) fn adjust_reservation(
        &self,
        tree: TreeId,
        unreserved: Option<InPlaceToken>,
        in_place: u64,
        supply: &mut Supply<'_, '_>,
    ) -> Result<()> {
        let held = unreserved.as_ref().map_or(0, InPlaceToken::bytes);
        let reserved = supply.reserved.bytes();
        // Give space back first: runs that must reserve more may need it.
        supply.reserved.shrink_to(reserved.saturating_sub(in_place.saturating_sub(held)));
        if let Some(mut unreserved) = unreserved
            && held > in_place
        {
            let slack = self.engine.storage().row_slack();
            let part = unreserved.split(held - in_place);
            supply.reserved.merge(self.engine.exchange_in_place_token(tree, part, slack)?);
        }
        Ok(())
    }

    /// Allocates at most `want` bytes and at least `min`, as near to the goal as possible. Moves
    /// the goal to the end of the new extent.
    pub(crate) fn allocate_one(
        &self,
        supply: &mut Supply<'_, '_>,
        want: u64,
        min: u64,
    ) -> Result<Extent, buttress_txn::Error> {
        let Supply { reserved, goal, rows } = supply;
        let extent =
            self.engine.allocate_in_rows(reserved, want, min, goal.at, goal.stream, rows)?;
        goal.at = Some(extent.end());
        Ok(extent)
    }

    /// Allocates for a range of a file, in as few extents as possible.
    pub(crate) fn allocate(
        &self,
        range: Range<u64>,
        supply: &mut Supply<'_, '_>,
        placed: &mut Vec<Placed>,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let want = (range.end - at).min(EXTENT_BYTES_MAX);
            let extent = self.allocate_one(supply, want, self.params.sector)?;
            let end = at + extent.len;
            let target = Target::Fresh(extent);
            placed.push(Placed {
                range: at..end,
                target,
                sums: Vec::new(),
                packed: None,
                _right: None,
            });
            at = end;
        }
        Ok(())
    }

    /// Gives back extents that no item names (O2).
    pub(crate) fn unallocate(&self, placed: &[Placed]) {
        for part in placed {
            if let Target::Fresh(extent) = part.target {
                self.engine.allocation().free_unused_data(self.engine.storage(), extent);
            }
        }
    }
}
