//! Stopping allocations and writes in a group, and waiting until the last of them is done.
//!
//! # Place
//!
//! Balance and the removal of devices hold a group read-only while they move what does not change. A scrub need not: what it
//! holds against checksums is never written in place, and its view keeps that from being freed. It does where it is asked
//! to, to compare copies of what has no checksums (`txn::scrub_hold`).
//! Writers in place take a [`NocowWriter`] before they look at what they overwrite, and keep it until it is
//! visible.
//!
//! # Invariants
//!
//! - **Q1** A group is read-only as long as anybody holds it so; nested holds count.
//! - **Q2** Once [`ReadOnlyHold::drain`] has returned, and as long as the hold lasts: nothing is allocated in the
//!   group, no extent in it is allocated and not yet recorded, and nobody writes into it in place.
//!
//! The order of a drain: allocators first (they see the mark, or have reserved, under the group's lock), then
//! writers in place, then extents whose data is on its way, which are the reserved ones. `tests/transition` has all of
//! them at once, and finds what goes wrong without any one.
//!
//! # Locks
//!
//! Draining waits, so the caller holds no lock, no handle, and nothing that a writer needs to finish.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_format::{Extent, Logical};

#[cfg(feature = "baselines")]
use crate::Finder;
use crate::guard::Counted;
use crate::{Error, Group, LookupPolicy, Space, SpaceKind};

/// Keeps a group from being given out and written to in place.
#[must_use = "the group can be written to again when this is dropped"]
pub struct ReadOnlyHold {
    space: Arc<Space>,
    group: Arc<Group>,
    let_go: AtomicBool,
}

impl ReadOnlyHold {
    /// The group.
    #[must_use]
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Waits until what began before the group was held is done (Q2). Whatever holds up those writers, a
    /// transaction that cannot begin for instance, holds this up too.
    pub fn drain(&self) {
        self.drain_writers();
        self.drain_extents();
    }

    /// Ends it early, whoever has it and drains the group: a drain on its way says nothing any more, and does not wait for
    /// extents that are allocated from now on. Says whether it was still held.
    pub fn let_go(&self) -> bool {
        let was_held = !self.let_go.swap(true, Ordering::SeqCst);
        if was_held {
            let ledger = self.space.ledger(self.group.kind());
            self.group.change(ledger, |state| state.allow_writes());
            self.group.mark_stopped();
            self.space.serve_freed();
        }
        was_held
    }

    /// Whether nobody has let it go so far.
    #[must_use]
    pub fn lasts(&self) -> bool {
        !self.let_go.load(Ordering::SeqCst)
    }

    /// Waits for those who write in place.
    pub(crate) fn drain_writers(&self) {
        match self.space.lookup_policy() {
            LookupPolicy::Lockfree => self.space.writers_in_place().drain(self.group.slot()),
            #[cfg(feature = "baselines")]
            LookupPolicy::RwlockDouble | LookupPolicy::RwlockSingle => {
                self.group.wait_for_writers();
            }
        }
    }

    /// Waits for extents that are not recorded yet.
    pub(crate) fn drain_extents(&self) {
        self.group.wait_for_reserved();
    }
}

impl fmt::Debug for ReadOnlyHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadOnlyHold").field("group", &self.group.start()).finish()
    }
}

impl Drop for ReadOnlyHold {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// The right to write into a group in place: while it lives, nobody who drains the group goes on.
#[derive(Debug)]
#[must_use = "given back when dropped"]
pub struct NocowWriter(Way);

/// How it is given back.
enum Way {
    Counted {
        _counted: Counted,
    },
    #[cfg(feature = "baselines")]
    Kept(Arc<Group>),
    /// By another search.
    #[cfg(feature = "baselines")]
    Found(Finder, Logical),
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counted { .. } => "Counted",
            #[cfg(feature = "baselines")]
            Self::Kept(_) => "Kept",
            #[cfg(feature = "baselines")]
            Self::Found(..) => "Found",
        })
    }
}

impl Drop for NocowWriter {
    fn drop(&mut self) {
        match &self.0 {
            Way::Counted { .. } => {}
            #[cfg(feature = "baselines")]
            Way::Kept(group) => group.writer_left(),
            #[cfg(feature = "baselines")]
            Way::Found(finder, at) => {
                let group = finder.group_at(*at).expect("a group that is written to stays");
                group.writer_left();
            }
        }
    }
}

impl Space {
    /// Lets nothing more be allocated or written in place in the group that starts at `start`, as long as the
    /// answer lives. Does not wait: [`ReadOnlyHold::drain`] does.
    ///
    /// # Errors
    ///
    /// When there is no such group; [`Error::Promised`] when data that was promised needs what is free in it: make
    /// room elsewhere and ask again.
    pub fn hold_read_only(self: &Arc<Self>, start: Logical) -> Result<ReadOnlyHold, Error> {
        let group = self.group_at(start).filter(|group| group.start() == start);
        let group = group.ok_or(Error::NoGroup { at: start })?;
        let ledger = self.ledger(group.kind());
        // Who frees space may have been promised the global reserve, which a commit knows how to do without.
        if group.kind() == SpaceKind::Data {
            group.stop(ledger)?;
        } else {
            group.change(ledger, |state| state.stop_writes());
        }
        group.mark_stopped();
        Ok(ReadOnlyHold { space: Arc::clone(self), group, let_go: AtomicBool::new(false) })
    }

    /// Whether the group that holds an address is held read-only, or there is none.
    #[must_use]
    pub fn is_stopped(&self, at: Logical) -> bool {
        self.group_at(at).is_none_or(|group| group.is_stopped())
    }

    /// The right to write `extent` in place; nothing where its group is read-only, or there is none.
    ///
    /// To be had before looking at what is overwritten: what is found afterwards stays until it is given back.
    pub fn begin_nocow(self: &Arc<Self>, extent: Extent) -> Option<NocowWriter> {
        #[cfg(feature = "baselines")]
        if self.lookup_policy() != LookupPolicy::Lockfree {
            return self.begin_by_map(extent);
        }
        let directory = self.directory();
        let group = directory.find_whole(extent).ok()?;
        let counted = self.writers_in_place().enter(group.slot());
        // Counted first, then looked: see the guards' W1.
        (!group.is_stopped()).then_some(NocowWriter(Way::Counted { _counted: counted }))
    }

    /// The same by the baselines.
    #[cfg(feature = "baselines")]
    fn begin_by_map(self: &Arc<Self>, extent: Extent) -> Option<NocowWriter> {
        let group = self.group_at(extent.start)?;
        let within = extent.start.distance(group.start());
        if extent.len > group.len() - within || !group.writer_enters() {
            return None;
        }
        let again = self.lookup_policy() == LookupPolicy::RwlockDouble;
        Some(NocowWriter(match again.then(|| self.finder()).flatten() {
            Some(finder) => Way::Found(finder, extent.start),
            None => Way::Kept(group),
        }))
    }
}
