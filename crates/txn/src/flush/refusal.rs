//! Somebody is refused space: told to whoever listens, counted, and the last time kept with all accounts.
//!
//! # Invariants
//!
//! - **R1** Whoever sees that somebody was refused finds the last time, too: it is kept first, and counted second.
//! - **R2** Who refuses holds no short lock: all accounts are looked at. What is kept is locked for a copy alone.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use buttress_base::clock;
use buttress_space::SpaceKind;

use crate::{Accounts, Engine, Error};

/// The last time that somebody was refused space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Of what.
    pub kind: SpaceKind,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// How long ago.
    pub ago: Duration,
    /// All accounts at that moment.
    pub accounts: Accounts,
}

/// The same, as it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    kind: SpaceKind,
    bytes: u64,
    at: Instant,
    accounts: Accounts,
}

impl Engine {
    /// Tells, keeps and counts that nobody has so many bytes of a kind; the error that says so.
    pub(crate) fn no_space(&self, kind: SpaceKind, bytes: u64) -> Error {
        let accounts = self.accounts();
        *self.counters.refused.lock() = Some(Refused { kind, bytes, at: clock::now(), accounts });
        self.counters.enospc.fetch_add(1, Ordering::Release);
        tracing::debug!(target: "buttress::enospc", %kind, bytes, %accounts, "no space");
        Error::NoSpace(match kind {
            SpaceKind::Data => "data",
            SpaceKind::Metadata | SpaceKind::System => "metadata",
        })
    }

    /// The last time that somebody was refused space, if there was one.
    #[must_use]
    pub fn last_refusal(&self) -> Option<Refusal> {
        let refused = *self.counters.refused.lock();
        refused.map(|Refused { kind, bytes, at, accounts }| Refusal {
            kind,
            bytes,
            ago: clock::since(at),
            accounts,
        })
    }
}
