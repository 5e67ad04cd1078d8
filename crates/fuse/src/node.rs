//! Node ids: the numbers by which the kernel names the inodes that the server reported to it.
//!
//! # Place
//!
//! Each mount has one table. A lookup, a create or a listing *remembers* a node, once for each time
//! that the server reports the node to the kernel. `forget` takes these references back. Meanwhile
//! the handle in the table keeps an inode alive after its last unlink, as an open file needs.
//!
//! A handle costs much more memory than a node, and most handles are idle: the kernel knows the
//! inode, but no program has it open. So a table limits its handles. Above the limit, idle handles
//! *rest*: the table drops the handle and keeps a number from which it can be remade ([`Handle`]).
//! From then on a listing enters nodes that rest from the beginning ([`Nodes::remember_resting`]).
//! The number of nodes is limited, too. Above that limit the server asks the kernel to forget some
//! nodes ([`Nodes::surplus`]).
//!
//! The kernel gets one number both as node id and as the `st_ino` that programs see
//! (`front_end::Entry::wire`). So a node id is the inode number wherever it can be:
//!
//! ```text
//!  63  62..........48  47...........................0
//!   0  inode number                                     an inode of the first mounted subvolume
//!   1  tree (< 0x7fff)  inode number                    an inode of another subvolume
//!   1  0x7fff           counter                         whatever fits neither, for this mount only
//! ```
//!
//! The protocol demands that 1 stands for the root of the mount. That is the top level if the
//! kernel's mount shows the whole volume ([`crate::whole_mount`]). Otherwise it is the top of the
//! subvolume.
//!
//! # Invariants
//!
//! - **N1** Two inodes of a volume never have the same node id, and an inode has one id as long as
//!   the mount lives. An id can be turned back into (tree, inode number). Only ids with 0x7fff need
//!   a table for the conversion. This table keeps these ids until the mount ends.
//! - **N2** The table holds a node while the kernel holds a reference, and no longer.
//! - **N3** A handle rests only if no other thread has it and `rest` returns a number, from which
//!   an equal handle can be made. A resting handle is remade before a request works on its node,
//!   and before its inode may lose its last name.
//! - **N4** The table of a mount that follows another machine lists each node that is remade from a
//!   number other than zero: the kernel may hold pages that are older than the new handle.
//!
//! # Locks
//!
//! A shard's lock is held for a hash lookup, and during the search for handles that may rest.
//! Handles are dropped without the lock: dropping the last one of an unlinked inode deletes the
//! file.

mod renewal;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};

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

/// The object that serves a node.
pub(crate) trait Handle: Clone {
    /// The number from which an equal handle can be made; `None` if the handle must stay (N3).
    fn rest(&self) -> Option<u64>;
    /// Whether no program and no request uses the node, so that the kernel may forget the node.
    fn is_idle(&self) -> bool;
}

/// The nodes that the kernel knows, and their handles.
#[derive(Debug)]
pub(crate) struct Nodes<H> {
    /// Unranked: nothing is taken under it.
    root: (Place, RwLock<H>),
    /// Node ids of inodes in this tree are their inode numbers.
    home: u64,
    /// Unranked: held for a lookup; `Handle::rest` reads the attributes of inodes under it.
    shards: Box<[RwLock<Shard<H>>]>,
    /// Unranked: nothing is taken under it.
    interned: Mutex<Interned>,
    /// How many handles a shard keeps.
    handles_max: usize,
    /// Whether a handle ever rested.
    has_rested: AtomicBool,
    /// Whether the table lists nodes that are remade from a number (N4).
    lists_remade: bool,
    /// How many nodes there are.
    known: AtomicUsize,
    /// If the kernel knows more nodes than this, the server asks it to forget some.
    known_max: usize,
    /// Whether the kernel is being told to forget nodes.
    is_pruning: AtomicBool,
    /// The shard from which the next nodes to forget are taken.
    next_pruned: AtomicUsize,
}

/// How many handles and nodes a table has before it drops handles and makes the kernel forget
/// nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeLimits {
    pub(crate) handles: usize,
    pub(crate) known: usize,
}

/// The number from which the handle of a resting node is remade ([`Handle::rest`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resting(pub(crate) u64);

#[derive(Debug)]
struct Shard<H> {
    awake: FxHashMap<u64, Known<H>>,
    resting: FxHashMap<u64, Idle>,
    /// Nodes that were remade from a number other than zero since the list was last taken (N4).
    remade: FxHashSet<u64>,
    /// The number of handles above which the shard searches for handles that may rest.
    limit: usize,
}

#[derive(Debug)]
struct Known<H> {
    handle: H,
    lookups: AtomicU64,
}

/// A resting node: the kernel's references to it, and the number from which its handle is remade. A
/// node with more references than `lookups` can hold keeps its handle.
#[derive(Clone, Copy, Debug)]
struct Idle {
    lookups: u32,
    what: u64,
}

impl<H> Shard<H> {
    fn new(limit: usize) -> Self {
        let (awake, resting) = (FxHashMap::default(), FxHashMap::default());
        Self { awake, resting, remade: FxHashSet::default(), limit }
    }
}

#[derive(Debug, Default)]
struct Interned {
    by_place: HashMap<Place, u64>,
    places: Vec<Place>,
}

impl<H: Handle> Nodes<H> {
    /// Creates the table of a mount. The root has the handle `handle` and lies at `place`; `limits`
    /// limits handles and nodes. Inodes of the tree `home` have their own numbers as node ids.
    pub(crate) fn new(place: Place, home: u64, handle: H, limits: NodeLimits) -> Self {
        let handles_max = (limits.handles / SHARD_COUNT).max(1);
        let shards = (0..SHARD_COUNT).map(|_| RwLock::new(Shard::new(handles_max))).collect();
        let (interned, has_rested) = (Mutex::default(), AtomicBool::new(false));
        Self {
            root: (place, RwLock::new(handle)),
            home,
            shards,
            interned,
            handles_max,
            has_rested,
            lists_remade: false,
            known: AtomicUsize::new(0),
            known_max: limits.known,
            is_pruning: AtomicBool::new(false),
            next_pruned: AtomicUsize::new(0),
        }
    }

    /// The same table, which lists remade nodes from now on (N4).
    pub(crate) fn listing_remade(self, lists_remade: bool) -> Self {
        Self { lists_remade, ..self }
    }

    /// If the kernel knows too many nodes, returns nodes to forget, so that three quarters of the
    /// limit remain. After that, returns `None` until [`Nodes::note_pruned`] is called.
    pub(crate) fn surplus(&self) -> Option<Vec<u64>> {
        let known = self.known.load(Ordering::Relaxed);
        if known <= self.known_max || self.is_pruning.swap(true, Ordering::Acquire) {
            return None;
        }
        let wanted = known - self.known_max / 4 * 3;
        let mut found = Vec::new();
        for _ in 0..SHARD_COUNT {
            let next = self.next_pruned.fetch_add(1, Ordering::Relaxed) % SHARD_COUNT;
            let shard = self.shards[next].read();
            found.extend(shard.resting.keys());
            let idle = shard.awake.iter().filter(|(_, known)| known.handle.is_idle());
            found.extend(idle.map(|(id, _)| id));
            if found.len() >= wanted {
                break;
            }
        }
        found.truncate(wanted);
        Some(found)
    }

    /// Notes that the kernel was told to forget the nodes.
    pub(crate) fn note_pruned(&self) {
        self.is_pruning.store(false, Ordering::Release);
    }

    /// Returns the node id of an inode (N1).
    pub(crate) fn id_of(&self, place: Place) -> u64 {
        if place == self.root.0 {
            return ROOT;
        }
        self.user_ino(place)
    }

    /// Returns the number that programs see as `st_ino`: the node id, except for the root.
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

    /// Returns the inode that a node id stands for, or `None` if there is no such inode.
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

    /// Returns the handle of a known node, or the number of a resting one.
    pub(crate) fn handle(&self, id: u64) -> Result<H, Option<Resting>> {
        if id == ROOT {
            return Ok(self.root.1.read().clone());
        }
        let shard = self.shard(id).read();
        match shard.awake.get(&id) {
            Some(known) => Ok(known.handle.clone()),
            None => Err(shard.resting.get(&id).map(|idle| Resting(idle.what))),
        }
    }

    /// Gives a resting node a handle; returns the handle that the node then has.
    pub(crate) fn wake(&self, id: u64, handle: H) -> H {
        let mut shard = self.shard(id).write();
        if let Some(known) = shard.awake.get(&id) {
            return known.handle.clone();
        }
        let Some(idle) = shard.resting.remove(&id) else { return handle };
        if self.lists_remade && idle.what != 0 {
            shard.remade.insert(id);
        }
        let lookups = AtomicU64::new(idle.lookups.into());
        let known = Known { handle: handle.clone(), lookups };
        shard.awake.insert(id, known);
        let rested = self.let_rest(&mut shard);
        drop(shard);
        drop(rested);
        handle
    }

    /// Whether any node may be resting, so that a caller has to check.
    pub(crate) fn has_rested(&self) -> bool {
        self.has_rested.load(Ordering::Relaxed)
    }

    /// Removes idle handles above the limit (N3); the caller drops them without the lock.
    #[must_use = "dropping handles takes long; do it without the lock"]
    fn let_rest(&self, shard: &mut Shard<H>) -> Vec<H> {
        if shard.awake.len() <= shard.limit {
            return Vec::new();
        }
        let Shard { awake, resting, limit, .. } = shard;
        let mut rested = Vec::new();
        awake.retain(|id, known| {
            let Ok(lookups) = u32::try_from(*known.lookups.get_mut()) else { return true };
            let Some(what) = known.handle.rest() else { return true };
            resting.insert(*id, Idle { lookups, what });
            rested.push(known.handle.clone());
            false
        });
        // Many handles may be in use, so the next search comes when there are twice as many.
        *limit = self.handles_max.max(awake.len() * 2);
        if awake.capacity() > 4 * *limit {
            awake.shrink_to(*limit);
        }
        if !rested.is_empty() {
            self.has_rested.store(true, Ordering::Relaxed);
        }
        rested
    }

    /// Counts one more reference of the kernel to a node; returns the node's handle. An existing
    /// handle is kept, since it carries facts that were learnt about the node. Otherwise `handle`
    /// makes a handle, from the node's number if the node rests.
    pub(crate) fn remember(&self, id: u64, handle: impl FnOnce(Option<Resting>) -> H) -> H {
        if id == ROOT {
            return self.root.1.read().clone();
        }
        let shard = self.shard(id);
        if let Some(known) = shard.read().awake.get(&id) {
            known.lookups.fetch_add(1, Ordering::Relaxed);
            return known.handle.clone();
        }
        let mut shard = shard.write();
        if let Some(known) = shard.awake.get(&id) {
            known.lookups.fetch_add(1, Ordering::Relaxed);
            return known.handle.clone();
        }
        let idle = shard.resting.remove(&id);
        if idle.is_none() {
            self.known.fetch_add(1, Ordering::Relaxed);
        }
        if self.lists_remade && idle.is_some_and(|idle| idle.what != 0) {
            shard.remade.insert(id);
        }
        let handle = handle(idle.map(|idle| Resting(idle.what)));
        let lookups = AtomicU64::new(idle.map_or(0, |idle| u64::from(idle.lookups)) + 1);
        shard.awake.insert(id, Known { handle: handle.clone(), lookups });
        let rested = self.let_rest(&mut shard);
        drop(shard);
        drop(rested);
        handle
    }

    /// Counts one more reference of the kernel to a node, and makes no handle. Returns false and
    /// counts nothing if the node needs a handle.
    pub(crate) fn remember_resting(&self, id: u64) -> bool {
        if id == ROOT {
            return true;
        }
        let mut shard = self.shard(id).write();
        if let Some(known) = shard.awake.get(&id) {
            known.lookups.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        if let Some(idle) = shard.resting.get_mut(&id) {
            let Some(lookups) = idle.lookups.checked_add(1) else { return false };
            idle.lookups = lookups;
            return true;
        }
        shard.resting.insert(id, Idle { lookups: 1, what: 0 });
        self.known.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Takes back `count` references. If no reference is left, returns the handle for the caller to
    /// drop.
    #[must_use = "dropping the handle may delete a file; do it where that may take long"]
    pub(crate) fn forget(&self, id: u64, count: u64) -> Option<H> {
        if id == ROOT {
            return None;
        }
        let mut shard = self.shard(id).write();
        if let Some(idle) = shard.resting.get_mut(&id) {
            idle.lookups = idle.lookups.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
            if idle.lookups == 0 {
                shard.resting.remove(&id);
                shard.remade.remove(&id);
                self.known.fetch_sub(1, Ordering::Relaxed);
            }
            return None;
        }
        let known = shard.awake.get_mut(&id)?;
        let left = known.lookups.get_mut();
        *left = left.saturating_sub(count);
        if *left > 0 {
            return None;
        }
        self.known.fetch_sub(1, Ordering::Relaxed);
        shard.remade.remove(&id);
        shard.awake.remove(&id).map(|known| known.handle)
    }

    /// Empties the table: the kernel is gone, and with it all its references.
    pub(crate) fn forget_all(&self) {
        for shard in &self.shards {
            let all = std::mem::replace(&mut *shard.write(), Shard::new(self.handles_max));
            let count = all.awake.len() + all.resting.len();
            self.known.fetch_sub(count, Ordering::Relaxed);
            drop(all);
        }
    }

    /// The nodes with a handle that `wanted` accepts, without the root.
    pub(crate) fn ids(&self, wanted: impl Fn(&H) -> bool) -> Vec<u64> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            found.extend(
                shard.awake.iter().filter(|(_, known)| wanted(&known.handle)).map(|(id, _)| *id),
            );
        }
        found
    }

    /// The nodes of some trees, without the root.
    pub(crate) fn ids_in(&self, trees: &[u64]) -> Vec<u64> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            found.extend(shard.awake.keys().chain(shard.resting.keys()));
        }
        // Numbers are looked up without a shard's lock.
        found.retain(|id| self.place_of(*id).is_some_and(|place| trees.contains(&place.tree)));
        found
    }

    /// Returns how many nodes the kernel holds, without the root.
    pub(crate) fn count(&self) -> usize {
        self.known.load(Ordering::Relaxed)
    }

    /// Returns how many nodes have a handle.
    pub(crate) fn handles(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().awake.len()).sum()
    }

    fn shard(&self, id: u64) -> &RwLock<Shard<H>> {
        // One program often makes inodes with adjacent numbers at once: put them in different
        // shards.
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

    /// A handle rests with its number if only the table has it and the number is even.
    impl Handle for Arc<u64> {
        fn rest(&self) -> Option<u64> {
            let is_idle = Arc::strong_count(self) == 1 && self.is_multiple_of(2);
            is_idle.then_some(**self)
        }

        fn is_idle(&self) -> bool {
            Arc::strong_count(self) == 1
        }
    }

    const LIMITS: NodeLimits = NodeLimits { handles: 1 << 16, known: 1 << 16 };

    fn nodes() -> Nodes<Arc<u64>> {
        Nodes::new(HOME, HOME.tree, Arc::new(0), LIMITS)
    }

    /// Above the limit `surplus` returns unused nodes, once, until the kernel was told.
    #[test]
    fn surplus_names_idle_nodes() {
        let limits = NodeLimits { handles: 0, known: 400 };
        let nodes = Nodes::new(HOME, HOME.tree, Arc::new(0), limits);
        let held: Vec<_> = (0..100).map(|at| nodes.remember(1000 + at, |_| Arc::new(7))).collect();
        assert_eq!(nodes.surplus(), None);
        for id in 2000..2400 {
            drop(nodes.remember(id, |_| Arc::new(id)));
        }
        let told = nodes.surplus().expect("too many");
        assert_eq!(told.len(), 500 - 300);
        assert!(told.iter().all(|id| *id >= 2000), "others are in use: {told:?}");
        assert_eq!(nodes.surplus(), None, "the kernel is being told");
        nodes.note_pruned();
        told.iter().for_each(|id| drop(nodes.forget(*id, 1)));
        assert_eq!((nodes.count(), nodes.surplus()), (300, None));
        drop(held);
    }

    /// References of a node that was never given a handle count, wherever they come from. Its
    /// handle is made from the number of a new node (N3).
    #[test]
    fn nodes_rest_from_the_beginning() {
        let nodes = nodes();
        assert!(nodes.remember_resting(300) && nodes.remember_resting(300));
        assert_eq!((nodes.count(), nodes.handle(300)), (1, Err(Some(Resting(0)))));
        let handle = nodes.remember(300, |resting| {
            assert_eq!(resting, Some(Resting(0)));
            Arc::new(7)
        });
        assert!(nodes.remember_resting(300), "it has a handle now");
        assert!(nodes.forget(300, 3).is_none(), "one of four is left");
        assert_eq!(nodes.forget(300, 1), Some(handle));
        assert!(nodes.remember_resting(301) && nodes.forget(301, 1).is_none());
        assert_eq!(nodes.count(), 0);
    }

    /// N1: if the top level is hidden, the first mounted subvolume has the small numbers.
    #[test]
    fn numbers_are_of_the_first_mounted_subvolume() {
        let nodes = Nodes::new(HOME, 256, Arc::new(0), LIMITS);
        let top = Place { tree: 256, ino: 256 };
        assert_eq!((nodes.id_of(top), nodes.user_ino(top)), (256, 256));
        for place in [top, HOME, Place { tree: 5, ino: 257 }, Place { tree: 257, ino: 256 }] {
            assert_eq!(nodes.place_of(nodes.id_of(place)), Some(place), "N1");
        }
        assert_eq!(nodes.id_of(HOME), ROOT);
        assert_ne!(nodes.user_ino(HOME), 256);
    }

    /// N1: an id leads back to its inode, for the root, the mounted subvolume, other subvolumes,
    /// and numbers that need the table.
    #[test]
    fn ids_turn_back_into_places() {
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
    fn handles_live_as_long_as_references() {
        let nodes = nodes();
        let handle = Arc::new(7);
        nodes.remember(300, |_| Arc::clone(&handle));
        nodes.remember(300, |_| unreachable!("the first handle stays"));
        assert_eq!(Arc::strong_count(&handle), 2);
        assert!(nodes.forget(300, 1).is_none());
        assert_eq!(nodes.handle(300).as_deref(), Ok(&7));
        assert!(nodes.forget(300, 1).is_some());
        assert_eq!(nodes.handle(300), Err(None));
        assert_eq!(Arc::strong_count(&handle), 1);
        assert!(nodes.forget(300, 1).is_none(), "one too many is nothing");
    }

    /// N2: the root is never forgotten, and nothing is left after the kernel has gone.
    #[test]
    fn root_stays() {
        let nodes = nodes();
        assert!(nodes.forget(ROOT, u64::MAX).is_none());
        assert!(nodes.handle(ROOT).is_ok());
        for id in 300..1300 {
            nodes.remember(id, |_| Arc::new(id));
        }
        assert_eq!(nodes.count(), 1000);
        nodes.forget_all();
        assert_eq!(nodes.count(), 0);
    }

    /// N3: above the limit idle handles rest and come back with their references. Other handles
    /// stay.
    #[test]
    fn idle_handles_rest() {
        let nodes = Nodes::new(HOME, HOME.tree, Arc::new(0), NodeLimits { handles: 0, ..LIMITS });
        let held = nodes.remember(1000, |_| Arc::new(1000));
        for id in 300..900 {
            nodes.remember(id, |_| Arc::new(id));
            nodes.remember(id, |_| Arc::new(id));
        }
        let rests = |id| nodes.handle(id).err().flatten();
        assert_eq!(nodes.count(), 601);
        assert!(nodes.has_rested() && (300..900).filter(|id| rests(*id).is_some()).count() > 100);
        assert!((300..900).all(|id| rests(id).is_none_or(|said| said == Resting(id))));
        assert_eq!(nodes.handle(1000), Ok(Arc::clone(&held)));
        assert!((301..900).step_by(2).all(|id| nodes.handle(id).is_ok()), "odd ones stay");
        let id = (300..900).find(|id| rests(*id).is_some()).expect("one rests");
        assert_eq!(*nodes.wake(id, Arc::new(7)), 7);
        assert!(nodes.forget(id, 1).is_none());
        assert!(nodes.forget(id, 1).is_some(), "it had two references");
        let id = (300..900).find(|id| rests(*id).is_some()).expect("one rests");
        assert!(nodes.forget(id, 2).is_none());
        assert_eq!(nodes.handle(id), Err(None));
    }

    /// N4: a node that rests is in one list or the other, also after a request has remade it.
    #[test]
    fn remade_nodes_are_listed_once() {
        let limits = NodeLimits { handles: 0, ..LIMITS };
        let nodes = Nodes::new(HOME, HOME.tree, Arc::new(0), limits).listing_remade(true);
        for id in 300..900 {
            nodes.remember(id, |_| Arc::new(id));
        }
        let resting = nodes.resting_with_pages();
        let (woken, remembered, gone) = (resting[0], resting[1], resting[2]);
        // Handles that are in use cannot rest again.
        let held = nodes.wake(woken, Arc::new(woken));
        let known = nodes.remember(remembered, |_| Arc::new(remembered));
        nodes.wake(gone, Arc::new(7));
        assert!(nodes.forget(gone, 1).is_some());
        assert!(!nodes.resting_with_pages().contains(&woken), "it does not rest");
        let mut remade = nodes.take_remade();
        remade.sort_unstable();
        let mut wanted = vec![woken, remembered];
        wanted.sort_unstable();
        assert_eq!(remade, wanted);
        assert!(nodes.take_remade().is_empty(), "taken once");
        drop((held, known));
    }
}
