//! Reads nodes from the cache, or from the first mirror that holds the node that the parent points
//! to.
//!
//! # Invariants
//!
//! - **S1** Only verified nodes enter the cache. A cached node must have the requested generation.
//!   So a stale node at a reused address is read again.

use std::sync::Arc;

use buttress_base::AlignedBuf;
use buttress_format::{Logical, TreeId};
use buttress_volume::Volume;

use crate::{
    Error, Mismatch, Result,
    cache::NodeCache,
    geometry::Geometry,
    node::{Expect, Node, NodePtr},
    steps::{StepCounter, Steps},
};

/// A source of nodes.
pub trait NodeSource {
    /// The node that a pointer names, as part of `owner`. Costs O(1) if the node is in memory.
    /// Otherwise reads a copy from the volume, and verifies it.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] when no copy is the requested node.
    fn node(&self, owner: TreeId, expect: &Expect) -> Result<Arc<Node>>;

    /// Counts keys that a walk visited, in sources with counters ([`Store::steps`]). Costs O(1).
    fn count_keys(&self, count: u64) {
        let _ = count;
    }
}

/// The committed nodes of a volume.
#[derive(Debug)]
pub struct Store {
    volume: Arc<Volume>,
    geometry: Geometry,
    cache: NodeCache,
    steps: StepCounter,
    /// Whether a node is accepted although the checksum of every copy is wrong. Such a node must
    /// pass all other checks.
    ignores_csums: bool,
}

impl Store {
    /// A store with a cache of at most `cache_bytes`. Costs O(1): the cache fills later.
    #[must_use]
    pub fn new(volume: Arc<Volume>, geometry: Geometry, cache_bytes: u64) -> Self {
        let geometry = Geometry { seeds: volume.seed_ids(), ..geometry };
        let nodes = (cache_bytes / u64::from(geometry.nodesize)).max(64);
        let cache = NodeCache::new(usize::try_from(nodes).unwrap_or(1 << 20));
        Self { volume, geometry, cache, steps: StepCounter::default(), ignores_csums: false }
    }

    /// Returns the same store. With `yes`, the store accepts a node although the checksum of every
    /// copy is wrong, if a copy passes all other checks. Use such a store only for volumes that are
    /// only read. Costs O(1).
    #[must_use]
    pub fn ignoring_csums(mut self, yes: bool) -> Self {
        self.ignores_csums = yes;
        self
    }

    /// The properties that all nodes share. Costs O(1).
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The volume that has the nodes. Costs O(1).
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Caches a node that was just written, so that its first reader does not read the device.
    /// Costs O(1), with at most one turn over a shard of the cache to evict a node.
    pub fn remember(&self, node: Arc<Node>) {
        self.cache.insert(node);
    }

    /// Drops the node at an address from the cache. Called before the address can be used again,
    /// for nodes that no tree and no view can reach any more. Costs O(1).
    pub fn forget(&self, at: Logical) {
        self.cache.remove(at);
    }

    /// The root of a tree. The cost is that of [`NodeSource::node`].
    ///
    /// # Errors
    ///
    /// As [`NodeSource::node`].
    pub fn root(&self, owner: TreeId, ptr: NodePtr) -> Result<Arc<Node>> {
        self.node(owner, &Expect::root(ptr))
    }

    /// Number of nodes held in memory. Costs O(1), with a look at each shard.
    #[must_use]
    pub fn cached_nodes(&self) -> usize {
        self.cache.len()
    }

    /// The steps of walks over the trees since the store was made. Reading the counts does not slow
    /// any walk. Costs O(1), with a look at each shard.
    #[must_use]
    pub fn steps(&self) -> Steps {
        self.steps.sum()
    }

    fn read(&self, owner: TreeId, expect: &Expect) -> Result<Arc<Node>> {
        let strict = self.read_checked(owner, expect, true);
        match strict {
            Err(Error::Damaged { why: Mismatch::Checksum, .. }) if self.ignores_csums => {
                self.read_checked(owner, expect, false)
            }
            other => other,
        }
    }

    fn read_checked(&self, owner: TreeId, expect: &Expect, check_csum: bool) -> Result<Arc<Node>> {
        let mut buf = AlignedBuf::zeroed(self.geometry.nodesize as usize);
        let mut why: Option<Mismatch> = None;
        // Each copy is verified as a whole node. If a mirror missed a write, its copy has a good
        // checksum, and only the old generation shows the fault.
        let outcome = self.volume.read_verified(expect.ptr.logical, &mut buf, |bytes| {
            Node::inspect(bytes, &self.geometry, expect, check_csum)
                .map(|_| ())
                .inspect_err(|mismatch| why = Some(*mismatch))
        });
        let damaged = |why| Error::Damaged { logical: expect.ptr.logical, owner, why };
        match outcome {
            Ok(()) => {
                Node::verify(buf, &self.geometry, expect, false).map(Arc::new).map_err(damaged)
            }
            Err(error) => Err(why.map_or_else(|| error.into(), damaged)),
        }
    }
}

impl NodeSource for Store {
    fn node(&self, owner: TreeId, expect: &Expect) -> Result<Arc<Node>> {
        self.steps.node();
        if let Some(node) = self.cache.lookup(expect.ptr.logical, expect.ptr.generation)
            && node.level() == expect.ptr.level
            && node.has_keys_of(expect)
        {
            return Ok(node);
        }
        let node = self.read(owner, expect)?;
        self.steps.node_read();
        self.cache.insert(Arc::clone(&node));
        Ok(node)
    }

    fn count_keys(&self, count: u64) {
        self.steps.keys(count);
    }
}
