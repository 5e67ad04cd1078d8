//! Copies of a log's nodes that follow when the log rests.
//!
//! A log of eight threads is some twenty nodes, most of which the next log replaces within a millisecond. Where metadata
//! has two copies on one device (DUP), an fsync waits for the first alone, and the second is written of nodes that
//! stay. Copies on other devices are always waited for: a device may be gone after a crash.
//!
//! # Invariants
//!
//! - **K1** The superblock names a node only when its first copy is durable, which is the one that readers begin with.
//!   The others are written by the second [`PERIOD`] that the node sees, and durable by the third: a log that is made
//!   meanwhile flushes them, or they are flushed for themselves. That is where somebody calls [`Engine::complete_log`] so often;
//!   the commit that ends the log makes them needless.
//! - **K2** What another copy of a place holds is the node, or fails the checks that its reader makes: it is of an earlier
//!   transaction. So once other copies of a place were written, every later node there is written to all of them: an older
//!   node of the same log could be taken for it. And before the first commit of a session all nodes are: a crash before
//!   it, or a log that was thrown away, may have left nodes of that generation anywhere.
//!
//! # Locks
//!
//! The log's, across the writes: nothing of it is replaced or given back meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_format::Logical;
use buttress_tree::Node;
use buttress_volume::Copies;

use super::tree::LogTree;
use crate::Engine;

/// How a log is written where metadata has several copies on one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogCopies {
    /// An fsync waits for the first; the others follow, of nodes that stay.
    #[default]
    First,
    /// An fsync waits for all.
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

/// How long a node is left with one copy, at the least; twice that at the most.
const PERIOD: Duration = Duration::from_millis(100);

/// Nodes that are written while the log is held. An fsync may wait for so many.
const AT_ONCE: usize = 32;

/// A node that has only its first copy.
#[derive(Debug)]
struct Owed {
    /// The round in which it was written.
    since: u64,
    /// The node itself, if no leaf, which its tree has.
    above: Option<Node>,
}

/// What is on the other copies of the places of one log.
#[derive(Debug, Default)]
pub(super) struct OtherCopies {
    owed: BTreeMap<Logical, Owed>,
    /// Places whose other copies hold something of this log (K2).
    whole: BTreeSet<Logical>,
    /// Rounds of [`Engine::complete_log`], and when the last began.
    round: u64,
    begun: Option<Instant>,
    /// Other copies were written, and nothing was flushed since.
    unflushed: bool,
}

impl OtherCopies {
    /// Which copies a node is to be written to at once.
    pub(super) fn wanted(&self, engine: &Engine, at: Logical) -> Copies {
        let may_wait = engine.options.log_copies == LogCopies::First
            && engine.has_committed()
            && engine.volume.has_copies_beside(at)
            && !self.whole.contains(&at);
        if may_wait { Copies::First } else { Copies::All }
    }

    /// A node is durable in its first copy.
    pub(super) fn owe(&mut self, at: Logical, above: Option<Node>) {
        self.owed.insert(at, Owed { since: self.round, above });
    }

    /// A log was made durable, with whatever was written before it.
    pub(super) fn flushed(&mut self) {
        self.unflushed = false;
    }

    /// A node is no part of the log any more.
    pub(super) fn forget(&mut self, at: Logical) {
        self.owed.remove(&at);
    }

    /// Whether a round is due; begins it.
    fn next_round(&mut self) -> bool {
        let is_due = self.begun.is_none_or(|begun| clock::since(begun) >= PERIOD);
        if is_due {
            self.begun = Some(clock::now());
            self.round += 1;
        }
        is_due
    }

    /// Places of nodes that saw a whole round with one copy.
    fn old(&self) -> Vec<Logical> {
        let is_old = |owed: &Owed| owed.since + 1 < self.round;
        self.owed.iter().filter(|(_, owed)| is_old(owed)).map(|(at, _)| *at).collect()
    }

    /// The bytes of nodes that are owed still.
    fn bytes<'s>(
        &'s self,
        places: &BTreeSet<Logical>,
        trees: impl Iterator<Item = &'s LogTree>,
    ) -> Vec<(Logical, &'s [u8])> {
        let leaves = trees.flat_map(LogTree::written).filter(|(at, _)| places.contains(at));
        let mut found: Vec<_> = leaves.filter(|(at, _)| self.owed.contains_key(at)).collect();
        let above = places.iter().filter_map(|at| self.owed.get(at)?.above.as_ref());
        found.extend(above.map(|node| (node.logical(), node.bytes())));
        found
    }
}

impl Engine {
    /// Writes the other copies of log nodes that an fsync did not wait for, if it is time (K1). To be called a few times
    /// in a [`PERIOD`].
    pub fn complete_log(&self) {
        if !self.owes_copies.load(Ordering::Relaxed) || self.check_writable().is_err() {
            return;
        }
        let (old, unflushed) = {
            let mut log = self.log.lock();
            let others = &mut log.writer.others;
            if !others.next_round() {
                return;
            }
            self.owes_copies.store(!others.owed.is_empty(), Ordering::Relaxed);
            (others.old(), std::mem::take(&mut others.unflushed))
        };
        if unflushed && let Err(error) = self.volume.flush() {
            // As behind a log: what was written since the last good flush is in doubt.
            self.latch(error.into());
            return;
        }
        for places in old.chunks(AT_ONCE) {
            if !self.complete(&places.iter().copied().collect()) {
                return;
            }
        }
    }

    /// Of those places that are owed still. A failure leaves the log to be ended by a commit.
    fn complete(&self, places: &BTreeSet<Logical>) -> bool {
        let mut log = self.log.lock();
        let writer = &mut log.writer;
        let nodes = writer.others.bytes(places, writer.logs.trees.values());
        let done: Vec<Logical> = nodes.iter().map(|(at, _)| *at).collect();
        let outcome = self.volume.write_other_copies(&nodes);
        drop(nodes);
        // What a failed write left there is anybody's guess.
        writer.others.whole.extend(&done);
        if let Err(error) = outcome {
            tracing::warn!(%error, "the other copies of a log: a commit will end it");
            // It is not tried again.
            writer.others.owed.clear();
            writer.broken = true;
            return false;
        }
        for at in &done {
            writer.others.forget(*at);
        }
        writer.others.unflushed |= !done.is_empty();
        self.owes_copies.store(true, Ordering::Relaxed);
        self.counters.log_copies.fetch_add(done.len() as u64, Ordering::Relaxed);
        true
    }
}
