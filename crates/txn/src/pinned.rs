//! Space that commits freed and that views may still reach.
//!
//! # Invariants
//!
//! - **P1** What a commit freed is given out only when every view of the trees before it is gone.
//!   The oldest goes first: a view that holds back one commit's space holds back that of later
//!   ones.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_base::sync::Mutex;
use buttress_format::Extent;
use buttress_tree::Roots;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    /// Unranked: groups and the devices are used under it.
    freed: Mutex<VecDeque<(Weak<Roots>, Vec<Extent>)>>,
    /// The oldest trees that a thread which waited for space has seen in use, and since when.
    /// Unranked: nothing is taken under it.
    awaited: Mutex<Option<(Weak<Roots>, Instant)>>,
}

impl Pinned {
    /// A commit freed these; `before` are the trees that still have them.
    pub(crate) fn push(&self, before: &Arc<Roots>, extents: Vec<Extent>) {
        self.freed.lock().push_back((Arc::downgrade(before), extents));
    }

    /// Frees what no view reaches any more (P1); says whether there was any.
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

    /// The oldest trees that hold space back.
    pub(crate) fn oldest(&self) -> Option<Weak<Roots>> {
        self.freed.lock().front().map(|(roots, _)| Weak::clone(roots))
    }

    /// How long ago a thread first waited for the readers of these trees, which are the oldest.
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
