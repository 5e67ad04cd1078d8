//! One page of the map: the runs of 64 MiB of the device.
//!
//! # Invariants
//!
//! - **P1** Runs are in order, do not overlap, and lie within the page.
//! - **P2** The frames of a run are consecutive in its object.

use crate::envelope::{damaged, u32_at, u64_at};
use crate::error::Result;
use crate::units::{Location, ObjectNumber};

/// Sectors of a page.
pub(crate) const PAGE_SECTORS: u64 = 1 << 14;
const RUN: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u16,
    count: u16,
    location: Location,
}

impl Run {
    fn end(self) -> u16 {
        self.start + self.count
    }

    /// The part of the run from sector `start` on.
    fn from(self, start: u16) -> Self {
        let skipped = start - self.start;
        let location =
            Location { frame: self.location.frame + u32::from(skipped), ..self.location };
        Self { start, count: self.count - skipped, location }
    }

    fn continues(self, next: Self) -> bool {
        self.end() == next.start
            && self.location.object == next.location.object
            && self.location.frame + u32::from(self.count) == next.location.frame
    }
}

/// The runs of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    runs: Vec<Run>,
}

impl Page {
    /// Returns the place of a sector, and the number of sectors for which that place continues.
    pub(crate) fn find(&self, start: u16) -> (Option<Location>, u16) {
        let after = self.runs.partition_point(|run| run.end() <= start);
        match self.runs.get(after) {
            Some(run) if run.start <= start => {
                let part = run.from(start);
                (Some(part.location), part.count)
            }
            Some(run) => (None, run.start - start),
            None => (None, PAGE_SECTORS as u16 - start),
        }
    }

    /// Sets the place of sectors, or makes them a hole; returns how many frames each object lost.
    pub(crate) fn set(
        &mut self,
        start: u16,
        count: u16,
        location: Option<Location>,
        removed: &mut Vec<(ObjectNumber, u32)>,
    ) {
        let end = start + count;
        let first = self.runs.partition_point(|run| run.end() <= start);
        let last = self.runs.partition_point(|run| run.start < end);
        let mut new = Vec::with_capacity(5);
        if first < last {
            let (head, tail) = (self.runs[first], self.runs[last - 1]);
            for run in &self.runs[first..last] {
                let lost = run.end().min(end) - run.start.max(start);
                removed.push((run.location.object, u32::from(lost)));
            }
            if head.start < start {
                new.push(Run { count: start - head.start, ..head });
            }
            new.extend(location.map(|location| Run { start, count, location }));
            if tail.end() > end {
                new.push(tail.from(end));
            }
        } else {
            new.extend(location.map(|location| Run { start, count, location }));
        }
        // A run that continues the previous run is merged into it.
        let first = if first > 0 && new.first().is_some_and(|n| self.runs[first - 1].continues(*n))
        {
            new.insert(0, self.runs[first - 1]);
            first - 1
        } else {
            first
        };
        new.dedup_by(|next, before| {
            let joins = before.continues(*next);
            before.count += if joins { next.count } else { 0 };
            joins
        });
        self.runs.splice(first..last, new);
    }

    /// Says whether the page has only holes.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Bytes of the page in memory. The page takes about as many bytes in an object.
    pub(crate) fn bytes(&self) -> usize {
        self.runs.len() * RUN
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes());
        for run in &self.runs {
            bytes.extend_from_slice(&run.location.object.0.to_le_bytes());
            bytes.extend_from_slice(&run.location.frame.to_le_bytes());
            bytes.extend_from_slice(&run.start.to_le_bytes());
            bytes.extend_from_slice(&run.count.to_le_bytes());
        }
        bytes
    }

    /// Reads a page, and checks P1.
    pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Self> {
        if !bytes.len().is_multiple_of(RUN) {
            return Err(damaged(name, "a page of the map has half a run".to_owned()));
        }
        let mut end = 0;
        let mut runs = Vec::with_capacity(bytes.len() / RUN);
        for raw in bytes.chunks_exact(RUN) {
            let start = u16::from_le_bytes([raw[12], raw[13]]);
            let count = u16::from_le_bytes([raw[14], raw[15]]);
            let location = Location { object: ObjectNumber(u64_at(raw, 0)), frame: u32_at(raw, 8) };
            let after = u64::from(start) + u64::from(count);
            let frames = location.frame.checked_add(u32::from(count));
            if count == 0 || u64::from(start) < end || after > PAGE_SECTORS || frames.is_none() {
                return Err(damaged(name, "runs of a page of the map overlap".to_owned()));
            }
            end = after;
            runs.push(Run { start, count, location });
        }
        Ok(Self { runs })
    }
}

#[cfg(test)]
mod tests {
    use buttress_base::Rng;

    use super::*;

    /// P1, P2: after any changes a page gives the same results as a plain array, and reports the
    /// same lost frames. The page can be read back from its bytes.
    #[test]
    fn a_page_answers_as_an_array() {
        let mut rng = Rng::new(3);
        let mut page = Page::default();
        let mut model: Vec<Option<Location>> = vec![None; PAGE_SECTORS as usize];
        for step in 0..3000_u64 {
            let start = rng.below(PAGE_SECTORS) as u16;
            let count = (rng.below(60) + 1).min(PAGE_SECTORS - u64::from(start)) as u16;
            let number = ObjectNumber(step / 8);
            let location = (rng.below(4) > 0)
                .then(|| Location { object: number, frame: rng.below(100) as u32 });
            let mut removed = Vec::new();
            page.set(start, count, location, &mut removed);
            let mut lost = 0;
            for at in 0..count {
                let cell = &mut model[usize::from(start + at)];
                lost += u32::from(cell.is_some());
                let next = |location: Location| Location {
                    frame: location.frame + u32::from(at),
                    ..location
                };
                *cell = location.map(next);
            }
            assert_eq!(removed.iter().map(|(_, count)| count).sum::<u32>(), lost);
        }
        let page = Page::decode("x", &page.encode()).expect("whole");
        let mut at = 0;
        while at < PAGE_SECTORS as u16 {
            let (location, count) = page.find(at);
            for within in 0..count {
                let next = |location: Location| Location {
                    frame: location.frame + u32::from(within),
                    ..location
                };
                assert_eq!(model[usize::from(at + within)], location.map(next));
            }
            at += count;
        }
    }
}
