//! What an engine counts of what it does.

use std::sync::atomic::AtomicU64;

use buttress_base::sync::Mutex;

pub(crate) mod refusal;
pub(crate) mod steps;
pub(crate) mod waits;

use self::refusal::Refused;
use self::steps::StepCounters;
use self::waits::WaitCounters;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commits: AtomicU64,
    pub(crate) commit_nanos: AtomicU64,
    pub(crate) freeze_nanos_max: AtomicU64,
    pub(crate) nodes_written: AtomicU64,
    pub(crate) settle_rounds_max: AtomicU64,
    pub(crate) reserve_taken_max: AtomicU64,
    pub(crate) waits: WaitCounters,
    pub(crate) steps: StepCounters,
    pub(crate) enospc: AtomicU64,
    /// Unranked: nothing is taken under it.
    pub(crate) refused: Mutex<Option<Refused>>,
    pub(crate) interrupted: AtomicU64,
    pub(crate) audits: AtomicU64,
    pub(crate) audits_overtaken: AtomicU64,
    pub(crate) groups_loaded: AtomicU64,
    pub(crate) groups_left: AtomicU64,
}
