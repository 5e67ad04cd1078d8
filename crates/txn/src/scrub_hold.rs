//! The block group that a scrub holds read-only, and that a flushing thread can release.

use std::sync::Arc;

use buttress_base::sync::Mutex;
use buttress_space::ReadOnlyHold;

/// The group that a scrub holds, where a thread that makes room finds it. One scrub holds at a
/// time.
///
/// Unranked: the group is marked inside.
#[derive(Debug, Default)]
pub(crate) struct ScrubHold(Mutex<Option<Arc<ReadOnlyHold>>>);

/// A group that this scrub holds, for as long as this lives or until a ticket needs room.
pub struct HeldGroup<'e> {
    slot: &'e ScrubHold,
    hold: Arc<ReadOnlyHold>,
}

impl HeldGroup<'_> {
    /// Waits until nothing is under way in the group.
    pub(crate) fn drain(&self) {
        self.hold.drain();
    }

    /// Whether it is still held.
    pub fn lasts(&self) -> bool {
        self.hold.lasts()
    }
}

impl Drop for HeldGroup<'_> {
    fn drop(&mut self) {
        self.slot.0.lock().take_if(|hold| Arc::ptr_eq(hold, &self.hold));
        self.hold.let_go();
    }
}

impl ScrubHold {
    /// Stores the hold that `hold` returns where a flushing thread finds it from the first moment
    /// on. Returns `None` when another scrub holds a group.
    pub(crate) fn put(&self, hold: impl FnOnce() -> Option<ReadOnlyHold>) -> Option<HeldGroup<'_>> {
        let mut place = self.0.lock();
        if place.is_some() {
            return None;
        }
        let hold = Arc::new(hold()?);
        *place = Some(Arc::clone(&hold));
        Some(HeldGroup { slot: self, hold })
    }

    /// Makes the held group writable again. Returns whether a group was held.
    pub(crate) fn let_go(&self) -> bool {
        let hold = self.0.lock().take();
        hold.is_some_and(|hold| hold.let_go())
    }
}
