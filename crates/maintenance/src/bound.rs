//! Bounds of the loops of maintenance.
//!
//! # Invariants
//!
//! - **BD1** A loop that no list bounds counts its steps. The most steps follow from the volume at
//!   the beginning of the loop: the bytes of a group or of a device, or the bytes in use. If these
//!   steps are not enough, the loop makes no progress. It then ends with an error.

use std::collections::BTreeMap;
use std::time::Duration;

use buttress_base::sync::Mutex;
use buttress_txn::{Error, Result};

/// The counts of one loop of maintenance since the mount, over all of its runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopSteps {
    /// How often the loop ran.
    pub runs: u64,
    /// Steps of all runs.
    pub steps: u64,
    /// The bounds of all runs, added up.
    pub most: u64,
}

/// The loops of maintenance. The name says what a loop works on.
pub(crate) mod name {
    pub(crate) const CHOSEN: &str = "moving the chosen block groups";
    pub(crate) const ROUNDS: &str = "emptying a block group";
    pub(crate) const LISTS: &str = "listing a block group";
    pub(crate) const ROOM: &str = "making room for a move";
    pub(crate) const READERS: &str = "waiting for readers of a block group";
    pub(crate) const SCRUB: &str = "scrubbing a chunk";
    pub(crate) const TRIM_GROUP: &str = "trimming a block group";
    pub(crate) const TRIM_DEVICE: &str = "trimming a device";
    pub(crate) const DROP: &str = "dropping a subvolume";
    pub(crate) const LEFTOVER: &str = "dropping what a balance left";
    pub(crate) const COPY: &str = "copying a device";
}

/// The counts of all loops.
#[derive(Debug, Default)]
pub(crate) struct Loops {
    /// Unranked: held for a moment, and no other lock is taken under it.
    counts: Mutex<BTreeMap<&'static str, LoopSteps>>,
}

impl Loops {
    /// Begins a run of a loop that takes at most `most` steps (BD1).
    pub(crate) fn begin(&self, name: &'static str, most: u64) -> Bound<'_> {
        Bound { loops: self, name, steps: Steps { taken: 0, most } }
    }

    /// Adds a run that ended.
    pub(crate) fn add(&self, name: &'static str, Steps { taken, most }: Steps) {
        let mut counts = self.counts.lock();
        let sum = counts.entry(name).or_default();
        sum.runs += 1;
        sum.steps += taken;
        sum.most = sum.most.saturating_add(most);
    }

    pub(crate) fn counts(&self) -> BTreeMap<&'static str, LoopSteps> {
        self.counts.lock().clone()
    }
}

/// The steps of one run of a loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    pub(crate) taken: u64,
    pub(crate) most: u64,
}

impl Steps {
    /// Counts a step. Fails if the run had all of its steps (BD1).
    pub(crate) fn step(&mut self, name: &str) -> Result<()> {
        if self.taken >= self.most {
            let what = format!("{name} made no progress in {} steps: check the volume", self.most);
            return Err(Error::Malformed(what));
        }
        self.taken += 1;
        Ok(())
    }
}

/// A run of a loop. Its counts are kept when it ends.
#[derive(Debug)]
pub(crate) struct Bound<'l> {
    loops: &'l Loops,
    name: &'static str,
    steps: Steps,
}

impl Bound<'_> {
    /// As [`Steps::step`].
    pub(crate) fn step(&mut self) -> Result<()> {
        self.steps.step(self.name)
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        self.loops.add(self.name, self.steps);
    }
}

/// The most steps through `len` bytes if each step but the last covers at least `step` bytes.
pub(crate) fn steps_through(len: u64, step: u64) -> u64 {
    len / step.max(1) + 1
}

/// The most waits of `period` within a time.
pub(crate) fn waits_within(whole: Duration, period: Duration) -> u64 {
    u64::try_from(whole.as_nanos() / period.as_nanos().max(1)).unwrap_or(u64::MAX).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BD1: a loop has all of its steps and no more, and its counts are kept.
    #[test]
    fn loop_ends_after_its_steps() {
        let loops = Loops::default();
        for _ in 0..2 {
            let mut bound = loops.begin(name::TRIM_DEVICE, 3);
            (0..3).for_each(|_| bound.step().expect("a step within the bound"));
            let error = bound.step().expect_err("the fourth").to_string();
            assert!(error.contains("trimming a device made no progress in 3 steps"), "{error}");
        }
        let expected = LoopSteps { runs: 2, steps: 6, most: 6 };
        assert_eq!(loops.counts(), BTreeMap::from([(name::TRIM_DEVICE, expected)]));
    }

    #[test]
    fn bounds_cover_the_last_part() {
        assert_eq!([steps_through(0, 4), steps_through(7, 4), steps_through(8, 4)], [1, 2, 3]);
        let (second, period) = (Duration::from_secs(1), Duration::from_millis(300));
        assert_eq!(waits_within(second, period), 4);
    }
}
