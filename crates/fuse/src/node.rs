//! Node ids: the numbers by which the kernel names what we have told it about.
//!
//! # Place
//!
//! One table for a mount. A lookup, a create or a listing *remembers* a node, once for every time
//! the kernel was told of it; `forget` takes those back. In between the handle in the table keeps
//! an inode whose last name is gone alive, which is what an open but unlinked file needs.
//!
//! The protocol library sends one number both as node id and as the `st_ino` that programs see.
//! So a node id is the inode number wherever it can be:
//!
//! ```text
//!  63  62..........48  47...........................0
//!   0  inode number                                     an inode of the first mounted subvolume
//!   1  tree (< 0x7fff)  inode number                    an inode of another subvolume
//!   1  0x7fff           counter                         whatever fits neither, for this mount only
//! ```
//!
//! and 1 stands for the root of the mount, as the protocol demands. That is the top level where the
//! kernel's mount is of all of the volume ([`crate::whole`]), or the top of the mounted subvolume.
//!
//! # Invariants
//!
//! - **N1** Two inodes of a volume never have the same node id, and an inode has one id as long as
//!   the mount lives: an id can be turned back into (tree, inode number) with no table.
//! - **N2** The table holds a handle while the kernel holds a reference, and no longer.
//!
//! # Locks
//!
//! A shard's lock is held for a hash lookup only. Handles are dropped outside of it: the last one
//! of an unlinked inode deletes the file, which takes as long as it takes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

/// The kernel's number for the root of a mount.
pub(crate) const ROOT: u64 = 1;

const FOREIGN: u64 = 1 << 63;
const INO_BITS: u32 = 48;
const TREE_INTERNED: u64 = 0x7fff;
const SHARD_COUNT: usize = 64;

/// Where an inode lives: the tree of its subvolume, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The subvolume's tree.
    pub(crate) tree: u64,
    /// The inode number.
    pub(crate) ino: u64,
}

/// What the kernel knows, and the handles that answer for it.
#[derive(Debug)]
pub(crate) struct Nodes<H> {
    root: (Place, H),
    /// The tree whose inodes have their own numbers.
    home: u64,
    shards: Box<[RwLock<Shard<H>>]>,
    interned: Mutex<Interned>,
}

type Shard<H> = FxHashMap<u64, Known<H>>;

#[derive(Debug)]
struct Known<H> {
    handle: H,
    lookups: AtomicU64,
}

#[derive(Debug, Default)]
struct Interned {
    by_place: HashMap<Place, u64>,
    places: Vec<Place>,
}

impl<H: Clone> Nodes<H> {
    /// Creates the table of a mount whose root is `handle`, at `place`. Inodes of the tree `home`
    /// have their own numbers.
    pub(crate) fn new(place: Place, home: u64, handle: H) -> Self {
        let shards = (0..SHARD_COUNT).map(|_| RwLock::new(Shard::default())).collect();
        Self { root: (place, handle), home, shards, interned: Mutex::default() }
    }

    /// Returns the node id of an inode (N1).
    pub(crate) fn id_of(&self, place: Place) -> u64 {
        if place == self.root.0 {
            return ROOT;
        }
        self.user_ino(place)
    }

    /// Returns the number that programs see as `st_ino`: the node id, but for the root.
    pub(crate) fn user_ino(&self, place: Place) -> u64 {
        if place.tree == self.home && place.ino < FOREIGN && place.ino > ROOT {
            place.ino
        } else if place.tree < TREE_INTERNED && place.ino < 1 << INO_BITS {
            FOREIGN | place.tree << INO_BITS | place.ino
        } else {
            self.intern(place)
        }
    }

    fn intern(&self, place: Place) -> u64 {
        let mut interned = self.interned.lock();
        let count = interned.places.len() as u64;
        let id =
            *interned.by_place.entry(place).or_insert(FOREIGN | TREE_INTERNED << INO_BITS | count);
        if id & ((1 << INO_BITS) - 1) == count {
            interned.places.push(place);
        }
        id
    }

    /// Returns the inode that a node id stands for, or nothing when it stands for none.
    pub(crate) fn place_of(&self, id: u64) -> Option<Place> {
        if id == ROOT {
            return Some(self.root.0);
        }
        if id & FOREIGN == 0 {
            return Some(Place { tree: self.home, ino: id });
        }
        let tree = (id & !FOREIGN) >> INO_BITS;
        let ino = id & ((1 << INO_BITS) - 1);
        if tree == TREE_INTERNED {
            return self.interned.lock().places.get(usize::try_from(ino).ok()?).copied();
        }
        Some(Place { tree, ino })
    }

    /// Returns the handle of a node the kernel knows.
    pub(crate) fn handle(&self, id: u64) -> Option<H> {
        if id == ROOT {
            return Some(self.root.1.clone());
        }
        self.shard(id).read().get(&id).map(|known| known.handle.clone())
    }

    /// Counts one more reference of the kernel to a node, and returns the handle that stands for
    /// it: the one already there if there is one, since it carries what was learnt about the node.
    pub(crate) fn remember(&self, id: u64, handle: impl FnOnce() -> H) -> H {
        if id == ROOT {
            return self.root.1.clone();
        }
        let shard = self.shard(id);
        if let Some(known) = shard.read().get(&id) {
            known.lookups.fetch_add(1, Ordering::Relaxed);
            return known.handle.clone();
        }
        let mut shard = shard.write();
        let known = shard
            .entry(id)
            .or_insert_with(|| Known { handle: handle(), lookups: AtomicU64::new(0) });
        known.lookups.fetch_add(1, Ordering::Relaxed);
        known.handle.clone()
    }

    /// Takes back `count` references. Returns the handle when they were the last ones, for the
    /// caller to drop.
    #[must_use = "dropping the handle may delete a file; do it where that may take long"]
    pub(crate) fn forget(&self, id: u64, count: u64) -> Option<H> {
        if id == ROOT {
            return None;
        }
        let mut shard = self.shard(id).write();
        let known = shard.get_mut(&id)?;
        let left = known.lookups.get_mut();
        *left = left.saturating_sub(count);
        if *left > 0 {
            return None;
        }
        shard.remove(&id).map(|known| known.handle)
    }

    /// Empties the table: the kernel is gone, and with it all its references.
    pub(crate) fn forget_all(&self) {
        for shard in &self.shards {
            let handles = std::mem::take(&mut *shard.write());
            drop(handles);
        }
    }

    /// The nodes that the kernel holds of which `wanted` is true, the root aside.
    pub(crate) fn ids(&self, wanted: impl Fn(&H) -> bool) -> Vec<u64> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            found
                .extend(shard.iter().filter(|(_, known)| wanted(&known.handle)).map(|(id, _)| *id));
        }
        found
    }

    /// Returns how many nodes the kernel holds, the root aside.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    fn shard(&self, id: u64) -> &RwLock<Shard<H>> {
        // Neighbours in number are made by the same program at the same time: keep them apart.
        &self.shards[spread(id) as usize % SHARD_COUNT]
    }
}

fn spread(id: u64) -> u64 {
    let mixed = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const HOME: Place = Place { tree: 5, ino: 256 };

    fn nodes() -> Nodes<Arc<u64>> {
        Nodes::new(HOME, HOME.tree, Arc::new(0))
    }

    /// N1: where the top level is hidden, the first mounted subvolume has the small numbers.
    #[test]
    fn n1_numbers_are_of_the_first_mounted_subvolume() {
        let nodes = Nodes::new(HOME, 256, Arc::new(0));
        let top = Place { tree: 256, ino: 256 };
        assert_eq!((nodes.id_of(top), nodes.user_ino(top)), (256, 256));
        for place in [top, HOME, Place { tree: 5, ino: 257 }, Place { tree: 257, ino: 256 }] {
            assert_eq!(nodes.place_of(nodes.id_of(place)), Some(place), "N1");
        }
        assert_eq!(nodes.id_of(HOME), ROOT);
        assert_ne!(nodes.user_ino(HOME), 256);
    }

    /// N1: an id leads back to its inode, for the root, the mounted subvolume, others, and numbers
    /// that fit nowhere.
    #[test]
    fn n1_ids_turn_back_into_places() {
        let nodes = nodes();
        let places = [
            HOME,
            Place { tree: 5, ino: 257 },
            Place { tree: 256, ino: 256 },
            Place { tree: 257, ino: 256 },
            Place { tree: 1 << 20, ino: 256 },
            Place { tree: 256, ino: 1 << 50 },
            Place { tree: 5, ino: u64::MAX - 300 },
        ];
        let ids: Vec<u64> = places.iter().map(|place| nodes.id_of(*place)).collect();
        for (index, id) in ids.iter().enumerate() {
            assert_eq!(nodes.place_of(*id), Some(places[index]), "N1: id {id:#x}");
            assert_eq!(nodes.id_of(places[index]), *id, "N1: the same id twice");
            assert!(!ids[..index].contains(id), "N1: two inodes with id {id:#x}");
        }
        assert_eq!(ids[0], ROOT);
        assert_eq!(nodes.user_ino(HOME), 256);
    }

    /// N2: a handle stays until as many references were taken back as were given out.
    #[test]
    fn n2_handles_live_as_long_as_references() {
        let nodes = nodes();
        let handle = Arc::new(7);
        nodes.remember(300, || Arc::clone(&handle));
        nodes.remember(300, || unreachable!("the first handle stays"));
        assert_eq!(Arc::strong_count(&handle), 2);
        assert!(nodes.forget(300, 1).is_none());
        assert_eq!(nodes.handle(300).as_deref(), Some(&7));
        assert!(nodes.forget(300, 1).is_some());
        assert!(nodes.handle(300).is_none());
        assert_eq!(Arc::strong_count(&handle), 1);
        assert!(nodes.forget(300, 1).is_none(), "one too many is nothing");
    }

    /// N2: the root is never forgotten, and nothing is left after the kernel has gone.
    #[test]
    fn n2_the_root_stays() {
        let nodes = nodes();
        assert!(nodes.forget(ROOT, u64::MAX).is_none());
        assert!(nodes.handle(ROOT).is_some());
        for id in 300..1300 {
            nodes.remember(id, || Arc::new(id));
        }
        assert_eq!(nodes.count(), 1000);
        nodes.forget_all();
        assert_eq!(nodes.count(), 0);
    }
}
