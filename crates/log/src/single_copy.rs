//! The nodes of a log that have only their first copy so far.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_format::Logical;
use buttress_tree::Node;
use buttress_txn::Engine;
use buttress_volume::Copies;

use crate::tree::LogTree;

/// How a log is written where metadata has several copies on one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogCopies {
    /// An fsync waits for the first copy. The other copies follow, for nodes that stay in the log.
    #[default]
    First,
    /// An fsync waits for all copies.
    All,
}

impl std::str::FromStr for LogCopies {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "first" => Ok(Self::First),
            "all" => Ok(Self::All),
            _ => Err("is first or all".to_owned()),
        }
    }
}

/// A node has only one copy for at least this time, and for at most twice this time.
const PERIOD: Duration = Duration::from_millis(100);

/// A node that has only its first copy.
#[derive(Debug)]
struct SingleCopyNode {
    /// The round in which the node was written.
    since: u64,
    /// The node itself, unless the node is a leaf. A leaf is in its tree.
    above: Option<Node>,
}

/// The state of the other copies of one log's nodes.
#[derive(Debug, Default)]
pub(crate) struct OtherCopies {
    single: BTreeMap<Logical, SingleCopyNode>,
    /// Addresses at which nodes of this log were written to the other copies. Later nodes at these
    /// addresses are written to all copies at once (`copies::K2`).
    whole: BTreeSet<Logical>,
    /// How many rounds of `SyncLog::complete` have begun, and when the last round began.
    round: u64,
    begun: Option<Instant>,
    /// Other copies were written, and no flush followed yet.
    unflushed: bool,
}

impl OtherCopies {
    /// Returns the copies to which a node is written at once.
    pub(crate) fn wanted(&self, engine: &Engine, rule: LogCopies, at: Logical) -> Copies {
        let may_wait = rule == LogCopies::First
            && engine.commits().has_committed()
            && engine.volume().has_copies_beside(at)
            && !self.whole.contains(&at);
        if may_wait { Copies::First } else { Copies::All }
    }

    /// Records that a node is durable in its first copy.
    pub(crate) fn note_single(&mut self, at: Logical, above: Option<Node>) {
        self.single.insert(at, SingleCopyNode { since: self.round, above });
    }

    /// Whether any node still lacks other copies.
    pub(crate) fn is_any(&self) -> bool {
        !self.single.is_empty()
    }

    /// Records that a write of other copies has ended. If it succeeded, the nodes at `done` have
    /// all their copies. If it failed, nothing is known about these copies.
    pub(crate) fn note_written(&mut self, done: &[Logical], is_written: bool) {
        self.whole.extend(done);
        if !is_written {
            // The write is not retried: a commit ends this log.
            self.single.clear();
            return;
        }
        for at in done {
            self.forget(*at);
        }
        self.unflushed |= !done.is_empty();
    }

    /// Returns whether other copies were written since the last flush, and resets the mark. The
    /// caller is about to flush.
    pub(crate) fn take_unflushed(&mut self) -> bool {
        std::mem::take(&mut self.unflushed)
    }

    /// Records that a flush made a log durable, with all earlier writes.
    pub(crate) fn flushed(&mut self) {
        self.unflushed = false;
    }

    /// Records that a node is no longer a part of the log.
    pub(crate) fn forget(&mut self, at: Logical) {
        self.single.remove(&at);
    }

    /// Begins a round if one is due. Returns whether a round began.
    pub(crate) fn next_round(&mut self) -> bool {
        let is_due = self.begun.is_none_or(|begun| clock::since(begun) >= PERIOD);
        if is_due {
            self.begun = Some(clock::now());
            self.round += 1;
        }
        is_due
    }

    /// Returns the addresses of nodes that had one copy for a whole round.
    pub(crate) fn old(&self) -> Vec<Logical> {
        let is_old = |single: &SingleCopyNode| single.since + 1 < self.round;
        self.single.iter().filter(|(_, single)| is_old(single)).map(|(at, _)| *at).collect()
    }

    /// The bytes of the nodes at `places` that still lack other copies.
    pub(crate) fn bytes<'s>(
        &'s self,
        places: &BTreeSet<Logical>,
        trees: impl Iterator<Item = &'s LogTree>,
    ) -> Vec<(Logical, &'s [u8])> {
        let leaves = trees.flat_map(LogTree::written).filter(|(at, _)| places.contains(at));
        let mut found: Vec<_> = leaves.filter(|(at, _)| self.single.contains_key(at)).collect();
        let above = places.iter().filter_map(|at| self.single.get(at)?.above.as_ref());
        found.extend(above.map(|node| (node.logical(), node.bytes())));
        found
    }
}
