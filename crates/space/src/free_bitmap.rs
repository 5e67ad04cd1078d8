//! The free space of a fragmented group: a bit for each sector, and a tree over the bits that knows
//! the longest runs.
//!
//! # Place
//!
//! A group changes to this form when its free extents take more memory than the bits would take
//! ([`FreeSpace`](crate::free_space::FreeSpace)). A data group of one GiB then takes 38 KiB,
//! however fragmented it is.
//!
//! # Invariants
//!
//! - **B1** A bit is set while its sector is free. Bits outside the group are clear.
//! - **B2** The bit of a unit is set while all of its sectors are free. Allocations are whole
//!   units.
//! - **B3** A node of the tree knows how many units are free at its beginning, at its end, and in
//!   its longest run. So the root has the longest run of the group. One descent finds the first
//!   place for any length.

use buttress_format::{Extent, Logical};

use crate::bits;

/// Units below one leaf of the tree.
const LEAF: usize = 1024;

/// Free units of a part of the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Runs {
    first: u32,
    last: u32,
    longest: u32,
}

impl Runs {
    /// The figures of two adjacent parts of `half` units each, as one part.
    fn join(left: Self, right: Self, half: u32) -> Self {
        Self {
            first: if left.first == half { half + right.first } else { left.first },
            last: if right.last == half { half + left.last } else { right.last },
            longest: left.longest.max(right.longest).max(left.last + right.first),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct FreeBitmap {
    /// Address of the first bit: a whole unit, at or before the group's start.
    base: u64,
    sector: u64,
    unit: u64,
    /// One bit a sector (B1).
    sectors: Vec<u64>,
    /// One bit a unit (B2); empty where units are sectors.
    units: Vec<u64>,
    /// A binary tree in an array: the root is 1, the children of `n` are `2 * n` and `2 * n + 1`
    /// (B3).
    tree: Vec<Runs>,
    leaves: usize,
    free: u64,
    /// Runs of free sectors.
    runs: usize,
}

impl FreeBitmap {
    /// A bitmap with no free space, for a group that allocates multiples of `unit`.
    pub(crate) fn new(group: Extent, sector: u64, unit: u64) -> Self {
        let base = group.start.0 / unit * unit;
        let sectors = (group.end().0 - base).div_ceil(sector) as usize;
        let units = (group.end().0 - base).div_ceil(unit) as usize;
        let leaves = units.div_ceil(LEAF).next_power_of_two();
        Self {
            base,
            sector,
            unit,
            sectors: bits::zeros(sectors),
            units: if unit > sector { bits::zeros(units) } else { Vec::new() },
            tree: vec![Runs::default(); 2 * leaves],
            leaves,
            free: 0,
            runs: 0,
        }
    }

    /// Bytes of memory that the bitmap of a group would take. `None` if the group has too many
    /// units for a bitmap.
    pub(crate) fn cost(group: Extent, sector: u64, unit: u64) -> Option<usize> {
        let units = usize::try_from(group.len / unit).ok().filter(|units| *units < 1 << 31)?;
        let bits = usize::try_from(group.len / sector).ok()?;
        let more = if unit > sector { units / 8 } else { 0 };
        let leaves = units.div_ceil(LEAF).next_power_of_two();
        Some(bits / 8 + more + 2 * leaves * size_of::<Runs>())
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        (self.sectors.capacity() + self.units.capacity()) * size_of::<u64>()
            + self.tree.capacity() * size_of::<Runs>()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.free * self.sector
    }

    /// The number of free extents.
    pub(crate) fn runs(&self) -> usize {
        self.runs
    }

    /// The most bytes that one allocation can get.
    pub(crate) fn largest(&self) -> u64 {
        u64::from(self.tree[1].longest) * self.unit
    }

    fn unit_bits(&self) -> &[u64] {
        if self.units.is_empty() { &self.sectors } else { &self.units }
    }

    /// The sectors that `start..end` touches.
    fn sectors_of(&self, start: u64, end: u64) -> (usize, usize) {
        let from = start.saturating_sub(self.base) / self.sector;
        let to = end.saturating_sub(self.base).div_ceil(self.sector);
        let most = self.sectors.len() as u64 * u64::from(u64::BITS);
        (from.min(most) as usize, to.min(most) as usize)
    }

    fn address(&self, sector: usize) -> u64 {
        self.base + sector as u64 * self.sector
    }

    /// The free extents as (start, end), ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let from = bits::next_set(&self.sectors, at)?;
            at = bits::next_clear(&self.sectors, from);
            Some((self.address(from), self.address(at)))
        })
    }

    /// Whether any byte of `start..end` is free.
    pub(crate) fn overlaps(&self, start: u64, end: u64) -> bool {
        let (from, to) = self.sectors_of(start, end);
        from < to && bits::any(&self.sectors, from, to)
    }

    /// The free run at or behind an address: the rest of the run that the address lies in, or the
    /// next run.
    pub(crate) fn next(&self, from: u64) -> Option<(u64, u64)> {
        let sector = from.saturating_sub(self.base).div_ceil(self.sector);
        let first = bits::next_set(&self.sectors, usize::try_from(sector).ok()?)?;
        let end = bits::next_clear(&self.sectors, first);
        Some((self.address(first), self.address(end)))
    }

    /// Makes `start..end` free.
    ///
    /// # Panics
    ///
    /// When a byte of the range is free already: it was freed twice.
    pub(crate) fn insert(&mut self, start: u64, end: u64) {
        let (from, to) = self.sectors_of(start, end);
        assert!(from < to, "B1: empty extent at {start}");
        assert!(!bits::any(&self.sectors, from, to), "B1: {start}..{end} is freed twice");
        self.runs += 1;
        self.runs -= self.beside(from, to);
        self.free += (to - from) as u64;
        bits::set(&mut self.sectors, from, to);
        let (first, last) = self.units_of(from, to);
        if !self.units.is_empty() {
            let per = (self.unit / self.sector) as usize;
            for unit in first..last {
                if bits::all(&self.sectors, unit * per, (unit + 1) * per) {
                    bits::set(&mut self.units, unit, unit + 1);
                }
            }
        }
        self.refresh(first, last);
    }

    /// Takes sectors that are all free.
    fn take(&mut self, start: u64, end: u64) {
        let (from, to) = self.sectors_of(start, end);
        let free = from < to && bits::all(&self.sectors, from, to);
        assert!(free, "B1: a search only returns addresses that are free");
        self.runs += self.beside(from, to);
        self.runs -= 1;
        self.free -= (to - from) as u64;
        bits::clear(&mut self.sectors, from, to);
        let (first, last) = self.units_of(from, to);
        if !self.units.is_empty() {
            bits::clear(&mut self.units, first, last);
        }
        self.refresh(first, last);
    }

    /// How many of the two sectors next to `from..to` are free.
    fn beside(&self, from: usize, to: usize) -> usize {
        let before = from > 0 && bits::any(&self.sectors, from - 1, from);
        usize::from(before) + usize::from(bits::any(&self.sectors, to, to + 1))
    }

    fn units_of(&self, from: usize, to: usize) -> (usize, usize) {
        let per = (self.unit / self.sector) as usize;
        (from / per, to.div_ceil(per))
    }

    /// Updates the tree after a change of the units `from..to` (B3).
    fn refresh(&mut self, from: usize, to: usize) {
        let (mut low, mut high) = (self.leaves + from / LEAF, self.leaves + (to - 1) / LEAF);
        for leaf in low..=high {
            self.tree[leaf] = self.look(leaf - self.leaves);
        }
        let mut half = LEAF as u32;
        while low > 1 {
            (low, high) = (low / 2, high / 2);
            for node in low..=high {
                self.tree[node] = Runs::join(self.tree[2 * node], self.tree[2 * node + 1], half);
            }
            half *= 2;
        }
    }

    /// The figures of a leaf of the tree.
    fn look(&self, leaf: usize) -> Runs {
        let bits = self.unit_bits();
        let words = LEAF / u64::BITS as usize;
        let (mut first, mut run, mut longest) = (None, 0, 0);
        for index in leaf * words..(leaf + 1) * words {
            let word = bits.get(index).copied().unwrap_or(0);
            if word == u64::MAX {
                run += u64::BITS as usize;
                continue;
            }
            let ended = run + word.trailing_ones() as usize;
            first.get_or_insert(ended);
            longest = longest.max(ended).max(bits::longest_in(word));
            run = word.leading_ones() as usize;
        }
        let (first, longest) = (first.unwrap_or(run), longest.max(run));
        Runs { first: first as u32, last: run as u32, longest: longest as u32 }
    }

    /// The first unit at or behind `from` where `want` units are free.
    fn find(&self, from: usize, want: usize) -> Option<usize> {
        if (self.tree[1].longest as usize) < want {
            return None;
        }
        let mut carried = 0;
        self.descend(1, 0, self.leaves * LEAF, from, want, &mut carried)
    }

    /// As [`find`](Self::find), but in one node, which stands for the units `low..high`. The
    /// `carried` units before the node are free.
    fn descend(
        &self,
        node: usize,
        low: usize,
        high: usize,
        from: usize,
        want: usize,
        carried: &mut usize,
    ) -> Option<usize> {
        if high <= from {
            return None;
        }
        let runs = self.tree[node];
        if low >= from {
            if *carried + runs.first as usize >= want {
                return Some(low - *carried);
            }
            if (runs.longest as usize) < want {
                let whole = runs.first as usize == high - low;
                *carried = if whole { *carried + high - low } else { runs.last as usize };
                return None;
            }
        }
        if node < self.leaves {
            let middle = (low + high) / 2;
            let left = self.descend(2 * node, low, middle, from, want, carried);
            return left.or_else(|| self.descend(2 * node + 1, middle, high, from, want, carried));
        }
        let bits = self.unit_bits();
        let mut at = low.max(from);
        while at < high {
            let end = bits::next_clear(bits, at).min(high);
            *carried += end - at;
            if *carried >= want {
                return Some(end - *carried);
            }
            if end == high {
                break;
            }
            *carried = 0;
            at = bits::next_set(bits, end).map_or(high, |next| next.min(high));
        }
        None
    }

    fn hand_out(&mut self, unit: usize, want: u64) -> Extent {
        let start = self.base + unit as u64 * self.unit;
        self.take(start, start + want);
        Extent { start: Logical(start), len: want }
    }

    /// The first whole unit at or behind an address.
    fn unit_at(&self, address: u64) -> usize {
        (address.saturating_sub(self.base).div_ceil(self.unit) as usize).min(self.leaves * LEAF)
    }

    /// Takes exactly `start..end` if all of it is free. Returns whether all of it was free.
    pub(crate) fn take_exact(&mut self, start: u64, end: u64) -> bool {
        let (from, to) = self.sectors_of(start, end);
        let inside = start >= self.base && from < to && self.address(to) == end;
        let free = inside && bits::all(&self.sectors, from, to);
        if free {
            self.take(start, end);
        }
        free
    }

    /// Takes the first `want` contiguous bytes at or behind `goal`, or else the first ones in the
    /// group.
    pub(crate) fn take_near(&mut self, goal: Option<u64>, want: u64) -> Option<Extent> {
        let units = usize::try_from(want / self.unit).ok()?;
        let from = self.unit_at(goal.unwrap_or(0));
        let at = self.find(from, units).or_else(|| self.find(0, units))?;
        Some(self.hand_out(at, want))
    }

    /// Takes `want` contiguous bytes: right at `goal` if they are free there, or else the first
    /// ones in the group. A fragmented group fills from its beginning, so that long runs form at
    /// the end.
    pub(crate) fn take_fitting(&mut self, goal: Option<u64>, want: u64) -> Option<Extent> {
        let at_goal = goal.and_then(|goal| self.take_at(goal, want));
        at_goal.or_else(|| {
            let at = self.find(0, usize::try_from(want / self.unit).ok()?)?;
            Some(self.hand_out(at, want))
        })
    }

    /// Takes `want` contiguous bytes right at `goal`, or nothing.
    pub(crate) fn take_at(&mut self, goal: u64, want: u64) -> Option<Extent> {
        let at = self.unit_at(goal);
        let there = self.base + at as u64 * self.unit == goal;
        let end = at + usize::try_from(want / self.unit).ok()?;
        let free = there && bits::all(self.unit_bits(), at, end);
        free.then(|| self.hand_out(at, want))
    }

    /// Takes the longest run, or its first `want` bytes. Takes nothing if the run has less than
    /// `min` bytes.
    pub(crate) fn take_largest(&mut self, want: u64, min: u64) -> Option<Extent> {
        let longest = self.largest();
        if longest == 0 || longest < min {
            return None;
        }
        let at = self.find(0, (longest / self.unit) as usize)?;
        Some(self.hand_out(at, longest.min(want)))
    }

    /// Checks that the tree's figures agree with the bits.
    pub(crate) fn verify(&self) -> Result<(), String> {
        let (mut free, mut runs) = (0, 0);
        for (start, end) in self.iter() {
            free += (end - start) / self.sector;
            runs += 1;
        }
        if (free, runs) != (self.free, self.runs) {
            let (free, runs) = (self.free, self.runs);
            return Err(format!("B1: {free} sectors in {runs} runs were counted"));
        }
        let mut again = Self { tree: vec![Runs::default(); 2 * self.leaves], ..self.clone() };
        if !self.units.is_empty() {
            let per = (self.unit / self.sector) as usize;
            for unit in 0..self.units.len() * u64::BITS as usize {
                let whole = bits::all(&self.sectors, unit * per, (unit + 1) * per);
                if whole != bits::any(&self.units, unit, unit + 1) {
                    return Err(format!("B2: unit {unit}"));
                }
            }
        }
        again.refresh(0, self.leaves * LEAF);
        if again.tree != self.tree {
            return Err("B3: the tree does not say what the bits do".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use buttress_base::Rng;

    use super::*;

    const SECTOR: u64 = 4096;

    /// B1 to B3: the bitmap gives the same answers as a check of every sector, over several leaves,
    /// for data and nodes.
    #[test]
    fn agrees_with_a_look_at_every_sector() {
        for seed in 0..6 {
            let mut rng = Rng::new(seed);
            let per = if seed % 2 == 0 { 1 } else { 4 };
            let (unit, sectors) = (per * SECTOR, [300, 5000, 9001][seed as usize % 3]);
            let start = 3 * SECTOR + 7 * unit;
            let group = Extent { start: Logical(start), len: sectors * SECTOR };
            let mut bitmap = FreeBitmap::new(group, SECTOR, unit);
            let base = start / unit * unit;
            let skip = ((start - base) / SECTOR) as usize;
            let mut model = vec![false; skip + sectors as usize];
            let free_run =
                |model: &[bool], at: usize| model[at..].iter().take_while(|free| **free).count();
            for step in 0..3000 {
                let from = skip + rng.below(sectors) as usize;
                let most = if rng.chance(1, 40) { 2000 } else { 12 };
                let len = 1 + rng.below(most) as usize;
                let to = (from + len).min(model.len());
                let (low, high) = (base + from as u64 * SECTOR, base + to as u64 * SECTOR);
                let whole = model[from..to].iter().all(|free| *free);
                let none = model[from..to].iter().all(|free| !*free);
                assert_eq!(bitmap.overlaps(low, high), !none);
                // `unit_run` counts the free units from a place on. `starts` lists the places where
                // units begin.
                let unit_run = |model: &[bool], at: usize| free_run(model, at) / per as usize;
                let starts =
                    |model: &[bool]| (0..model.len()).step_by(per as usize).collect::<Vec<_>>();
                match rng.below(10) {
                    0..4 if none => {
                        bitmap.insert(low, high);
                        model[from..to].fill(true);
                    }
                    4 => {
                        assert_eq!(bitmap.take_exact(low, high), whole);
                        if whole {
                            model[from..to].fill(false);
                        }
                    }
                    5..8 => {
                        let units = 1 + rng.below(6);
                        let want = units * unit;
                        let first = |at: usize| {
                            let fits = |at: &usize| unit_run(&model, *at) as u64 >= units;
                            starts(&model).into_iter().filter(|s| *s >= at).find(fits)
                        };
                        let (expected, got) = if rng.chance(1, 2) {
                            let near = first(from).or_else(|| first(0));
                            (near, bitmap.take_near(Some(low), want))
                        } else {
                            let goal = (from.is_multiple_of(per as usize)
                                && unit_run(&model, from) as u64 >= units)
                                .then_some(from);
                            (goal.or_else(|| first(0)), bitmap.take_fitting(Some(low), want))
                        };
                        let at = got.map(|got| ((got.start.0 - base) / SECTOR) as usize);
                        assert_eq!(at, expected, "seed {seed}, step {step}");
                        if let Some(at) = at {
                            model[at..at + (want / SECTOR) as usize].fill(false);
                        }
                    }
                    8 => {
                        let most = starts(&model).into_iter().map(|at| unit_run(&model, at)).max();
                        let most = most.unwrap_or(0) as u64 * unit;
                        assert_eq!(bitmap.largest(), most, "seed {seed}, step {step}");
                        let got = bitmap.take_largest(5 * unit, 2 * unit);
                        let expected = (most >= 2 * unit).then_some(most.min(5 * unit));
                        assert_eq!(got.map(|got| got.len), expected);
                        if let Some(got) = got {
                            let at = ((got.start.0 - base) / SECTOR) as usize;
                            let taken = &mut model[at..at + (got.len / SECTOR) as usize];
                            assert!(taken.iter().all(|free| *free));
                            taken.fill(false);
                        }
                    }
                    _ => {}
                }
                if step % 100 == 0 {
                    bitmap.verify().expect("sound");
                    let bytes = model.iter().filter(|free| **free).count() as u64 * SECTOR;
                    assert_eq!(bitmap.bytes(), bytes);
                }
            }
        }
    }
}
