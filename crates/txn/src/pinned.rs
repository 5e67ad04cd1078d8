//! Space that commits freed and that views may still reach.
//!
//! # Invariants
//!
//! - **P1** Space that a commit freed is allocated again only when every view of the trees before
//!   that commit is gone. Space is released in the order of the commits: a view that pins one
//!   commit's space also pins the space of all later commits.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_base::sync::Mutex;
use buttress_format::Extent;
use buttress_tree::Roots;

/// The pinned space of all commits, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    /// Unranked: locks of groups and of devices are taken under it.
    freed: Mutex<VecDeque<(Weak<Roots>, Vec<Extent>)>>,
    /// The oldest trees, and the time since which a thread has waited for their readers. Unranked:
    /// nothing is taken under it.
    awaited: Mutex<Option<(Weak<Roots>, Instant)>>,
}

impl Pinned {
    /// Adds the space that a commit freed. `before` has the roots of the trees that still use this
    /// space.
    pub(crate) fn push(&self, before: &Arc<Roots>, extents: Vec<Extent>) {
        self.freed.lock().push_back((Arc::downgrade(before), extents));
    }

    /// Frees the space that no view can reach any more (P1). Returns whether any space was freed.
    pub(crate) fn release(&self, mut free: impl FnMut(Extent)) -> bool {
        let mut any = false;
        let mut freed = self.freed.lock();
        while let Some((roots, _)) = freed.front() {
            if roots.strong_count() > 0 {
                break;
            }
            let Some((_, extents)) = freed.pop_front() else { break };
            any |= !extents.is_empty();
            extents.into_iter().for_each(&mut free);
        }
        any
    }

    /// The oldest trees that keep space pinned.
    pub(crate) fn oldest(&self) -> Option<Weak<Roots>> {
        self.freed.lock().front().map(|(roots, _)| Weak::clone(roots))
    }

    /// Time since a thread first waited for the readers of the trees `oldest`. These are the oldest
    /// trees that keep space pinned.
    pub(crate) fn awaited_for(&self, oldest: Weak<Roots>) -> Duration {
        let mut awaited = self.awaited.lock();
        match &*awaited {
            Some((roots, since)) if roots.ptr_eq(&oldest) => clock::since(*since),
            _ => {
                *awaited = Some((oldest, clock::now()));
                Duration::ZERO
            }
        }
    }
}
