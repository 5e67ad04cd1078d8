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

/// Tells all accounts, by the names that `buttress stats` has for them in its section `space`: a number each, so that
/// nobody has to take a text apart.
fn tell(kind: SpaceKind, bytes: u64, accounts: &Accounts) {
    let Accounts { data, metadata, system, promised, running, waiting, .. } = accounts;
    tracing::debug!(
        target: "buttress::enospc",
        %kind,
        bytes,
        data_total_bytes = data.total,
        data_used_bytes = data.used,
        data_reserved_bytes = data.reserved,
        data_pinned_bytes = data.pinned,
        data_read_only_bytes = data.read_only,
        data_superblock_bytes = data.super_bytes,
        data_may_use_bytes = data.may_use,
        metadata_total_bytes = metadata.total,
        metadata_used_bytes = metadata.used,
        metadata_reserved_bytes = metadata.reserved,
        metadata_pinned_bytes = metadata.pinned,
        metadata_read_only_bytes = metadata.read_only,
        metadata_superblock_bytes = metadata.super_bytes,
        metadata_may_use_bytes = metadata.may_use,
        system_total_bytes = system.total,
        system_used_bytes = system.used,
        system_reserved_bytes = system.reserved,
        system_pinned_bytes = system.pinned,
        system_read_only_bytes = system.read_only,
        system_superblock_bytes = system.super_bytes,
        system_may_use_bytes = system.may_use,
        global_reserve_bytes = metadata.global_reserve,
        for_copies_bytes = accounts.all_for_copies(),
        unallocated_bytes = accounts.unallocated,
        unreserved_bytes = accounts.unreserved,
        promised_items = promised.all_items(),
        promised_bytes = promised.bytes,
        running_items = running.0,
        running_bytes = running.1,
        frozen_bytes = accounts.frozen,
        height = accounts.height,
        waiting_for_data = waiting.0,
        waiting_for_metadata = waiting.1,
        "no space"
    );
}

impl Engine {
    /// Tells, keeps and counts that nobody has so many bytes of a kind; the error that says so.
    pub(crate) fn no_space(&self, kind: SpaceKind, bytes: u64) -> Error {
        let accounts = self.accounts();
        *self.counters.refused.lock() = Some(Refused { kind, bytes, at: clock::now(), accounts });
        self.counters.enospc.fetch_add(1, Ordering::Release);
        tell(kind, bytes, &accounts);
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
