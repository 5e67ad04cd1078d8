//! A hold on a group stops allocations and writes in it. A drain waits until the last write is
//! done.
//!
//! # Place
//!
//! Balance and the removal of devices hold a group read-only, so that the extents that are being
//! moved do not change. A scrub needs no hold: data with checksums is never written in place, and
//! the scrub's view keeps this data from being freed. On request a scrub takes a hold, to compare
//! copies of data without checksums (`txn::scrub_hold`). Writers in place take a [`NocowWriter`]
//! before they look at the extent that they overwrite, and keep it until the write is visible.
//!
//! # Invariants
//!
//! - **Q1** A group is read-only while at least one hold on it lives; several holds may live at
//!   once.
//! - **Q2** From the return of [`ReadOnlyHold::drain`] on, as long as the hold lasts, nothing is
//!   allocated in the group. All allocated extents in the group are recorded, and no thread writes
//!   into the group in place.
//!
//! A drain deals with three parties in this order. Allocators need no wait: under the group's lock
//! each allocator sees the read-only mark, or has reserved its extent already. Then the drain waits
//! for writers in place, and last for ordered extents, to which the group's reserved bytes belong.
//! `tests/transition` runs all parties at once, and shows which invariant fails if one wait is left
//! out.
//!
//! # Locks
//!
//! Draining waits, so the caller holds no lock, no handle, and nothing that a writer needs to
//! finish.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_format::{Extent, Logical};

#[cfg(feature = "baselines")]
use crate::Finder;
use crate::guard::CountedWriter;
use crate::{Error, Group, LookupPolicy, Space, SpaceKind};

/// Stops allocations and writes in place in a group for as long as the hold lives.
#[must_use = "the group can be written to again when this is dropped"]
pub struct ReadOnlyHold {
    space: Arc<Space>,
    group: Arc<Group>,
    released: AtomicBool,
}

impl ReadOnlyHold {
    /// The group.
    #[must_use]
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Waits until all writes that began before the hold are done (Q2). If such a writer is
    /// blocked, for example by a transaction that cannot begin, the drain is blocked, too.
    pub fn drain(&self) {
        self.drain_writers();
        self.drain_extents();
    }

    /// Ends the hold early, even while another thread drains the group. The drain then guarantees
    /// nothing, and does not wait for extents that are allocated after this call. Returns whether
    /// the hold still lasted.
    pub fn release(&self) -> bool {
        let was_held = !self.released.swap(true, Ordering::SeqCst);
        if was_held {
            let account = self.space.shared_account(self.group.kind());
            self.group.change(account, |state| state.allow_writes());
            self.group.mark_stopped();
            self.space.serve_freed();
        }
        was_held
    }

    /// Whether the hold still lasts.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.released.load(Ordering::SeqCst)
    }

    /// Waits for writers in place.
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
        self.release();
    }
}

/// The right to write into a group in place: while it lives, every drain of the group waits.
#[derive(Debug)]
#[must_use = "given back when dropped"]
pub struct NocowWriter(CountPath);

/// The way in which the drop of a [`NocowWriter`] finds the count that the writer entered.
enum CountPath {
    Counted {
        _counted: CountedWriter,
    },
    #[cfg(feature = "baselines")]
    Kept(Arc<Group>),
    /// The drop searches for the group again.
    #[cfg(feature = "baselines")]
    Found(Finder, Logical),
}

impl fmt::Debug for CountPath {
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
            CountPath::Counted { .. } => {}
            #[cfg(feature = "baselines")]
            CountPath::Kept(group) => group.writer_left(),
            #[cfg(feature = "baselines")]
            CountPath::Found(finder, at) => {
                let group = finder.group_at(*at).expect("a group with a writer stays");
                group.writer_left();
            }
        }
    }
}

impl Space {
    /// Stops allocations and writes in place in the group that starts at `start`, as long as the
    /// returned hold lives. The call does not wait for writers; [`ReadOnlyHold::drain`] does.
    ///
    /// # Errors
    ///
    /// When there is no such group. [`Error::Reserved`] when reservations of data need the group's
    /// free space. The caller then makes room elsewhere and asks again.
    pub fn hold_read_only(self: &Arc<Self>, start: Logical) -> Result<ReadOnlyHold, Error> {
        let group = self.group_at(start).filter(|group| group.start() == start);
        let group = group.ok_or(Error::NoGroup { at: start })?;
        let account = self.shared_account(group.kind());
        // A metadata group is stopped without a check of the account. The account might refuse,
        // because operations that free space may have reserved the global reserve. But a commit can
        // work with less space.
        if group.kind() == SpaceKind::Data {
            group.stop(account)?;
        } else {
            group.change(account, |state| state.stop_writes());
        }
        group.mark_stopped();
        Ok(ReadOnlyHold { space: Arc::clone(self), group, released: AtomicBool::new(false) })
    }

    /// Whether the group that holds an address is held read-only. Also true if there is no such
    /// group.
    #[must_use]
    pub fn is_stopped(&self, at: Logical) -> bool {
        self.group_at(at).is_none_or(|group| group.is_stopped())
    }

    /// The right to write `extent` in place. `None` if its group is read-only, or if there is no
    /// such group.
    ///
    /// The caller takes the right before it looks at the extent that it overwrites. Then the extent
    /// does not move until the right is given back.
    pub fn begin_nocow(self: &Arc<Self>, extent: Extent) -> Option<NocowWriter> {
        #[cfg(feature = "baselines")]
        if self.lookup_policy() != LookupPolicy::Lockfree {
            return self.begin_by_map(extent);
        }
        let directory = self.directory();
        let group = directory.find_whole(extent).ok()?;
        let counted = self.writers_in_place().enter(group.slot());
        // The writer is counted before it reads the mark (`guard::W1`).
        (!group.is_stopped()).then_some(NocowWriter(CountPath::Counted { _counted: counted }))
    }

    /// As [`begin_nocow`](Self::begin_nocow), with the map of the baselines.
    #[cfg(feature = "baselines")]
    fn begin_by_map(self: &Arc<Self>, extent: Extent) -> Option<NocowWriter> {
        let group = self.group_at(extent.start)?;
        let within = extent.start.distance(group.start());
        if extent.len > group.len() - within || !group.writer_enters() {
            return None;
        }
        let again = self.lookup_policy() == LookupPolicy::RwlockDouble;
        Some(NocowWriter(match again.then(|| self.finder()).flatten() {
            Some(finder) => CountPath::Found(finder, extent.start),
            None => CountPath::Kept(group),
        }))
    }
}
