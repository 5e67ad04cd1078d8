//! Reads nodes from the devices, checks every read, and reports every bad copy.
//!
//! # Invariants
//!
//! - **S1** Every returned node has passed every check of `tree::Node` against its pointer.
//! - **S2** The code that reads a bad copy also reports it. So callers only have to go on without
//!   the node.
//!
//! # Locks
//!
//! The small cache has one short lock. It serves passes that run side by side over one tree.

use std::sync::Arc;

use buttress_base::{AlignedBuf, Rank, Ranked};
use buttress_format::{Logical, TreeId};
use buttress_tree::{Error as TreeError, Expect, Geometry, Node, NodeSource};
use buttress_volume::{Error as VolumeError, Volume};

use crate::issue::Issue;
use crate::report::Findings;

const CACHED_NODES: usize = 64;

/// The source of the check's nodes.
pub(crate) struct Source<'c> {
    pub(crate) volume: &'c Volume,
    pub(crate) geometry: Geometry,
    findings: &'c Findings,
    /// Reads every copy of every node, not only the first good one.
    all_mirrors: bool,
    cache: Ranked<Vec<Option<Arc<Node>>>>,
}

impl<'c> Source<'c> {
    pub(crate) fn new(
        volume: &'c Volume,
        geometry: Geometry,
        findings: &'c Findings,
        all_mirrors: bool,
    ) -> Self {
        let cache = Ranked::new(Rank::Leaf, vec![None; CACHED_NODES]);
        Self { volume, geometry, findings, all_mirrors, cache }
    }

    /// Reads a node, and also its other copies if the options ask for it. If no copy is good,
    /// reports this and returns `None`.
    pub(crate) fn read(&self, tree: TreeId, expect: &Expect) -> Option<Arc<Node>> {
        match self.read_quietly(expect, self.all_mirrors) {
            Ok(node) => Some(node),
            Err(why) => {
                let logical = expect.ptr.logical;
                self.findings.add(Issue::NodeDamaged { tree, logical, why });
                None
            }
        }
    }

    /// As [`Source::read`], but returns the reason instead of reporting it.
    pub(crate) fn read_quietly(&self, expect: &Expect, all: bool) -> Result<Arc<Node>, String> {
        let logical = expect.ptr.logical;
        let copies = self.volume.mirrors(logical);
        if copies == 0 {
            return Err(VolumeError::NotMapped { logical }.to_string());
        }
        let mut good: Option<Arc<Node>> = None;
        let mut bad: Vec<(u32, String)> = Vec::new();
        for mirror in 0..copies {
            match self.read_copy(expect, mirror) {
                Ok(node) => good = good.or(Some(Arc::new(node))),
                Err(why) => bad.push((mirror, why)),
            }
            if good.is_some() && !all {
                break;
            }
        }
        let Some(node) = good else {
            // Copies of one node are mostly wrong in the same way, so the first reason is enough.
            let first = bad.into_iter().next().map(|(_, why)| why);
            return Err(first.unwrap_or_else(|| "there is no copy of it".to_owned()));
        };
        for (mirror, why) in bad {
            self.findings.add(Issue::NodeCopyDamaged { logical, mirror, why });
        }
        Ok(node)
    }

    fn read_copy(&self, expect: &Expect, mirror: u32) -> Result<Node, String> {
        let mut buf = AlignedBuf::zeroed(self.geometry.nodesize as usize);
        self.volume.read_mirror(expect.ptr.logical, &mut buf, mirror).map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
        })?;
        Node::verify(buf, &self.geometry, expect, true).map_err(|why| why.to_string())
    }

    fn place(at: Logical) -> usize {
        ((at.0 >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % CACHED_NODES
    }
}

/// For cursors, with a cache of the nodes that were read last.
impl NodeSource for Source<'_> {
    fn node(&self, owner: TreeId, expect: &Expect) -> Result<Arc<Node>, TreeError> {
        let place = Self::place(expect.ptr.logical);
        let cached = self.cache.lock()[place].as_ref().map(Arc::clone);
        if let Some(node) = cached
            && node.ptr() == expect.ptr
            && expect.first_key.is_none_or(|key| !node.is_empty() && node.key(0) == key)
        {
            return Ok(node);
        }
        let node = self.read_quietly(expect, false).map_err(|why| {
            let logical = expect.ptr.logical;
            self.findings.add(Issue::NodeDamaged { tree: owner, logical, why: why.clone() });
            TreeError::Above(why)
        })?;
        self.cache.lock()[place] = Some(Arc::clone(&node));
        Ok(node)
    }
}
