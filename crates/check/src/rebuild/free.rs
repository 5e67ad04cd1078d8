//! The items of a free-space tree, from the extents of the volume in order.
//!
//! # Invariants
//!
//! - **FR1** The free ranges of a group are the ranges that no extent uses. Ranges under
//!   superblocks are free in this tree, as in Linux.
//! - **FR2** A group has bitmaps if they take less room than an item for each free range. So the
//!   bitmaps of a group bound the size of its items, however many free ranges it has.

use buttress_format::{Extent, FreeSpaceInfo, Key, Kind, Logical, header::ITEM_LEN};
use buttress_sorter::spool::{Sizes, Spool};

use super::collect::GroupUse;
use crate::error::Result;

/// The largest sizes that the items of all groups may reach, if `more` further free ranges appear.
pub(crate) fn bound(groups: &[GroupUse], sector: u64, more: u64) -> Sizes {
    let mut sizes = Sizes::default();
    for group in groups {
        sizes.add(1, FreeSpaceInfo { extent_count: 0, flags: 0 }.to_bytes().len());
        let (count, bytes) = bitmaps(group.chunk.len, sector);
        if group.free_runs * ITEM_LEN as u64 > bytes {
            sizes.add(count, (bytes / count.max(1)) as usize - ITEM_LEN);
        } else {
            sizes.add(group.free_runs, 0);
        }
    }
    sizes.add(more, 0);
    sizes
}

/// The number of bitmaps of a group, and a bound of the bytes of their items.
fn bitmaps(len: u64, sector: u64) -> (u64, u64) {
    let span = FreeSpaceInfo::BITMAP_BITS * sector;
    let count = len.div_ceil(span);
    (count, count * (FreeSpaceInfo::BITMAP_BITS / 8 + ITEM_LEN as u64))
}

/// Writes the items of all groups.
pub(crate) struct FreeItems<'g> {
    groups: &'g [GroupUse],
    sector: u64,
    group: usize,
    reached: Logical,
    runs: Vec<Extent>,
    items: Spool,
}

impl<'g> FreeItems<'g> {
    pub(crate) fn new(groups: &'g [GroupUse], sector: u64) -> Result<Self> {
        let reached = groups.first().map_or(Logical(0), |group| group.chunk.logical);
        let items = Spool::new()?;
        Ok(Self { groups, sector, group: 0, reached, runs: Vec::new(), items })
    }

    /// Takes the next extent, in the order of addresses.
    pub(crate) fn used(&mut self, extent: Extent) -> Result<()> {
        while let Some(group) = self.groups.get(self.group)
            && group.chunk.logical.end(group.chunk.len) <= extent.start
        {
            self.close_group()?;
        }
        self.free_before(extent.start);
        self.reached = extent.end();
        Ok(())
    }

    /// Returns all items.
    pub(crate) fn finish(mut self) -> Result<Spool> {
        while self.group < self.groups.len() {
            self.close_group()?;
        }
        Ok(self.items)
    }

    fn free_before(&mut self, end: Logical) {
        if self.reached < end {
            self.runs.push(Extent::new(self.reached, end.distance(self.reached)));
        }
    }

    fn close_group(&mut self) -> Result<()> {
        let chunk = &self.groups[self.group].chunk;
        let (start, len) = (chunk.logical, chunk.len);
        self.free_before(start.end(len));
        let runs = std::mem::take(&mut self.runs);
        let (_, bytes) = bitmaps(len, self.sector);
        let uses_bitmaps = runs.len() as u64 * ITEM_LEN as u64 > bytes;
        let flags = if uses_bitmaps { FreeSpaceInfo::USING_BITMAPS } else { 0 };
        let info = FreeSpaceInfo { extent_count: runs.len() as u32, flags };
        self.items.push(&Key::new(start.0, Kind::FREE_SPACE_INFO, len), &info.to_bytes())?;
        if uses_bitmaps {
            self.push_bitmaps(start, len, &runs)?;
        } else {
            for run in runs {
                self.items.push(&Key::new(run.start.0, Kind::FREE_SPACE_EXTENT, run.len), &[])?;
            }
        }
        self.group += 1;
        self.reached = self.groups.get(self.group).map_or(self.reached, |next| next.chunk.logical);
        Ok(())
    }

    fn push_bitmaps(&mut self, start: Logical, len: u64, runs: &[Extent]) -> Result<()> {
        let span = FreeSpaceInfo::BITMAP_BITS * self.sector;
        let mut runs = runs.iter().peekable();
        let mut from = start;
        let end = start.end(len);
        while from < end {
            let to = from.end(span.min(end.distance(from)));
            let sectors = to.distance(from) / self.sector;
            let mut bits = vec![0; sectors.div_ceil(8) as usize];
            while let Some(run) = runs.peek().filter(|run| run.start < to) {
                let first = run.start.max(from).distance(from) / self.sector;
                let last = run.end().min(to).distance(from) / self.sector;
                for bit in first..last {
                    bits[(bit / 8) as usize] |= 1 << (bit % 8);
                }
                if run.end() > to {
                    break;
                }
                runs.next();
            }
            let key = Key::new(from.0, Kind::FREE_SPACE_BITMAP, to.distance(from));
            self.items.push(&key, &bits)?;
            from = to;
        }
        Ok(())
    }
}
