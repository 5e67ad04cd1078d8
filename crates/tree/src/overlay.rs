//! The changes of one transaction that are not merged into the trees yet.
//!
//! An overlay is a sharded, ordered map from (tree, key) to a new payload or a deletion. Operations
//! write here and nowhere else; a commit freezes the whole overlay, then merges it.
//!
//! # Invariants
//!
//! - **O1** All keys of one object of one tree lie in one shard. So a range within an object is one
//!   ordered walk.
//! - **O2** After the freeze no thread writes. The transaction's gate enforces this, and the merge
//!   relies on it.
//! - **O3** `bytes` counts every key and payload held. So a caller can bound the memory.
//!
//! # Locks
//!
//! Each shard has a short lock, which is never held across I/O.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use buttress_base::CachePadded;
use buttress_base::sync::RwLock;
use buttress_format::{Generation, Key, Kind, TreeId};

use crate::gaps::Gaps;

/// An item's bytes, shared between the overlay, its readers and the merge.
pub type Payload = Arc<[u8]>;

const SHARDS: usize = 64;

/// Bytes counted for one entry beside its payload: map node, key, header of the shared payload.
const ENTRY_BYTES: u64 = 80;

type Entries = BTreeMap<(TreeId, Key), Option<Payload>>;

#[derive(Debug, Default)]
struct Shard {
    entries: Entries,
    /// Items that were added, or got another length, since the last call of
    /// [`Overlay::take_changes`]. `None` before the first call.
    unread: Option<Vec<Changed>>,
    /// Ranges in which walks found only deletions.
    gaps: Gaps,
    /// How many puts in this shard made an item: the key had no entry before, or a deletion.
    items_made: u64,
}

/// The result of a look at one shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The entry that was found; it may be a deletion.
    pub(crate) found: Option<(Key, Option<Payload>)>,
    /// The shard's count of items made, at the time of the look.
    pub(crate) items_made: u64,
}

/// The state of a key in the overlay before a change: no entry (`None`), a deletion (`Some(None)`),
/// or a payload of this length.
pub type Before = Option<Option<usize>>;

/// A changed item: its tree and key, its state in the overlay before the change, and the length of
/// its new payload. The length is `None` for a deletion.
pub type Changed = (TreeId, Key, Before, Option<usize>);

/// Indices into [`Overlay::held`].
const ITEMS: usize = 0;
const BYTES: usize = 1;

/// The changes of one transaction. `None` as payload is a deletion.
#[derive(Debug)]
pub struct Overlay {
    /// Unranked: readers share it, and no other lock is taken under it.
    shards: Vec<CachePadded<RwLock<Shard>>>,
    /// Items, and their bytes in memory.
    held: CachePadded<[AtomicU64; 2]>,
    /// Items that got another length after the first call of [`Overlay::take_changes`].
    resized: AtomicU64,
}

impl Default for Overlay {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            held: CachePadded::default(),
            resized: AtomicU64::new(0),
        }
    }
}

fn shard_index(tree: TreeId, objectid: u64) -> usize {
    let hash = (objectid ^ tree.0.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (hash >> 58) as usize % SHARDS
}

impl Overlay {
    /// Sets or deletes an item: O(log n) in the entries of a shard.
    pub fn set(&self, tree: TreeId, key: Key, payload: Option<Payload>) {
        self.insert(&mut self.shards[shard_index(tree, key.objectid)].write(), tree, key, payload);
    }

    fn insert(&self, shard: &mut Shard, tree: TreeId, key: Key, payload: Option<Payload>) {
        let added = payload.as_ref().map_or(0, |p| p.len() as u64);
        let is_put = payload.is_some();
        let len = payload.as_ref().map(|p| p.len());
        let before = shard.entries.insert((tree, key), payload);
        if is_put && !matches!(before, Some(Some(_))) {
            shard.items_made += 1;
            shard.gaps.pierce(tree, &key);
        }
        match before {
            None => {
                if let Some(unread) = &mut shard.unread {
                    unread.push((tree, key, None, len));
                }
                self.held[ITEMS].fetch_add(1, Ordering::Relaxed);
                self.held[BYTES].fetch_add(added + ENTRY_BYTES, Ordering::Relaxed);
            }
            Some(old) => {
                let was_put = old.is_some();
                let before = Some(old.as_ref().map(|p| p.len()));
                let removed = old.map_or(0, |p| p.len() as u64);
                if let Some(unread) = &mut shard.unread
                    && (is_put, added) != (was_put, removed)
                {
                    unread.push((tree, key, before, len));
                    self.resized.fetch_add(1, Ordering::Relaxed);
                }
                self.held[BYTES].fetch_add(added, Ordering::Relaxed);
                self.held[BYTES].fetch_sub(removed, Ordering::Relaxed);
            }
        }
    }

    /// Sets an item. If the old payload has the same length and no reader shares it, its bytes are
    /// overwritten. Costs O(log n) in the entries of a shard.
    pub fn put(&self, tree: TreeId, key: Key, payload: &[u8]) {
        let mut shard = self.shards[shard_index(tree, key.objectid)].write();
        if let Some(Some(old)) = shard.entries.get_mut(&(tree, key))
            && old.len() == payload.len()
            && let Some(old) = Arc::get_mut(old)
        {
            old.copy_from_slice(payload);
            return;
        }
        self.insert(&mut shard, tree, key, Some(payload.into()));
    }

    /// The change of a key in this transaction: none, a deletion (`Some(None)`), or the new
    /// payload. O(log n) in the entries of a shard.
    #[must_use]
    pub fn find(&self, tree: TreeId, key: &Key) -> Option<Option<Payload>> {
        if self.is_empty() {
            return None;
        }
        self.shards[shard_index(tree, key.objectid)].read().entries.get(&(tree, *key)).cloned()
    }

    /// The first entry, deletions included, in `from..=to`. Looks into one shard if the range lies
    /// within one object, otherwise into every shard. Each look costs O(log n) in the entries of
    /// the shard.
    #[must_use]
    pub fn first_in(&self, tree: TreeId, from: &Key, to: &Key) -> Option<(Key, Option<Payload>)> {
        self.see_first(tree, from, to).found
    }

    pub(crate) fn see_first(&self, tree: TreeId, from: &Key, to: &Key) -> Seen {
        self.pick(
            tree,
            from,
            to,
            |shard, low, high| shard.range((low, high)).next().map(|((_, k), v)| (*k, v.clone())),
            |a, b| a < b,
        )
    }

    /// The last entry, deletions included, in `from..=to`. The cost is that of
    /// [`first_in`](Self::first_in).
    #[must_use]
    pub fn last_in(&self, tree: TreeId, from: &Key, to: &Key) -> Option<(Key, Option<Payload>)> {
        self.see_last(tree, from, to).found
    }

    pub(crate) fn see_last(&self, tree: TreeId, from: &Key, to: &Key) -> Seen {
        self.pick(
            tree,
            from,
            to,
            |shard, low, high| {
                shard.range((low, high)).next_back().map(|((_, k), v)| (*k, v.clone()))
            },
            |a, b| a > b,
        )
    }

    /// Every entry of one object, deletions included, in order: O(log n) in the entries of a shard,
    /// and one step for each entry of the object. Holds the shard's lock meanwhile, and returns a
    /// list.
    #[must_use]
    pub fn of_object(&self, tree: TreeId, objectid: u64) -> Vec<(Key, Option<Payload>)> {
        let low = Key { objectid, kind: Kind(0), offset: 0 };
        let high = Key { objectid, kind: Kind(u8::MAX), offset: u64::MAX };
        let shard = self.shards[shard_index(tree, objectid)].read();
        shard.entries.range((tree, low)..=(tree, high)).map(|((_, k), v)| (*k, v.clone())).collect()
    }

    fn pick(
        &self,
        tree: TreeId,
        from: &Key,
        to: &Key,
        seek: impl Fn(
            &Entries,
            Bound<(TreeId, Key)>,
            Bound<(TreeId, Key)>,
        ) -> Option<(Key, Option<Payload>)>,
        better: impl Fn(&Key, &Key) -> bool,
    ) -> Seen {
        if from > to || self.is_empty() {
            return Seen::default();
        }
        let low = Bound::Included((tree, *from));
        let high = Bound::Included((tree, *to));
        if from.objectid == to.objectid {
            let shard = self.shards[shard_index(tree, from.objectid)].read();
            return Seen { found: seek(&shard.entries, low, high), items_made: shard.items_made };
        }
        let mut best: Option<(Key, Option<Payload>)> = None;
        for shard in &self.shards {
            if let Some(found) = seek(&shard.read().entries, low, high)
                && best.as_ref().is_none_or(|(key, _)| better(&found.0, key))
            {
                best = Some(found);
            }
        }
        Seen { found: best, items_made: 0 }
    }

    /// The gap around a key: its first and its last key. The gap is valid for views that have this
    /// overlay as the running overlay, over committed roots of `generation`.
    pub(crate) fn gap_around(
        &self,
        tree: TreeId,
        key: &Key,
        generation: Generation,
    ) -> Option<(Key, Key)> {
        let shard = self.shards[shard_index(tree, key.objectid)].read();
        shard.gaps.around(tree, key, generation)
    }

    /// Notes that `first..=last`, within one object, holds no item. The note is valid for views
    /// that have this overlay as the running overlay, over committed roots of `generation`.
    ///
    /// If a put made an item in the shard since the caller saw `items_made`, notes nothing and
    /// returns false.
    pub(crate) fn note_gap(
        &self,
        tree: TreeId,
        (first, last): (Key, Key),
        items_made: u64,
        generation: Generation,
    ) -> bool {
        let mut shard = self.shards[shard_index(tree, first.objectid)].write();
        let holds = shard.items_made == items_made;
        if holds {
            shard.gaps.note(tree, first, last, generation);
        }
        holds
    }

    /// Whether nothing was changed. Costs O(1).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held[ITEMS].load(Ordering::Relaxed) == 0
    }

    /// Number of distinct items changed. Costs O(1).
    #[must_use]
    pub fn items(&self) -> u64 {
        self.held[ITEMS].load(Ordering::Relaxed)
    }

    /// Memory that the changes hold, in bytes. Costs O(1).
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.held[BYTES].load(Ordering::Relaxed)
    }

    /// How many changes of an item's length (or to and from a deletion) were noted since the first
    /// call of [`take_changes`](Self::take_changes). The count never falls, and
    /// [`items`](Self::items) does not count these changes. The next call of `take_changes` returns
    /// those that came after its last call. Costs O(1).
    #[must_use]
    pub fn resized(&self) -> u64 {
        self.resized.load(Ordering::Relaxed)
    }

    /// The changes since the last call, by tree and key. From the first call on, shards note
    /// changes that add an entry or change its length. Several changes of one item come in the
    /// order in which they were made.
    ///
    /// The first call, and each call with `anew`, returns every entry of the overlay instead, once,
    /// with `None` as the state before the change.
    ///
    /// For k returned changes the call costs O(k log k), and a look at each shard.
    #[must_use]
    pub fn take_changes(&self, anew: bool) -> Vec<Changed> {
        let mut all = Vec::new();
        let len = |payload: &Option<Payload>| payload.as_ref().map(|p| p.len());
        for shard in &self.shards {
            let mut shard = shard.write();
            let Shard { entries, unread, .. } = &mut *shard;
            match unread.replace(Vec::new()) {
                Some(unread) if !anew => all.extend(unread),
                _ => all.extend(entries.iter().map(|((tree, key), p)| (*tree, *key, None, len(p)))),
            }
        }
        all.sort_by_key(|(tree, key, ..)| (*tree, *key));
        all
    }

    /// Every change, by tree and key. Payloads stay shared: readers go on while the merge runs.
    ///
    /// Costs O(n log n) for n items, and makes a list of all items in memory.
    #[must_use]
    pub fn sorted(&self) -> Vec<(TreeId, Key, Option<Payload>)> {
        let mut all = Vec::with_capacity(usize::try_from(self.items()).unwrap_or(0));
        for shard in &self.shards {
            all.extend(shard.read().entries.iter().map(|((t, k), v)| (*t, *k, v.clone())));
        }
        all.sort_unstable_by_key(|(tree, key, _)| (*tree, *key));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The changes of one item in all lists together lead from its first state to its last.
    #[test]
    fn changes_name_what_was_before_them() {
        let overlay = Overlay::default();
        let key = Key::new(300, Kind::XATTR_ITEM, 1);
        overlay.put(TreeId::FS, key, &[0; 10]);
        assert_eq!(overlay.take_changes(false), [(TreeId::FS, key, None, Some(10))]);
        overlay.put(TreeId::FS, key, &[1; 10]);
        assert_eq!(overlay.take_changes(false), [], "it is as long as it was");
        overlay.put(TreeId::FS, key, &[0; 30]);
        overlay.set(TreeId::FS, key, None);
        overlay.put(TreeId::FS, key, &[0; 20]);
        let steps = [(Some(10), Some(30)), (Some(30), None), (None, Some(20))];
        let steps = steps.map(|(before, len)| (TreeId::FS, key, Some(before), len));
        assert_eq!(overlay.take_changes(false), steps);
        assert_eq!(overlay.take_changes(true), [(TreeId::FS, key, None, Some(20))]);
    }
}
