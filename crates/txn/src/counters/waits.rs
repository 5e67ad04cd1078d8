//! Waits for space. Each wait is reported to subscribers, and all waits are added up.
//!
//! # Invariants
//!
//! - **W1** Each reported wait is counted in exactly one entry of `WaitsByQueue` with the same
//!   figures, even when there is no subscriber.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use buttress_space::{Reach, SpaceKind};

/// Number of classes. Each class counts the waits below a power of two of microseconds; the last
/// class starts at over four minutes.
const CLASSES: usize = 30;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The request was granted.
    Granted,
    /// The request was refused: no flush state made enough space.
    Refused,
    /// The caller gave the request up.
    Interrupted,
    /// The volume is no longer written, or flushing for space failed.
    Failed,
}

/// One finished wait for space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) kind: SpaceKind,
    /// The events for which the waiting thread could wait.
    pub(crate) reach: Reach,
    /// Number of bytes requested.
    pub(crate) bytes: u64,
    pub(crate) waited: Duration,
    pub(crate) end: End,
}

/// The waits of one queue, without a lock.
#[derive(Debug, Default)]
struct WaitCounter {
    classes: [AtomicU64; CLASSES],
    nanos: AtomicU64,
    nanos_max: AtomicU64,
    bytes: AtomicU64,
    granted: AtomicU64,
    granted_bytes: AtomicU64,
    refused: AtomicU64,
    interrupted: AtomicU64,
}

impl WaitCounter {
    fn note(&self, &Wait { bytes, waited, end, .. }: &Wait) {
        let add = |to: &AtomicU64, what| to.fetch_add(what, Ordering::Relaxed);
        let micros = waited.as_micros() as u64;
        let class = (u64::BITS - micros.leading_zeros()) as usize;
        add(&self.classes[class.min(CLASSES - 1)], 1);
        let nanos = waited.as_nanos() as u64;
        add(&self.nanos, nanos);
        self.nanos_max.fetch_max(nanos, Ordering::Relaxed);
        add(&self.bytes, bytes);
        match end {
            End::Granted => {
                add(&self.granted_bytes, bytes);
                add(&self.granted, 1)
            }
            End::Refused => add(&self.refused, 1),
            End::Interrupted => add(&self.interrupted, 1),
            End::Failed => 0,
        };
    }

    fn snapshot(&self) -> Waits {
        let load = |from: &AtomicU64| from.load(Ordering::Relaxed);
        Waits {
            classes: self.classes.each_ref().map(load),
            nanos: load(&self.nanos),
            nanos_max: load(&self.nanos_max),
            bytes: load(&self.bytes),
            granted: load(&self.granted),
            granted_bytes: load(&self.granted_bytes),
            refused: load(&self.refused),
            interrupted: load(&self.interrupted),
        }
    }
}

/// Index, in arrays of waits, of a kind of space and a reach. A thread with a handle never waits,
/// so its reach has no index.
fn place(kind: SpaceKind, reach: Reach) -> usize {
    2 * usize::from(kind == SpaceKind::Data) + usize::from(reach != Reach::All)
}

/// The name of a line in the output for people and scripts.
pub(crate) fn name_of(reach: Reach) -> &'static str {
    match reach {
        Reach::All => "all",
        Reach::Commit => "commit",
        Reach::Handle => "handle",
    }
}

#[derive(Debug, Default)]
pub(crate) struct WaitCounters([WaitCounter; 4]);

impl WaitCounters {
    pub(crate) fn note(&self, wait: &Wait) {
        self.0[place(wait.kind, wait.reach)].note(wait);
    }

    pub(crate) fn snapshot(&self) -> WaitsByQueue {
        WaitsByQueue(self.0.each_ref().map(WaitCounter::snapshot))
    }
}

/// Waits by kind of space and by the reach of the waiting thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitsByQueue([Waits; 4]);

impl WaitsByQueue {
    /// The waits for one kind of space with one reach.
    #[must_use]
    pub fn of(&self, kind: SpaceKind, reach: Reach) -> Waits {
        self.0[place(kind, reach)]
    }

    /// All waits for a kind.
    #[must_use]
    pub fn of_kind(&self, kind: SpaceKind) -> Waits {
        self.of(kind, Reach::All).and(&self.of(kind, Reach::Commit))
    }

    /// All waits.
    #[must_use]
    pub fn all(&self) -> Waits {
        self.of_kind(SpaceKind::Metadata).and(&self.of_kind(SpaceKind::Data))
    }
}

/// How long the waits for space lasted, and how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Number of waits shorter than one microsecond, two, four, and so on.
    pub classes: [u64; CLASSES],
    /// Sum of all waits, in nanoseconds.
    pub nanos: u64,
    /// The longest wait, in nanoseconds.
    pub nanos_max: u64,
    /// Sum of the bytes requested.
    pub bytes: u64,
    /// Number of granted requests.
    pub granted: u64,
    /// Sum of the bytes granted.
    pub granted_bytes: u64,
    /// Number of refused requests.
    pub refused: u64,
    /// Number of requests that their callers gave up.
    pub interrupted: u64,
}

impl Waits {
    /// Number of waits.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// The waits since an earlier snapshot of the counts. `nanos_max` remains the longest of all
    /// waits.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut classes = self.classes;
        for (class, before) in classes.iter_mut().zip(earlier.classes) {
            *class -= before;
        }
        Self {
            classes,
            nanos: self.nanos - earlier.nanos,
            nanos_max: self.nanos_max,
            bytes: self.bytes - earlier.bytes,
            granted: self.granted - earlier.granted,
            granted_bytes: self.granted_bytes - earlier.granted_bytes,
            refused: self.refused - earlier.refused,
            interrupted: self.interrupted - earlier.interrupted,
        }
    }

    /// The name of a class of [`Waits::classes`] in the output for people and scripts.
    #[must_use]
    pub fn name_of_class(class: usize) -> String {
        if class + 1 < CLASSES {
            format!("below_{}us", 1_u64 << class)
        } else {
            "longer".to_owned()
        }
    }

    /// The sum of these waits and others.
    #[must_use]
    pub fn and(&self, others: &Self) -> Self {
        let mut classes = self.classes;
        for (class, more) in classes.iter_mut().zip(others.classes) {
            *class += more;
        }
        Self {
            classes,
            nanos: self.nanos + others.nanos,
            nanos_max: self.nanos_max.max(others.nanos_max),
            bytes: self.bytes + others.bytes,
            granted: self.granted + others.granted,
            granted_bytes: self.granted_bytes + others.granted_bytes,
            refused: self.refused + others.refused,
            interrupted: self.interrupted + others.interrupted,
        }
    }

    /// An upper limit of the time that `share` of each thousand waits took, exact to a factor of
    /// two.
    #[must_use]
    pub fn per_mille(&self, share: u64) -> Duration {
        let wanted = (self.count() * share).div_ceil(1000);
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                let bound = Duration::from_micros(1 << class);
                return bound.min(Duration::from_nanos(self.nanos_max));
            }
        }
        Duration::ZERO
    }
}
