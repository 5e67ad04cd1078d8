//! The block group that a scrub holds read-only, and that a flushing thread can release.

use std::sync::Arc;

use buttress_base::sync::Mutex;
use buttress_space::ReadOnlyHold;

/// The group that a scrub holds. A thread that makes room finds the group here and can release it.
/// Only one scrub holds a group at a time.
///
/// Unranked: the group is marked read-only while this lock is held.
#[derive(Debug, Default)]
pub(crate) struct ScrubHold(Mutex<Option<Arc<ReadOnlyHold>>>);

/// A group that this scrub holds, until this value is dropped or a thread that makes room releases
/// the group.
pub struct HeldGroup<'e> {
    slot: &'e ScrubHold,
    hold: Arc<ReadOnlyHold>,
}

impl HeldGroup<'_> {
    /// Waits until allocations and writes in the group have ended.
    pub(crate) fn drain(&self) {
        self.hold.drain();
    }

    /// Whether the group is still held.
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }
}

impl Drop for HeldGroup<'_> {
    fn drop(&mut self) {
        self.slot.0.lock().take_if(|hold| Arc::ptr_eq(hold, &self.hold));
        self.hold.release();
    }
}

impl ScrubHold {
    /// Calls `hold` and stores the result under the lock, so that a flushing thread finds the hold
    /// from the first moment on. Returns `None` when another scrub holds a group, or when `hold`
    /// returns `None`.
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
    pub(crate) fn release(&self) -> bool {
        let hold = self.0.lock().take();
        hold.is_some_and(|hold| hold.release())
    }
}
