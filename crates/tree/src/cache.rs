//! A bounded cache of verified nodes. Nodes are evicted by second chance.
//!
//! # What must hold
//!
//! - A shard holds at most its part of the cache's nodes once an insert returns.
//! - The ring has the address of each node of the shard once, at the place that the node's slot
//!   says.
//! - A new node stays for a turn of the hand, also if nothing looks it up: it gets the place that
//!   the hand has just passed. If the hand met the newest nodes first, they would go, and nodes
//!   that no tree has any more would stay.
//!
//! # Locks
//!
//! Each shard has a short lock, which is never held across I/O. Two readers that miss the same node
//! both read it. That is harmless, because nodes are immutable and the second insert replaces an
//! equal node.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use buttress_base::sync::RwLock;
use buttress_format::{Generation, Logical};

use crate::node::Node;

const SHARDS: usize = 32;

#[derive(Debug)]
struct Slot {
    node: Arc<Node>,
    recent: AtomicBool,
    /// The place of the node's address in the ring.
    place: usize,
}

#[derive(Debug, Default)]
struct Shard {
    nodes: HashMap<Logical, Slot>,
    /// The clock hand walks over these addresses.
    ring: Vec<Logical>,
    hand: usize,
}

/// The node cache of a volume.
#[derive(Debug)]
pub(crate) struct NodeCache {
    /// Unranked: readers share it, and no other lock is taken under it.
    shards: Vec<RwLock<Shard>>,
    shard_max: usize,
}

impl NodeCache {
    pub(crate) fn new(nodes_max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            shard_max: (nodes_max / SHARDS).max(4),
        }
    }

    fn shard(&self, at: Logical) -> &RwLock<Shard> {
        // Nodes of one tree are neighbours. The multiplication spreads them over the shards.
        let hash = (at.0 >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(hash >> 59) as usize % SHARDS]
    }

    pub(crate) fn lookup(&self, at: Logical, generation: Generation) -> Option<Arc<Node>> {
        let shard = self.shard(at).read();
        let slot = shard.nodes.get(&at)?;
        if slot.node.header().generation != generation {
            return None;
        }
        if !slot.recent.load(Ordering::Relaxed) {
            slot.recent.store(true, Ordering::Relaxed);
        }
        Some(Arc::clone(&slot.node))
    }

    pub(crate) fn insert(&self, node: Arc<Node>) {
        let at = node.logical();
        let mut shard = self.shard(at).write();
        let shard = &mut *shard;
        let recent = AtomicBool::new(false);
        if let Some(slot) = shard.nodes.get_mut(&at) {
            let place = slot.place;
            *slot = Slot { node, recent, place };
            return;
        }
        let place = match shard.nodes.len() < self.shard_max {
            true => shard.ring.len(),
            false => shard.evict_one(),
        };
        match shard.ring.get_mut(place) {
            Some(free) => *free = at,
            None => shard.ring.push(at),
        }
        shard.nodes.insert(at, Slot { node, recent, place });
    }

    /// Drops the node at an address, if there is one.
    pub(crate) fn remove(&self, at: Logical) {
        let slot = self.shard(at).write().remove(at);
        // The memory is freed after the lock is released.
        drop(slot);
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.read().nodes.len()).sum()
    }
}

impl Shard {
    /// Evicts one node, and returns its place in the ring for the next one. One turn of the hand
    /// clears every mark, so the second turn finds a victim.
    fn evict_one(&mut self) -> usize {
        loop {
            let place = self.hand % self.ring.len();
            self.hand = place + 1;
            let at = self.ring[place];
            match self.nodes.get(&at) {
                Some(slot) if slot.recent.swap(false, Ordering::Relaxed) => {}
                _ => {
                    self.nodes.remove(&at);
                    return place;
                }
            }
        }
    }

    fn remove(&mut self, at: Logical) -> Option<Slot> {
        let slot = self.nodes.remove(&at)?;
        self.ring.swap_remove(slot.place);
        if let Some(moved) = self.ring.get(slot.place)
            && let Some(moved) = self.nodes.get_mut(moved)
        {
            moved.place = slot.place;
        }
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use buttress_base::Rng;
    use buttress_format::{Ino, Key, Kind, TreeId};

    use super::*;
    use crate::{Geometry, LeafBuilder, NodeStamp};

    const GEOMETRY: Geometry = Geometry::OF_TESTS;

    fn node(at: u64) -> Arc<Node> {
        let mut leaf = LeafBuilder::new(&GEOMETRY);
        leaf.push(&Key::new(Ino::FIRST_FREE.0, Kind::INODE_ITEM, 0), &[1]);
        let (logical, generation) = (Logical(at * 4096), Generation(1));
        Arc::new(leaf.finish(&GEOMETRY, &NodeStamp { logical, generation, owner: TreeId::FS }))
    }

    /// Nodes are inserted, and nothing looks them up. The newest are in the cache, and no old ones.
    #[test]
    fn the_newest_nodes_stay() {
        let cache = NodeCache::new(1024);
        let found = |at: u64| cache.lookup(Logical(at * 4096), Generation(1)).is_some();
        for at in 0..20_000 {
            cache.insert(node(at));
        }
        assert!((19_500..20_000).all(&found));
        assert!(!(0..15_000).any(&found));
    }

    /// Nodes are inserted, found, dropped and evicted in any order. The ring has each node once at
    /// its place.
    #[test]
    fn a_dropped_node_leaves_the_ring() {
        let mut rng = Rng::new(7);
        let cache = NodeCache::new(256);
        let mut dropped = 0;
        for _ in 0..20_000 {
            let at = rng.below(700);
            match rng.below(4) {
                0 => {
                    let before = cache.len();
                    cache.remove(Logical(at * 4096));
                    assert!(cache.lookup(Logical(at * 4096), Generation(1)).is_none());
                    dropped += before - cache.len();
                }
                1 => drop(cache.lookup(Logical(at * 4096), Generation(1))),
                _ => cache.insert(node(at)),
            }
        }
        assert!(dropped > 0 && cache.len() <= 256);
        for shard in &cache.shards {
            let shard = shard.read();
            assert_eq!(shard.ring.len(), shard.nodes.len());
            for (place, at) in shard.ring.iter().enumerate() {
                assert_eq!(shard.nodes[at].place, place);
            }
        }
    }
}
