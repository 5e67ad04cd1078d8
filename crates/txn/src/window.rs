//! Room kept behind a file that grows step by step: its next steps lie behind the last, and need no search.
//!
//! # Invariants
//!
//! - **W1** What a window holds is in use for its group and its account: nobody else finds it, no promise counts on
//!   it, and a step changes neither. So one is opened only where much is free and nobody waits, and all are closed
//!   before anybody who wants data is refused or waits for more than that, and by every commit.
//! - **W2** Whoever drains a group closes the windows after he has marked it. Who opens one puts it on the list
//!   first and looks for the mark then; so one of the two closes it. Until then it holds what is only reserved,
//!   for which the drain waits.
//! - **W3** A step is taken inside the handle that names it: the commit that finds it gone from the window finds
//!   its reference, too.
//!
//! # Locks
//!
//! The list, then one window, then references or one block group.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use buttress_base::sync::Mutex;
use buttress_format::{Extent, Generation, Logical};
use buttress_space::{AllocPolicy, AllocRequest, Class, Outcome, Space, SpaceKind};

use crate::{DataRef, Engine, Handle};

/// One in so many bytes that are available is kept in a window at most.
const SHARE: u64 = 16;

/// The window of one file. Gives back what it holds when it is dropped.
pub struct Window {
    space: Arc<Space>,
    rest: Mutex<Rest>,
}

#[derive(Debug, Default)]
struct Rest {
    held: Option<Ahead>,
    listed: bool,
}

/// What a window holds, and the block group that it lies in.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    extent: Extent,
    group: Extent,
}

impl Window {
    fn close(&self) -> bool {
        let rest = std::mem::take(&mut *self.rest.lock());
        let Some(held) = rest.held else { return false };
        self.space.free(held.extent);
        true
    }

    /// Whether it has so many bytes now.
    #[must_use]
    pub fn has(&self, bytes: u64) -> bool {
        self.rest.lock().held.is_some_and(|held| held.extent.len >= bytes)
    }

    /// Counts what it holds as in use, unless it was closed (W2).
    fn settle(&self) {
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

/// The windows that may hold something.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    open: Mutex<Vec<Weak<Window>>>,
    any: AtomicBool,
}

impl Windows {
    /// Lets a window hold an extent; what it held before is given back.
    fn fill(&self, window: &Arc<Window>, ahead: Ahead) {
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

    /// Allocates `want` bytes, and at most `ahead` more that a window holds from then on; promised or not, as with
    /// [`allocate_data`](Self::allocate_data). Nothing when there is not enough free to keep any of it back, or
    /// somebody waits for data: ask for a promise then. [`Handle::take_ahead`] takes what the window holds.
    pub fn allocate_ahead(
        &self,
        window: &Arc<Window>,
        want: u64,
        ahead: u64,
        goal: Option<Logical>,
        stream: u64,
    ) -> Option<Extent> {
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
            let group = self.space.group_at(extent.start).expect("it was allocated there").range();
            self.windows.fill(window, Ahead { extent: rest, group });
            if self.space.is_stopped(extent.start) {
                window.close();
            }
            window.settle();
        }
        Some(Extent::new(extent.start, want))
    }

    /// Gives back what windows hold; says whether they held anything.
    pub fn close_windows(&self) -> bool {
        self.windows.close()
    }
}

impl Handle<'_> {
    /// Takes the first `want` bytes that a window holds, and names them (W3): as more of `last`, if they lie behind it
    /// and it may grow, else as an extent of `who`. Answers the extent that they are part of; nothing when the
    /// window has not as much.
    pub fn take_ahead(
        &self,
        window: &Window,
        want: u64,
        last: Option<(Extent, DataRef)>,
        who: DataRef,
    ) -> Option<Extent> {
        let mut rest = window.rest.lock();
        let Ahead { extent, group } = rest.held.filter(|held| held.extent.len >= want)?;
        let taken = Extent::new(extent.start, want);
        let left = Extent::new(taken.end(), extent.len - want);
        rest.held = (left.len > 0).then_some(Ahead { extent: left, group });
        if let Some((last, whose)) = last
            && group.contains(last.start)
            && self.join(last, taken, whose)
        {
            return Some(Extent::new(last.start, last.len + want));
        }
        self.bear(taken, who);
        Some(taken)
    }
}
