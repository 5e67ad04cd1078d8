//! Reads nodes from the devices, checks every read, and reports every bad copy.
//!
//! # Invariants
//!
//! - **S1** Every returned node has passed every check of `tree::Node` against its pointer.
//! - **S2** The code that reads a bad copy also reports it. So callers only need to continue
//!   without the node.
//!
//! # Locks
//!
//! The small cache has one short lock. The cache serves passes that run side by side over one tree.

use std::sync::Arc;

use buttress_base::{AlignedBuf, Rank, Ranked};
use buttress_format::{Logical, TreeId};
use buttress_tree::{Error as TreeError, Expect, Geometry, Node, NodeSource};
use buttress_volume::{Error as VolumeError, Volume};

use crate::report::Findings;
use buttress_issue::Issue;

const CACHED_NODES: usize = 64;

/// The copies of one node: a good one, and the bad ones with reasons.
#[derive(Default)]
struct Copies {
    good: Option<Arc<Node>>,
    bad: Vec<(u32, String)>,
}

impl Copies {
    fn add(&mut self, mirror: u32, copy: Result<Node, String>) {
        match copy {
            Ok(node) => {
                self.good.get_or_insert_with(|| Arc::new(node));
            }
            Err(why) => self.bad.push((mirror, why)),
        }
    }

    fn is_none(&self) -> bool {
        self.good.is_none() && self.bad.is_empty()
    }
}

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
    /// reports the damage and returns `None`.
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

    /// Reads a node as [`Source::read`] does, but returns the reason for a failure instead of
    /// reporting it.
    pub(crate) fn read_quietly(&self, expect: &Expect, all: bool) -> Result<Arc<Node>, String> {
        let logical = expect.ptr.logical;
        let copies = self.volume.mirrors(logical);
        if copies == 0 {
            return Err(VolumeError::NotMapped { logical }.to_string());
        }
        let mut found = Copies::default();
        for mirror in 0..copies {
            found.add(mirror, self.read_copy(expect, mirror));
            if found.good.is_some() && !all {
                break;
            }
        }
        self.best(logical, found)
    }

    /// Reads several nodes as [`Source::read`] does, with as few waits as the devices allow.
    pub(crate) fn read_many(&self, tree: TreeId, expects: &[Expect]) -> Vec<Option<Arc<Node>>> {
        let copies = |expect: &Expect| self.volume.mirrors(expect.ptr.logical);
        let most = expects.iter().map(copies).max().unwrap_or(0);
        let mut found: Vec<_> = expects.iter().map(|_| Copies::default()).collect();
        for mirror in 0..most {
            let is_wanted = |index: &usize| {
                let is_enough = found[*index].good.is_some() && !self.all_mirrors;
                !is_enough && mirror < copies(&expects[*index])
            };
            let wanted: Vec<usize> = (0..expects.len()).filter(is_wanted).collect();
            let len = self.geometry.nodesize as usize;
            let mut bufs: Vec<_> = wanted.iter().map(|_| AlignedBuf::zeroed(len)).collect();
            let places = wanted.iter().map(|&index| expects[index].ptr.logical);
            let mut wants: Vec<(Logical, &mut [u8])> =
                places.zip(bufs.iter_mut().map(|buf| &mut buf[..])).collect();
            let answers = self.volume.read_mirror_many(&mut wants, mirror);
            for ((index, buf), answer) in wanted.into_iter().zip(bufs).zip(answers) {
                found[index].add(mirror, self.checked(buf, &answer, &expects[index]));
            }
        }
        let each = |(expect, found): (&Expect, Copies)| {
            let logical = expect.ptr.logical;
            let best = match found.is_none() {
                true => Err(VolumeError::NotMapped { logical }.to_string()),
                false => self.best(logical, found),
            };
            best.map_err(|why| self.findings.add(Issue::NodeDamaged { tree, logical, why })).ok()
        };
        expects.iter().zip(found).map(each).collect()
    }

    /// The first good copy. Reports bad copies if there is a good one.
    fn best(&self, logical: Logical, found: Copies) -> Result<Arc<Node>, String> {
        let Copies { good, bad } = found;
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
        let answer = self.volume.read_mirror(expect.ptr.logical, &mut buf, mirror);
        self.checked(buf, &answer, expect)
    }

    fn checked(
        &self,
        buf: AlignedBuf,
        answer: &Result<(), VolumeError>,
        expect: &Expect,
    ) -> Result<Node, String> {
        if let Err(error) = answer {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            return Err(
                cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
            );
        }
        Node::verify(buf, &self.geometry, expect, true).map_err(|why| why.to_string())
    }

    fn place(at: Logical) -> usize {
        ((at.0 >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % CACHED_NODES
    }
}

/// The interface for cursors, with a cache of the nodes that were read last.
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
