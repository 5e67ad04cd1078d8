//! Holding a block group read-only while a scrub looks at it, as Linux does.
//!
//! A scrub of ours needs no such hold (`space::quiesce`), and by default takes none: what is
//! written in place would be copied meanwhile, and writers go elsewhere. It is for who wants to
//! know whether the copies of what has no checksums are alike, which nobody can say beside
//! somebody who writes them.
//!
//! # Invariants
//!
//! - **U4** A group is held only where what is promised, and what is dirty without a promise
//!   because it lies in place, fits into the other groups, and the first step of whoever makes
//!   room lets it go: nothing is refused that would be written without the scrub.

use buttress_format::Logical;
use buttress_space::SpaceKind;

use crate::scrub_hold::HeldGroup;
use crate::{Cost, Engine, Urgency};

/// What is left to nodes beside what is promised, in bytes: nodes of chunks that others make
/// meanwhile.
const NODES_ROOM: u64 = 1 << 20;

impl Engine {
    /// The group that starts at `start`, held and drained; nothing where the other groups of its
    /// kind have no room for what its writers were promised, where there is none, another scrub
    /// holds one, or nobody writes the volume.
    pub fn hold_for_scrub(&self, start: Logical) -> Option<HeldGroup<'_>> {
        if self.read_only().is_some() {
            return None;
        }
        let group = self.space.group_at(start)?;
        let kind = group.kind();
        if !self.has_room_without(kind, group.available()) {
            return None;
        }
        let held = self.scrub_hold.put(|| self.space.hold_read_only(start).ok())?;
        // Promises that were made between the look and the hold.
        if !self.has_room_without(kind, 0) {
            return None;
        }
        self.close_windows();
        held.drain();
        // Who wrote in place until now may have left it dirty; and who made room may have let it
        // go.
        (self.has_room_without(kind, 0) && held.lasts()).then_some(held)
    }

    /// Lets what a scrub holds be written again; says whether there was anything.
    pub(crate) fn let_scrub_go(&self) -> bool {
        self.scrub_hold.let_go()
    }

    /// Whether groups of a kind that give something out have all that is owed, when `leaving`
    /// bytes of what is free are about to be given out no more (U4).
    fn has_room_without(&self, kind: SpaceKind, leaving: u64) -> bool {
        let account = self.space.account(kind);
        let free = account.free().saturating_sub(account.may_use).saturating_sub(leaving);
        // In mixed groups data lies among metadata.
        let in_place = if kind == SpaceKind::System { 0 } else { self.space.unreserved() };
        match kind {
            SpaceKind::Data => free >= in_place,
            SpaceKind::System => free >= NODES_ROOM,
            SpaceKind::Metadata => {
                free >= NODES_ROOM + in_place && self.may_reserve(Cost::default(), Urgency::Normal)
            }
        }
    }
}
