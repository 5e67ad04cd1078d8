//! Room kept behind a file that grows step by step: its next steps lie behind the last, and need no search.
//!
//! # Invariants
//!
//! - **W1** What a window holds is reserved: nobody else finds it, and no promise counts on it. So one is opened
//!   only where much is free and nobody waits, and all are closed before anybody who wants data is refused or
//!   waits for more than that, and by every commit.
//! - **W2** Whoever drains a group closes the windows after he has marked it. Who opens one puts it on the list
//!   first and looks for the mark then; so one of the two closes it.
//!
//! # Locks
//!
//! The list, then one window; nothing inside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use buttress_base::sync::Mutex;
use buttress_format::{Extent, Generation, Logical};
use buttress_space::{AllocPolicy, AllocRequest, Class, Outcome, Space, SpaceKind};

use crate::Engine;

/// One in so many bytes that are available is kept in a window at most.
const SHARE: u64 = 16;

/// The window of one file. Gives back what it holds when it is dropped.
pub struct Window {
    space: Arc<Space>,
    rest: Mutex<Rest>,
}

#[derive(Debug, Default)]
struct Rest {
    extent: Option<Extent>,
    listed: bool,
}

impl Window {
    fn close(&self) -> bool {
        let rest = std::mem::take(&mut *self.rest.lock());
        let Some(extent) = rest.extent else { return false };
        self.space.free(extent);
        true
    }

    /// Takes the first `want` bytes, if it has them.
    fn take(&self, want: u64) -> Option<Extent> {
        let mut rest = self.rest.lock();
        let extent = rest.extent.filter(|extent| extent.len >= want)?;
        let left = extent.len - want;
        rest.extent = (left > 0).then(|| Extent::new(extent.start.end(want), left));
        Some(Extent::new(extent.start, want))
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

/// The windows that may hold something.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    open: Mutex<Vec<Weak<Window>>>,
    any: AtomicBool,
}

impl Windows {
    /// Lets a window hold an extent; what it held before is given back.
    fn fill(&self, window: &Arc<Window>, extent: Extent) {
        let mut open = self.open.lock();
        let mut rest = window.rest.lock();
        let old = rest.extent.replace(extent);
        if !std::mem::replace(&mut rest.listed, true) {
            open.push(Arc::downgrade(window));
            self.any.store(true, Ordering::Release);
        }
        drop(rest);
        drop(open);
        if let Some(old) = old {
            window.space.free(old);
        }
    }

    /// Closes all; says whether there was something in one.
    fn close(&self) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut open = self.open.lock();
        self.any.store(false, Ordering::Relaxed);
        let all = std::mem::take(&mut *open);
        // Under the lock: who comes next finds closed what was open before.
        // Each of them, not up to the first that had something.
        let closed = all.iter().filter_map(Weak::upgrade).filter(|window| window.close()).count();
        closed > 0
    }
}

impl Engine {
    /// A window with nothing in it, for a file.
    #[must_use]
    pub fn new_window(&self) -> Arc<Window> {
        Arc::new(Window { space: Arc::clone(&self.space), rest: Mutex::default() })
    }

    /// Allocates `want` bytes out of a window, which is filled with at most `ahead` more when it has not as much;
    /// promised or not, as with [`allocate_data`](Self::allocate_data). Nothing when there is not enough free to
    /// keep any of it back, or somebody waits for data: ask for a promise then.
    pub fn allocate_ahead(
        &self,
        window: &Arc<Window>,
        want: u64,
        ahead: u64,
        goal: Option<Logical>,
        stream: u64,
    ) -> Option<Extent> {
        if let Some(extent) = window.take(want) {
            self.unborn.insert(extent.start);
            return Some(extent);
        }
        // The published baselines go without.
        if self.options.alloc != AllocPolicy::default() {
            return None;
        }
        let sector = u64::from(self.store.geometry().sectorsize);
        let most = self.space.account(SpaceKind::Data).available() / SHARE / sector * sector;
        let all = (want + ahead).min(most);
        if all < 2 * want
            || self.space.is_mixed()
            || self.row_slack() > 0
            || self.check_writable().is_err()
        {
            return None;
        }
        let mut promised = self.space.reserve_data_at_once(Class::Normal, all, || true).ok()?;
        let request = AllocRequest {
            kind: SpaceKind::Data,
            want: all,
            min: want,
            align: sector,
            goal,
            limit: Generation(u64::MAX),
            stream,
            hurry: true,
        };
        let Outcome::Got(extent) = self.space.allocate_data(&mut promised, request) else {
            return None;
        };
        self.unborn.insert(extent.start);
        if extent.len > want {
            let rest = Extent::new(extent.start.end(want), extent.len - want);
            self.windows.fill(window, rest);
            if self.space.is_stopped(extent.start) {
                window.close();
            }
        }
        Some(Extent::new(extent.start, want))
    }

    /// Gives back what windows hold; says whether they held anything.
    pub(crate) fn close_windows(&self) -> bool {
        self.windows.close()
    }
}
