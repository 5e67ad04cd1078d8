//! Reports and counts waits, steps and refusals. Each event is counted even when no subscriber
//! listens.

use buttress_base::clock;
use buttress_space::SpaceKind;

use crate::Error;
use crate::counters::Counters;
use crate::counters::refusal::Refused;
use crate::counters::steps::{Before, Gain};
use crate::counters::waits::{End, Wait, name_of};
use crate::queues::Queues;
use crate::reserve::{Accounts, Reservations};

/// Reports all accounts under the names of section `space` of `buttress stats`. Each figure is a
/// separate field, so that readers need not parse text.
fn report_accounts(kind: SpaceKind, bytes: u64, accounts: &Accounts) {
    let Accounts { data, metadata, system, outstanding, running, waiting, .. } = accounts;
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
        reserved_items = outstanding.all_items(),
        reserved_bytes = outstanding.bytes,
        running_items = running.0,
        running_bytes = running.1,
        frozen_bytes = accounts.frozen,
        height = accounts.height,
        waiting_for_data = waiting.0,
        waiting_for_metadata = waiting.1,
        "no space"
    );
}

impl Counters {
    /// Reports, keeps and counts a refusal: no group has `bytes` of this kind. Returns the error.
    pub(crate) fn no_space(
        &self,
        reservations: &Reservations,
        kind: SpaceKind,
        bytes: u64,
    ) -> Error {
        let accounts = reservations.accounts();
        self.note_refused(Refused { kind, bytes, at: clock::now(), accounts });
        report_accounts(kind, bytes, &accounts);
        Error::NoSpace(match kind {
            SpaceKind::Data => "data",
            SpaceKind::Metadata | SpaceKind::System => "metadata",
        })
    }

    /// Reports the forecast and the actual gain of a step, in bytes. The actual gain is too low if
    /// other threads reserved space during the step.
    pub(crate) fn report_step(&self, queues: Queues<'_>, before: &Before, gain: Gain) {
        let &Before { kind, step, waiting, room, forecast } = before;
        let is_served = gain.served > 0;
        let served = if is_served { waiting.saturating_sub(queues.waiting_bytes(kind)) } else { 0 };
        let yielded = (queues.reservable(kind) + served).saturating_sub(room);
        self.note_step(before, gain, yielded);
        tracing::debug!(
            target: "buttress::flush",
            source = "tickets",
            %kind,
            step = %step.name(),
            waiting,
            forecast,
            yielded,
            gained = gain.gained,
            served = gain.served,
            "made room"
        );
    }

    pub(crate) fn report_wait(&self, wait: &Wait) {
        self.note_wait(wait);
        let &Wait { kind, reach, bytes, waited, end } = wait;
        tracing::debug!(
            target: "buttress::reserve",
            %kind,
            bytes,
            reach = %name_of(reach),
            waited_us = waited.as_micros() as u64,
            granted = end == End::Granted,
            interrupted = end == End::Interrupted,
            "waited for space"
        );
    }
}
