//! Holding a block group read-only while a scrub looks at it, as Linux does.
//!
//! A scrub needs no such hold (`space::quiesce`), and takes none by default. A hold has a cost:
//! writes in place become copies, and writers must use other groups. A scrub asks for a hold when
//! it compares the copies of data without checksums: while a thread writes, these copies may
//! differ.
//!
//! # Invariants
//!
//! - **U4** A group is held only if the other groups have room for all reservations. The other
//!   groups must also have room for dirty data without a reservation, which would be written in
//!   place. The first flush step releases the group. So a scrub causes no refusal.

use buttress_format::Logical;
use buttress_space::SpaceKind;

use crate::reserve::Reservations;
use crate::scrub_hold::HeldGroup;
use crate::{Allocation, Commits, Cost, ReserveClass, Storage};

/// Bytes of metadata that must stay free beyond all reservations, for the nodes of chunks that
/// other threads make meanwhile.
const NODES_ROOM: u64 = 1 << 20;

impl Allocation {
    /// Holds and drains the group that starts at `start`. Returns `None` if there is no such group,
    /// if another scrub holds a group, or if the volume is read-only. Returns `None` also if the
    /// other groups of the same kind cannot take the reservations of the group's writers.
    pub fn hold_for_scrub(
        &self,
        storage: &Storage,
        commits: &Commits,
        reservations: &Reservations,
        start: Logical,
    ) -> Option<HeldGroup<'_>> {
        if commits.read_only(storage).is_some() {
            return None;
        }
        let group = storage.space().group_at(start)?;
        let kind = group.kind();
        if !storage.has_room_without(reservations, kind, group.available()) {
            return None;
        }
        let held = self.scrub_hold().put(|| storage.space().hold_read_only(start).ok())?;
        // This second check includes reservations that were made between the first check and the
        // hold.
        if !storage.has_room_without(reservations, kind, 0) {
            return None;
        }
        self.windows().close();
        held.drain();
        // A thread that wrote in place until now may have left dirty data. A flushing thread may
        // have released the group.
        (storage.has_room_without(reservations, kind, 0) && held.is_held()).then_some(held)
    }
}

impl Storage {
    /// Whether the groups of a kind that still allocate have enough space for all reservations.
    /// `leaving` bytes of their free space are about to become read-only (U4).
    fn has_room_without(&self, reservations: &Reservations, kind: SpaceKind, leaving: u64) -> bool {
        let account = self.space().account(kind);
        let free = account.free().saturating_sub(account.may_use).saturating_sub(leaving);
        // In mixed groups data lies among metadata.
        let in_place = if kind == SpaceKind::System { 0 } else { self.space().unreserved() };
        match kind {
            SpaceKind::Data => free >= in_place,
            SpaceKind::System => free >= NODES_ROOM,
            SpaceKind::Metadata => {
                free >= NODES_ROOM + in_place
                    && reservations.may_reserve(Cost::default(), ReserveClass::Normal)
            }
        }
    }
}
