//! Space kept after the end of a file that grows step by step. The next steps are allocated from
//! this space and need no search.
//!
//! # Invariants
//!
//! - **W1** Space that a window holds counts as used in its group and account. So no other thread
//!   allocates this space, and no reservation relies on it. An allocation from the window leaves
//!   the figures of group and account as they are. A window withholds space from other threads, so
//!   it is opened only if much space is free and no ticket waits. Every commit closes all windows.
//!   The windows are also closed before a request for data is refused or waits for a later flush
//!   step.
//! - **W2** A thread that drains a group first marks the group, then closes the windows. A thread
//!   that opens a window first puts it on the list, then checks the mark. So one of the two threads
//!   closes the window. Until then the window's space is only reserved, and the drain waits for
//!   this space.
//! - **W3** Space is taken from a window inside the handle that adds the reference to this space.
//!   So a commit sees both changes or neither.
//!
//! # Locks
//!
//! First the list, then one window, then references or one block group.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use buttress_base::sync::Mutex;
use buttress_format::Extent;
use buttress_space::Space;

/// The window of one file. A dropped window gives its space back.
pub struct Window {
    space: Arc<Space>,
    /// Unranked: taken under the lock of the list; accounts of `space` are changed under it.
    rest: Mutex<Rest>,
}

#[derive(Debug, Default)]
struct Rest {
    held: Option<Ahead>,
    listed: bool,
}

/// The extent that a window holds, and the block group in which the extent lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    pub(crate) extent: Extent,
    pub(crate) group: Extent,
}

impl Window {
    /// A new, empty window for a file.
    #[must_use]
    pub fn new(space: &Arc<Space>) -> Arc<Self> {
        Arc::new(Self { space: Arc::clone(space), rest: Mutex::default() })
    }

    /// Takes the first `want` bytes and passes them to `name`, under the window's lock (W3).
    /// Returns `None` if the window has fewer bytes.
    pub(crate) fn take<R>(&self, want: u64, name: impl FnOnce(Extent, Extent) -> R) -> Option<R> {
        let mut rest = self.rest.lock();
        let Ahead { extent, group } = rest.held.filter(|held| held.extent.len >= want)?;
        let taken = Extent::new(extent.start, want);
        let left = Extent::new(taken.end(), extent.len - want);
        rest.held = (left.len > 0).then_some(Ahead { extent: left, group });
        Some(name(taken, group))
    }

    pub(crate) fn close(&self) -> bool {
        let rest = std::mem::take(&mut *self.rest.lock());
        let Some(held) = rest.held else { return false };
        self.space.free(held.extent);
        true
    }

    /// Whether the window holds at least `bytes` now.
    #[must_use]
    pub fn has(&self, bytes: u64) -> bool {
        self.rest.lock().held.is_some_and(|held| held.extent.len >= bytes)
    }

    /// Counts the held extent as used, unless the window was closed (W2).
    pub(crate) fn note_used(&self) {
        let rest = self.rest.lock();
        if let Some(held) = rest.held {
            self.space.commit_used(held.extent);
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").field("rest", &self.rest).finish_non_exhaustive()
    }
}

/// The windows that may hold space.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    /// Unranked: locks of windows are taken while this lock is held.
    open: Mutex<Vec<Weak<Window>>>,
    any: AtomicBool,
}

impl Windows {
    /// Makes a window hold an extent, and frees the extent that it held before.
    pub(crate) fn fill(&self, window: &Arc<Window>, ahead: Ahead) {
        let mut open = self.open.lock();
        let mut rest = window.rest.lock();
        let old = rest.held.replace(ahead);
        if !std::mem::replace(&mut rest.listed, true) {
            open.push(Arc::downgrade(window));
            self.any.store(true, Ordering::Release);
        }
        drop(rest);
        drop(open);
        if let Some(old) = old {
            window.space.free(old.extent);
        }
    }

    /// Closes all windows. Returns whether a window held space.
    pub(crate) fn close(&self) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut open = self.open.lock();
        self.any.store(false, Ordering::Relaxed);
        let all = std::mem::take(&mut *open);
        // The windows are closed under the lock of the list, so that the next caller finds all
        // windows closed. `count` closes every window; `any` would stop at the first window with
        // space.
        let closed = all.iter().filter_map(Weak::upgrade).filter(|window| window.close()).count();
        closed > 0
    }
}
