//! Verified nodes kept in memory, bounded, evicted by second chance.
//!
//! # What must hold
//!
//! - A shard holds at most its part of the cache's nodes once an insert returns.
//!
//! # Locks
//!
//! One short lock for each shard, never held across I/O. Two readers that miss the same node both
//! read it. That is harmless, because nodes are immutable and the second insert replaces an equal
//! node.

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
}

#[derive(Debug, Default)]
struct Shard {
    nodes: HashMap<Logical, Slot>,
    /// The address of each node of the shard, once. The clock hand walks over these addresses.
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
        let slot = Slot { node, recent: AtomicBool::new(false) };
        if shard.nodes.insert(at, slot).is_some() {
            return;
        }
        shard.ring.push(at);
        while shard.nodes.len() > self.shard_max {
            shard.evict_one();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.read().nodes.len()).sum()
    }
}

impl Shard {
    /// Evicts one node. One turn of the hand clears every mark, so the second turn finds a victim.
    fn evict_one(&mut self) {
        for _ in 0..=self.ring.len() * 2 {
            if self.hand >= self.ring.len() {
                self.hand = 0;
            }
            let at = self.ring[self.hand];
            match self.nodes.get(&at) {
                Some(slot) if slot.recent.swap(false, Ordering::Relaxed) => self.hand += 1,
                _ => {
                    self.nodes.remove(&at);
                    self.ring.swap_remove(self.hand);
                    return;
                }
            }
        }
    }
}
