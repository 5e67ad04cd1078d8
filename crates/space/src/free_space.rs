//! The free space of one group, in the form that takes less memory.
//!
//! # Invariants
//!
//! - **H1** Apart from a few extents, a group's free space takes no more memory than its bitmap
//!   would take. With more than `extents_max` extents, the free space is kept as bits. With fewer
//!   than half of `extents_max`, it is kept as extents again, so that no group goes back and forth.

use buttress_format::Extent;

use crate::free_bitmap::FreeBitmap;
use crate::free_extents::FreeExtents;

/// Memory of one extent in its two indexes.
const EXTENT_BYTES: usize = 64;

/// Up to this number, extents are never replaced by a bitmap.
const EXTENTS_MIN: usize = 16;

#[derive(Debug)]
pub(crate) struct FreeSpace {
    group: Extent,
    sector: u64,
    unit: u64,
    /// The most extents that are kept as extents (H1).
    extents_max: usize,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Extents(FreeExtents),
    Bitmap(Box<FreeBitmap>),
}

/// Evaluates an expression on the present form. The `mut` variant then changes the form if a change
/// is due (H1).
macro_rules! either {
    ($self:expr, $free:ident => $what:expr) => {
        match &$self.form {
            Form::Extents($free) => $what,
            Form::Bitmap($free) => $what,
        }
    };
    (mut $self:expr, $free:ident => $what:expr) => {{
        let result = match &mut $self.form {
            Form::Extents($free) => $what,
            Form::Bitmap($free) => $what,
        };
        $self.choose_form();
        result
    }};
}

impl FreeSpace {
    /// No free space, for a group that allocates multiples of `unit`.
    pub(crate) fn new(group: Extent, sector: u64, unit: u64) -> Self {
        let cost = FreeBitmap::cost(group, sector, unit);
        let extents_max = cost.map_or(usize::MAX, |bytes| (bytes / EXTENT_BYTES).max(EXTENTS_MIN));
        Self { group, sector, unit, extents_max, form: Form::Extents(FreeExtents::new(unit)) }
    }

    /// No free space, for a group that is allocated in rows of `row` bytes. Runs of whole rows are
    /// few, and always kept as extents.
    pub(crate) fn of_rows(group: Extent, sector: u64, row: u64) -> Self {
        let form = Form::Extents(FreeExtents::of_rows(row, group.start.0));
        Self { group, sector, unit: row, extents_max: usize::MAX, form }
    }

    /// Changes to the other form if the number of extents requires it (H1).
    fn choose_form(&mut self) {
        match &self.form {
            Form::Extents(free) if free.count() > self.extents_max => {
                let mut bitmap = FreeBitmap::new(self.group, self.sector, self.unit);
                free.iter().for_each(|(start, end)| bitmap.insert(start, end));
                self.form = Form::Bitmap(Box::new(bitmap));
            }
            Form::Bitmap(free) if free.runs() < self.extents_max / 2 => {
                let mut extents = FreeExtents::new(self.unit);
                free.iter().for_each(|(start, end)| extents.insert(start, end));
                self.form = Form::Extents(extents);
            }
            _ => {}
        }
    }

    /// The approximate memory, in bytes.
    pub(crate) fn memory(&self) -> usize {
        match &self.form {
            Form::Extents(free) => free.count() * EXTENT_BYTES,
            Form::Bitmap(free) => free.memory(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        either!(self, free => free.bytes())
    }

    /// Free bytes of rows that are not free as a whole.
    pub(crate) fn cut_off(&self) -> u64 {
        match &self.form {
            Form::Extents(free) => free.cut_off(),
            Form::Bitmap(_) => 0,
        }
    }

    pub(crate) fn largest(&self) -> u64 {
        either!(self, free => free.largest())
    }

    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = (u64, u64)> + '_> {
        match &self.form {
            Form::Extents(free) => Box::new(free.iter()),
            Form::Bitmap(free) => Box::new(free.iter()),
        }
    }

    pub(crate) fn overlaps(&self, start: u64, end: u64) -> bool {
        either!(self, free => free.overlaps(start, end))
    }

    pub(crate) fn next(&self, from: u64) -> Option<(u64, u64)> {
        either!(self, free => free.next(from))
    }

    pub(crate) fn insert(&mut self, start: u64, end: u64) {
        either!(mut self, free => free.insert(start, end));
    }

    pub(crate) fn take_exact(&mut self, start: u64, end: u64) -> bool {
        either!(mut self, free => free.take_exact(start, end))
    }

    pub(crate) fn take_near(&mut self, goal: Option<u64>, want: u64) -> Option<Extent> {
        either!(mut self, free => free.take_near(goal, want))
    }

    pub(crate) fn take_fitting(&mut self, goal: Option<u64>, want: u64) -> Option<Extent> {
        either!(mut self, free => free.take_fitting(goal, want))
    }

    pub(crate) fn take_at(&mut self, goal: u64, want: u64) -> Option<Extent> {
        either!(mut self, free => free.take_at(goal, want))
    }

    pub(crate) fn take_largest(&mut self, want: u64, min: u64) -> Option<Extent> {
        either!(mut self, free => free.take_largest(want, min))
    }

    pub(crate) fn verify(&self) -> Result<(), String> {
        either!(self, free => free.verify())
    }
}

#[cfg(test)]
mod tests {
    use buttress_format::Logical;

    use super::*;

    const SECTOR: u64 = 4096;

    /// H1: memory is bounded for any free space; the form changes with hysteresis, and no change
    /// loses free space.
    #[test]
    fn memory_is_bounded() {
        let group = Extent { start: Logical(1 << 20), len: 1 << 30 };
        let mut free = FreeSpace::new(group, SECTOR, SECTOR);
        let sector = |i: u64| (group.start.0 + i * SECTOR, group.start.0 + (i + 1) * SECTOR);
        let sectors = group.len / SECTOR;
        let mut most = 0;
        for i in (0..sectors).step_by(2) {
            let (start, end) = sector(i);
            free.insert(start, end);
            most = most.max(free.memory());
        }
        assert!(most <= 40 << 10, "{most} bytes");
        assert!(matches!(free.form, Form::Bitmap(_)));
        free.verify().expect("sound");
        for i in (1..sectors).step_by(2) {
            let (start, end) = sector(i);
            free.insert(start, end);
        }
        assert!(matches!(free.form, Form::Extents(_)));
        assert_eq!((free.iter().count(), free.largest()), (1, group.len));
        free.verify().expect("sound");
    }
}
