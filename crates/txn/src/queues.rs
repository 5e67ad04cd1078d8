//! The two queues of tickets that wait for space: data has one in `space`, metadata has one in
//! `reserve`.

use buttress_space::{FlushState, Priority, SpaceKind, TicketNumber};

use crate::counters::steps::Before;
use crate::reserve::Reservations;
use crate::{Cost, ReserveClass, Storage};

/// Both queues, and the space that their tickets wait for.
#[derive(Clone, Copy)]
pub struct Queues<'e> {
    storage: &'e Storage,
    reservations: &'e Reservations,
}

impl<'e> Queues<'e> {
    pub(crate) fn new(storage: &'e Storage, reservations: &'e Reservations) -> Self {
        Self { storage, reservations }
    }

    /// Whether a ticket waits for a kind of space.
    #[must_use]
    pub fn has_waiters(self, kind: SpaceKind) -> bool {
        match kind {
            SpaceKind::Data => self.storage.space().data_queue().is_waiting(),
            SpaceKind::Metadata => self.reservations.queue().is_waiting(),
            SpaceKind::System => false,
        }
    }

    /// Sum of the bytes that waiting tickets request.
    #[must_use]
    pub fn waiting_bytes(self, kind: SpaceKind) -> u64 {
        match kind {
            SpaceKind::Data => self.storage.space().data_queue().sum(|bytes| *bytes),
            SpaceKind::Metadata => {
                self.reservations.queue().sum(|demand| self.reservations.bytes_of(demand.cost))
            }
            SpaceKind::System => 0,
        }
    }

    /// Serves the tickets that wait for a kind of space while their requests fit. Returns the
    /// number of served tickets.
    pub fn serve(self, kind: SpaceKind) -> u64 {
        match kind {
            SpaceKind::Data if self.storage.space().data_queue().is_waiting() => {
                self.storage.space().serve_data(|| self.data_leaves_metadata())
            }
            SpaceKind::Metadata => self.reservations.serve(),
            SpaceKind::Data | SpaceKind::System => 0,
        }
    }

    /// Serves the tickets of both kinds of space after space was freed.
    pub fn serve_all(self) {
        self.serve_counted(SpaceKind::Metadata);
        self.serve_counted(SpaceKind::Data);
    }

    /// Number of tickets served since the engine was opened.
    #[must_use]
    pub fn served(self, kind: SpaceKind) -> u64 {
        match kind {
            SpaceKind::Data => self.storage.space().data_queue().served(),
            SpaceKind::Metadata | SpaceKind::System => self.reservations.queue().served(),
        }
    }

    /// Serves the waiting tickets. If tickets for metadata still wait, counts the needed nodes
    /// again and serves once more.
    pub fn serve_counted(self, kind: SpaceKind) {
        match kind {
            SpaceKind::Metadata => self.reservations.serve_counted(),
            SpaceKind::Data | SpaceKind::System => drop(self.serve(kind)),
        }
    }

    /// The number that the next ticket in the queue for a kind of space will get.
    #[must_use]
    pub fn next_ticket(self, kind: SpaceKind) -> TicketNumber {
        match kind {
            SpaceKind::Data => self.storage.space().data_queue().next_ticket(),
            SpaceKind::Metadata | SpaceKind::System => self.reservations.queue().next_ticket(),
        }
    }

    /// Refuses the tickets that were queued before `before`, in order, until a later ticket fits
    /// (`flush::F2`). Tickets with priority flush for themselves and give up by themselves.
    pub fn refuse(self, kind: SpaceKind, before: TicketNumber) {
        let blocks = |priority| match kind {
            SpaceKind::Data => self.storage.space().data_queue().blocks(priority),
            _ => self.reservations.queue().blocks(priority),
        };
        let refuse_first = || match kind {
            SpaceKind::Data => {
                self.storage.space().data_queue().refuse_first(Priority::Normal, before)
            }
            _ => self.reservations.queue().refuse_first(Priority::Normal, before),
        };
        // Space may have been freed since the last step.
        if self.serve(kind) > 0 {
            return;
        }
        while !blocks(Priority::High) && refuse_first() {
            if self.serve(kind) > 0 {
                break;
            }
        }
    }

    /// Refuses every waiting ticket (`flush::F3`).
    pub(crate) fn refuse_all(self) {
        self.reservations.queue().refuse_all();
        self.storage.space().data_queue().refuse_all();
    }

    /// Serves tickets that fit, and returns whether any was served since the count was `before`.
    pub(crate) fn served_since(self, kind: SpaceKind, before: u64) -> bool {
        self.serve_counted(kind);
        self.served(kind) != before
    }

    /// Whether data leaves enough space for all that metadata has reserved. Always true without
    /// mixed groups.
    pub(crate) fn data_leaves_metadata(self) -> bool {
        !self.storage.space().is_mixed()
            || self.reservations.may_reserve(Cost::default(), ReserveClass::Normal)
    }

    /// Records the state of the accounts before a step.
    #[must_use]
    pub fn before_step(self, kind: SpaceKind, step: FlushState) -> Before {
        let account = self.storage.space().account(kind);
        let (room, held) = match kind {
            SpaceKind::Data => (account.free().saturating_sub(account.may_use), 0),
            _ => {
                let pools = self.reservations.pools(0, 0);
                let held = match step {
                    FlushState::Commit => pools.to_commit() + pools.frozen,
                    FlushState::Dirty | FlushState::AllDirty | FlushState::Ordered => {
                        pools.filled() - pools.to_commit()
                    }
                    FlushState::Count => pools.paths,
                    _ => 0,
                };
                (pools.headroom(), held)
            }
        };
        let forecast = match step {
            FlushState::Chunk => self.storage.devices().available(self.storage.kind_flags(kind)),
            FlushState::Unpin | FlushState::Readers | FlushState::Commit => held + account.pinned,
            FlushState::Count
            | FlushState::Dirty
            | FlushState::AllDirty
            | FlushState::Ordered
            | FlushState::Clean => held,
        };
        Before { kind, step, waiting: self.waiting_bytes(kind), room, forecast }
    }

    /// Bytes that can be reserved now.
    pub(crate) fn reservable(self, kind: SpaceKind) -> u64 {
        match kind {
            SpaceKind::Data => {
                let account = self.storage.space().account(kind);
                account.free().saturating_sub(account.may_use)
            }
            SpaceKind::Metadata | SpaceKind::System => self.reservations.pools(0, 0).headroom(),
        }
    }
}
