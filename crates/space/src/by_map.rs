//! The baseline of lookups: groups in a map under a lock for readers and writers, as in Linux.
//!
//! # Invariants
//!
//! - **B1** Besides the lock's cache line, a search changes one shared word: the reference count of
//!   the group that it found. A writer that searches again later keeps a [`Finder`], and each shard
//!   of threads has its own `Finder`. With a single `Finder`, all writers would change its
//!   reference count, too. Linux needs no such count, so the baseline would then be slower than
//!   Linux.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_base::CachePadded;
use buttress_base::shard::{SHARDS, shard};
use buttress_base::sync::RwLock;
use buttress_format::Logical;

use crate::Group;

type Groups = RwLock<BTreeMap<Logical, Arc<Group>>>;

/// All groups.
#[derive(Debug)]
pub(crate) struct GroupMap {
    handles: [Finder; SHARDS],
}

/// A handle of the map.
#[derive(Clone, Debug)]
pub(crate) struct Finder(Arc<CachePadded<Arc<Groups>>>);

impl Default for GroupMap {
    fn default() -> Self {
        let groups = Arc::<Groups>::default();
        Self {
            handles: std::array::from_fn(|_| {
                Finder(Arc::new(CachePadded::new(Arc::clone(&groups))))
            }),
        }
    }
}

impl GroupMap {
    /// A handle for a later search, perhaps on another thread.
    pub(crate) fn finder(&self) -> Finder {
        self.handles[shard()].clone()
    }

    pub(crate) fn group_at(&self, at: Logical) -> Option<Arc<Group>> {
        self.handles[0].group_at(at)
    }

    /// Replaces all groups of the map.
    pub(crate) fn replace<'g>(&self, groups: impl Iterator<Item = &'g Arc<Group>>) {
        let groups = groups.map(|group| (group.start(), Arc::clone(group))).collect();
        *self.handles[0].0.write() = groups;
    }
}

impl Finder {
    /// The group that holds an address.
    pub(crate) fn group_at(&self, at: Logical) -> Option<Arc<Group>> {
        let groups = self.0.read();
        let (_, group) = groups.range(..=at).next_back()?;
        group.range().contains(at).then(|| Arc::clone(group))
    }
}
