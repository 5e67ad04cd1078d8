//! Holding a block group read-only while a scrub looks at it, as Linux does.
//!
//! A scrub of ours needs no such hold (`space::quiesce`), and by default takes none: what is written in place would be
//! copied meanwhile, and writers go elsewhere. It is for who wants to know whether the copies of what has no checksums
//! are alike, which nobody can say beside somebody who writes them.
//!
//! # Invariants
//!
//! - **U4** A group is held only where what is promised, and what is dirty without a promise because it lies in place, fits
//!   into the other groups, and the first step of whoever makes room lets it go: nothing is refused that would be
//!   written without the scrub.

use std::sync::Arc;

use buttress_base::sync::Mutex;
use buttress_format::Logical;
use buttress_space::{ReadOnlyHold, SpaceKind};

use crate::{Cost, Engine, Urgency};

/// What is left to nodes beside what is promised, in bytes: nodes of chunks that others make meanwhile.
const NODES_ROOM: u64 = 1 << 20;

/// The group that a scrub holds, where whoever makes room finds it. One scrub holds at a time.
#[derive(Debug, Default)]
pub(crate) struct ScrubHold(Mutex<Option<Arc<ReadOnlyHold>>>);

/// A group that this scrub holds, for as long as this lives or until somebody needs room.
pub struct HeldGroup<'e> {
    engine: &'e Engine,
    hold: Arc<ReadOnlyHold>,
}

impl HeldGroup<'_> {
    /// Whether nobody has let it go so far.
    pub fn lasts(&self) -> bool {
        self.hold.lasts()
    }
}

impl Drop for HeldGroup<'_> {
    fn drop(&mut self) {
        self.engine.scrub_hold.0.lock().take_if(|hold| Arc::ptr_eq(hold, &self.hold));
        self.hold.let_go();
    }
}

impl Engine {
    /// The group that starts at `start`, held and drained; nothing where the other groups of its kind have no room for
    /// what its writers were promised, where there is none, another scrub holds one, or nobody writes the volume.
    pub fn hold_for_scrub(&self, start: Logical) -> Option<HeldGroup<'_>> {
        if self.read_only().is_some() {
            return None;
        }
        let group = self.space.group_at(start)?;
        let kind = group.kind();
        if !self.has_room_without(kind, group.available()) {
            return None;
        }
        let held = self.hold_where_it_is_found(start)?;
        // Promises that were made between the look and the hold.
        if !self.has_room_without(kind, 0) {
            return None;
        }
        self.close_windows();
        held.hold.drain();
        // Who wrote in place until now may have left it dirty; and who made room may have let it go.
        (self.has_room_without(kind, 0) && held.lasts()).then_some(held)
    }

    /// Holds a group, where whoever makes room finds it from the first moment: those who are waited for may need it.
    fn hold_where_it_is_found(&self, start: Logical) -> Option<HeldGroup<'_>> {
        let mut place = self.scrub_hold.0.lock();
        if place.is_some() {
            return None;
        }
        let hold = Arc::new(self.space.hold_read_only(start).ok()?);
        *place = Some(Arc::clone(&hold));
        Some(HeldGroup { engine: self, hold })
    }

    /// Lets what a scrub holds be written again; says whether there was anything.
    pub(crate) fn let_scrub_go(&self) -> bool {
        let hold = self.scrub_hold.0.lock().take();
        hold.is_some_and(|hold| hold.let_go())
    }

    /// Whether groups of a kind that give something out have all that is owed, when `leaving` bytes of what is free are
    /// about to be given out no more (U4).
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
