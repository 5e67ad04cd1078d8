//! The gains of flush steps. Each step is reported to tracing subscribers, and all steps are added
//! up.
//!
//! # Invariants
//!
//! - **S1** Each reported step is counted with the same figures, also without a subscriber.
//! - **S2** A thread that begins to measure or report a step holds no lock, because it then takes
//!   short locks, one after the other.

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_space::{FlushState, SpaceKind};

/// The kinds of space that flush steps run for.
const KINDS: [SpaceKind; 2] = [SpaceKind::Metadata, SpaceKind::Data];

/// The gain of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gain {
    /// Whether the step did anything.
    pub gained: bool,
    /// Number of waiting tickets that were served during the step.
    pub served: u64,
}

/// The state of the accounts before a flush step.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    pub(crate) kind: SpaceKind,
    pub(crate) step: FlushState,
    /// Bytes that waiting tickets requested.
    pub(crate) waiting: u64,
    /// Bytes that could be reserved.
    pub(crate) room: u64,
    /// Bytes that the step was expected to give back.
    pub(crate) forecast: u64,
}

/// Sums over all runs of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepFigures {
    /// Number of runs.
    pub times: u64,
    /// Number of runs that did anything.
    pub gained: u64,
    /// Number of waiting tickets that were served during the runs.
    pub served: u64,
    /// Bytes that the step was expected to give back.
    pub forecast: u64,
    /// Bytes that the step gave back.
    pub yielded: u64,
}

/// The gains of all steps, by the kind of space that the tickets requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushSteps([[StepFigures; FlushState::ALL.len()]; KINDS.len()]);

impl FlushSteps {
    /// The gains of a step for the tickets of a kind. All figures are zero for system space, which
    /// has no tickets.
    #[must_use]
    pub fn of(&self, kind: SpaceKind, step: FlushState) -> StepFigures {
        index(kind).map_or_else(StepFigures::default, |index| self.0[index][step as usize])
    }

    /// All steps of each kind that has tickets, metadata first.
    pub fn rows(&self) -> impl Iterator<Item = (SpaceKind, FlushState, StepFigures)> + '_ {
        let all = KINDS.into_iter().flat_map(|kind| FlushState::ALL.map(|step| (kind, step)));
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
pub(crate) struct StepCounters([[StepCounter; FlushState::ALL.len()]; KINDS.len()]);

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
