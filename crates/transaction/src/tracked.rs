//! What changed about inodes since they were logged, in one transaction.
//!
//! # Invariants
//!
//! - **K1** From the moment an inode is in the log, every change of its items is noted here,
//!   until the next log takes the notes. Nothing is noted of other inodes: without any sync that
//!   costs one load.
//! - **K2** An extent that the log names keeps its space until the transaction is durable, also
//!   when its last user goes: after a crash the log names it still (T8).
//! - **K3** Nor is it overwritten in place but by the file that has it there, whichever has it now.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::sync::Mutex;
use buttress_format::{Extent, Key, Kind, Logical, TreeId};

use crate::DataRef;

/// An inode as logs know it.
pub type LoggedId = (TreeId, u64);

#[derive(Debug, Default)]
struct Inner {
    changed: HashMap<LoggedId, BTreeSet<Key>>,
    /// Those of them with changed names, or that are gone.
    renamed: BTreeSet<LoggedId>,
    /// The extents that the log names.
    extents: HashMap<Logical, Named>,
    /// Extents that would be free, were they not in the log.
    kept: Vec<Extent>,
}

/// An extent that the log names.
#[derive(Debug)]
struct Named {
    /// The file that has it there; nothing where several do.
    owner: Option<DataRef>,
    /// A file has it there as preallocated, at least in part.
    aside: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Tracked {
    used: AtomicBool,
    /// Unranked: nothing is taken inside.
    inner: Mutex<Inner>,
}

impl Tracked {
    /// Notes that an item was set or deleted. Called with the transaction's gate held.
    pub fn note(&self, tree: TreeId, key: &Key, gone: bool) {
        if !self.used.load(Ordering::Relaxed) {
            return;
        }
        let id = (tree, key.objectid);
        let mut inner = self.inner.lock();
        let Some(changed) = inner.changed.get_mut(&id) else { return };
        changed.insert(*key);
        let names = matches!(key.kind, Kind::INODE_REF | Kind::INODE_EXTREF);
        if names || gone && key.kind == Kind::INODE_ITEM {
            inner.renamed.insert(id);
        }
    }

    /// Whether the log names an extent that just lost its last user; if so its space is kept (K2).
    pub fn keep(&self, extent: Extent) -> bool {
        if !self.used.load(Ordering::Relaxed) {
            return false;
        }
        let mut inner = self.inner.lock();
        let logged = inner.extents.contains_key(&extent.start);
        if logged {
            inner.kept.push(extent);
        }
        logged
    }

    /// Whether the log names an extent. To be asked with the transaction's gate held.
    pub fn names(&self, start: Logical) -> bool {
        self.used.load(Ordering::Relaxed) && self.inner.lock().extents.contains_key(&start)
    }

    /// The extents that were kept.
    pub fn take_kept(&self) -> Vec<Extent> {
        std::mem::take(&mut self.inner.lock().kept)
    }

    /// Begins to note, or begins anew. No handle is out meanwhile. Answers what was noted;
    /// nothing when this is the first time.
    pub fn track(&self, id: LoggedId) -> Option<BTreeSet<Key>> {
        self.used.store(true, Ordering::Relaxed);
        self.inner.lock().changed.insert(id, BTreeSet::new())
    }

    /// Puts notes back that were taken.
    pub fn note_again(&self, id: LoggedId, notes: BTreeSet<Key>) {
        self.inner.lock().changed.entry(id).or_default().extend(notes);
    }

    /// Whether anything was noted of an inode; nothing when it is not in the log.
    pub fn has_changes(&self, id: LoggedId) -> Option<bool> {
        self.inner.lock().changed.get(&id).map(|changed| !changed.is_empty())
    }

    /// Notes nothing of an inode any more.
    pub fn untrack(&self, id: LoggedId) {
        self.inner.lock().changed.remove(&id);
    }

    /// The inodes in the log with names that changed since the last call.
    pub fn take_renamed(&self) -> BTreeSet<LoggedId> {
        std::mem::take(&mut self.inner.lock().renamed)
    }

    /// Says that the log names an extent as a file's, and whether as one that is preallocated.
    pub fn log_extent(&self, start: Logical, user: DataRef, aside: bool) {
        let mut inner = self.inner.lock();
        let named = inner.extents.entry(start).or_insert(Named { owner: Some(user), aside });
        if named.owner != Some(user) {
            named.owner = None;
        }
        named.aside |= aside;
    }

    /// Whether the log names an extent as set aside by another, or by several.
    pub fn is_anothers_aside(&self, start: Logical, user: DataRef) -> bool {
        let inner = self.inner.lock();
        inner.extents.get(&start).is_some_and(|named| named.aside && named.owner != Some(user))
    }

    /// Whether the log names an extent as another's, or as that of several: it must stay what it
    /// is (K3).
    pub fn is_anothers(&self, start: Logical, user: DataRef) -> bool {
        if !self.used.load(Ordering::Relaxed) {
            return false;
        }
        self.inner.lock().extents.get(&start).is_some_and(|named| named.owner != Some(user))
    }
}
