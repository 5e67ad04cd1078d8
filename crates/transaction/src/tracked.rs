//! The changes of logged inodes since their last log, in one transaction.
//!
//! # Invariants
//!
//! - **K1** When an inode is in the log, every change of its items is noted here until the next log
//!   takes the notes. No changes of other inodes are noted. Without any fsync, a note costs one
//!   load.
//! - **K2** An extent that the log references keeps its space until the transaction is durable.
//!   This also holds after the last user of the extent is removed, because a crash would bring the
//!   log back (`transaction::T8`).
//! - **K3** Such an extent is also not written in place, except by the file for which the log
//!   references the extent.

use std::collections::{BTreeSet, HashMap, hash_map::Entry};
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::sync::Mutex;
use buttress_format::{Extent, Key, Kind, Logical, TreeId};

use crate::DataRef;

/// The tree and the number of a logged inode.
pub type LoggedId = (TreeId, u64);

#[derive(Debug, Default)]
struct Inner {
    changed: HashMap<LoggedId, Notes>,
    /// Changed inodes that were removed, or that had names added or removed.
    renamed: BTreeSet<LoggedId>,
    /// The extents that the log names.
    extents: HashMap<Logical, Named>,
    /// Extents without users that only the log keeps from being free.
    kept: Vec<Extent>,
}

/// The changed keys of one inode. A log of only the inode's names leaves all other keys where they
/// are, however many there are.
#[derive(Debug, Default)]
struct Notes {
    names: BTreeSet<Key>,
    others: BTreeSet<Key>,
}

/// Whether an item holds names of its inode.
fn holds_names(key: &Key) -> bool {
    matches!(key.kind, Kind::INODE_REF | Kind::INODE_EXTREF)
}

/// An extent that the log names.
#[derive(Debug)]
struct Named {
    /// The file for which the log references the extent; `None` if there are several such files.
    owner: Option<DataRef>,
    /// Whether the log references the extent as preallocated, for at least a part of a file.
    preallocated: bool,
}

/// The changes of logged inodes in one transaction.
#[derive(Debug, Default)]
pub struct Tracked {
    used: AtomicBool,
    /// Unranked: no other lock is taken under it.
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
        let names = holds_names(key);
        if names { &mut changed.names } else { &mut changed.others }.insert(*key);
        if names || gone && key.kind == Kind::INODE_ITEM {
            inner.renamed.insert(id);
        }
    }

    /// Keeps the space of an extent that just lost its last user, if the log names the extent (K2).
    /// Returns whether the log names the extent.
    pub fn keep_if_logged(&self, extent: Extent) -> bool {
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

    /// Whether the log references an extent. The caller holds the gate of the transaction.
    pub fn has_extent(&self, start: Logical) -> bool {
        self.used.load(Ordering::Relaxed) && self.inner.lock().extents.contains_key(&start)
    }

    /// Takes the kept extents.
    pub fn take_kept(&self) -> Vec<Extent> {
        std::mem::take(&mut self.inner.lock().kept)
    }

    /// Begins to note changes of an inode, or takes all its notes. No handle is open meanwhile.
    /// Returns `None` the first time.
    pub fn take(&self, id: LoggedId) -> Option<BTreeSet<Key>> {
        self.used.store(true, Ordering::Relaxed);
        let mut notes = self.inner.lock().changed.insert(id, Notes::default())?;
        notes.others.append(&mut notes.names);
        Some(notes.others)
    }

    /// As [`Self::take`], but takes only the changed items with names of the inode. All other notes
    /// stay, and the time does not depend on their number.
    pub fn take_names(&self, id: LoggedId) -> Option<BTreeSet<Key>> {
        self.used.store(true, Ordering::Relaxed);
        match self.inner.lock().changed.entry(id) {
            Entry::Occupied(mut notes) => Some(std::mem::take(&mut notes.get_mut().names)),
            Entry::Vacant(vacant) => {
                vacant.insert(Notes::default());
                None
            }
        }
    }

    /// Whether changes of an inode were noted; `None` when the inode is not in the log.
    pub fn has_changes(&self, id: LoggedId) -> Option<bool> {
        let inner = self.inner.lock();
        let notes = inner.changed.get(&id)?;
        Some(!notes.names.is_empty() || !notes.others.is_empty())
    }

    /// Stops noting changes of an inode.
    pub fn untrack(&self, id: LoggedId) {
        self.inner.lock().changed.remove(&id);
    }

    /// The inodes in the log with names that changed since the last call.
    pub fn take_renamed(&self) -> BTreeSet<LoggedId> {
        std::mem::take(&mut self.inner.lock().renamed)
    }

    /// Notes that the log references an extent for a file, and whether the file has the extent as
    /// preallocated space.
    pub fn log_extent(&self, start: Logical, user: DataRef, preallocated: bool) {
        let mut inner = self.inner.lock();
        let named = inner.extents.entry(start).or_insert(Named { owner: Some(user), preallocated });
        if named.owner != Some(user) {
            named.owner = None;
        }
        named.preallocated |= preallocated;
    }

    /// Whether the log references an extent as preallocated for another file, or for several files.
    pub fn is_anothers_preallocated(&self, start: Logical, user: DataRef) -> bool {
        let inner = self.inner.lock();
        inner
            .extents
            .get(&start)
            .is_some_and(|named| named.preallocated && named.owner != Some(user))
    }

    /// Whether the log references an extent for another file, or for several files. If so, the
    /// content of the extent must not change (K3).
    pub fn is_anothers(&self, start: Logical, user: DataRef) -> bool {
        if !self.used.load(Ordering::Relaxed) {
            return false;
        }
        self.inner.lock().extents.get(&start).is_some_and(|named| named.owner != Some(user))
    }
}
