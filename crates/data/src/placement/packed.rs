//! Addresses for compressed parts, and for the uncompressed data between them.

use std::ops::Range;

use crate::codec::feature;
use crate::dirty::Run;
use crate::error::Result;
use crate::job::{Packed, Placed, Supply, Target};
use crate::placement::Placement;

impl Placement {
    /// Gives addresses to the compressed parts of a run and to the data between them
    /// (`packing::G2`).
    pub(crate) fn place_packed(
        &self,
        run: &Run,
        packed: Vec<Packed>,
        supply: &mut Supply<'_, '_>,
    ) -> Result<Vec<Placed>> {
        let mut placed = Vec::with_capacity(packed.len() + 1);
        let range = run.offset..run.end();
        let done = self.place_parts(range, packed, supply, &mut placed);
        done.inspect_err(|_| self.unallocate(&placed))?;
        for part in &mut placed {
            if part.packed.is_none() {
                part.sums = self.params.sums(&run.slices(part.range.clone()));
            }
        }
        Ok(placed)
    }

    /// As [`Placement::place_packed`], without checksums of the data between the parts. After an
    /// error, the caller gives back the extents in `placed`.
    pub(crate) fn place_parts(
        &self,
        whole: Range<u64>,
        packed: Vec<Packed>,
        supply: &mut Supply<'_, '_>,
        placed: &mut Vec<Placed>,
    ) -> Result<()> {
        let mut at = whole.start;
        for mut packed in packed {
            let range = packed.range.clone();
            self.allocate(at..range.start, supply, placed)?;
            at = range.start;
            let len = packed.bytes.len() as u64;
            let extent = match self.allocate_one(supply, len, len) {
                Err(buttress_txn::Error::NoSpace(_)) => continue,
                found => found?,
            };
            self.engine.commits().need_feature(feature(packed.kind));
            at = range.end;
            let sums = std::mem::take(&mut packed.sums);
            let target = Target::Fresh(extent);
            placed.push(Placed { range, target, sums, packed: Some(packed), _right: None });
        }
        self.allocate(at..whole.end, supply, placed)
    }
}
