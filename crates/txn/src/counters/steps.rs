//! What the flush steps gained: told one by one to subscribers, and added up.
//!
//! # Invariants
//!
//! - **S1** Each step that is told is counted, with the same figures, also without a subscriber.
//! - **S2** A thread that looks before a step or tells of it holds no lock: a look takes short
//!   ones, one after the other.

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_space::{SpaceKind, Step};

/// The kinds of space that flush steps run for.
const KINDS: [SpaceKind; 2] = [SpaceKind::Metadata, SpaceKind::Data];

/// What one step gained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gain {
    /// Something was done.
    pub gained: bool,
    /// How many waiting tickets were served meanwhile.
    pub served: u64,
}

/// What there was before a flush step.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    pub(crate) kind: SpaceKind,
    pub(crate) step: Step,
    /// Bytes that were waited for.
    pub(crate) waiting: u64,
    /// Bytes that could be reserved.
    pub(crate) room: u64,
    /// Bytes that the step was thought to give back.
    pub(crate) forecast: u64,
}

/// What one step gained, all times together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepFigures {
    /// How often it was taken.
    pub times: u64,
    /// How often something was done.
    pub gained: u64,
    /// How many waiting tickets were served meanwhile.
    pub served: u64,
    /// Bytes that it was thought to give back.
    pub forecast: u64,
    /// Bytes that it did.
    pub yielded: u64,
}

/// What all steps gained, by the kind of space that was waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushSteps([[StepFigures; Step::ALL.len()]; KINDS.len()]);

impl FlushSteps {
    /// What a step gained for the tickets of a kind; nothing for a kind without tickets.
    #[must_use]
    pub fn of(&self, kind: SpaceKind, step: Step) -> StepFigures {
        index(kind).map_or_else(StepFigures::default, |index| self.0[index][step as usize])
    }

    /// All steps that there are for each kind, metadata first.
    pub fn rows(&self) -> impl Iterator<Item = (SpaceKind, Step, StepFigures)> + '_ {
        let all = KINDS.into_iter().flat_map(|kind| Step::ALL.map(|step| (kind, step)));
        let named = all.filter(|(kind, step)| step.is_for(*kind));
        named.map(|(kind, step)| (kind, step, self.of(kind, step)))
    }
}

fn index(kind: SpaceKind) -> Option<usize> {
    KINDS.iter().position(|known| *known == kind)
}

#[derive(Debug, Default)]
struct StepCounter {
    times: AtomicU64,
    gained: AtomicU64,
    served: AtomicU64,
    forecast: AtomicU64,
    yielded: AtomicU64,
}

impl StepCounter {
    fn snapshot(&self) -> StepFigures {
        StepFigures {
            times: self.times.load(Ordering::Relaxed),
            gained: self.gained.load(Ordering::Relaxed),
            served: self.served.load(Ordering::Relaxed),
            forecast: self.forecast.load(Ordering::Relaxed),
            yielded: self.yielded.load(Ordering::Relaxed),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct StepCounters([[StepCounter; Step::ALL.len()]; KINDS.len()]);

impl StepCounters {
    pub(crate) fn note(&self, before: &Before, gain: Gain, yielded: u64) {
        let Some(index) = index(before.kind) else { return };
        let counter = &self.0[index][before.step as usize];
        counter.times.fetch_add(1, Ordering::Relaxed);
        counter.gained.fetch_add(u64::from(gain.gained), Ordering::Relaxed);
        counter.served.fetch_add(gain.served, Ordering::Relaxed);
        counter.forecast.fetch_add(before.forecast, Ordering::Relaxed);
        counter.yielded.fetch_add(yielded, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> FlushSteps {
        FlushSteps(self.0.each_ref().map(|steps| steps.each_ref().map(StepCounter::snapshot)))
    }
}
