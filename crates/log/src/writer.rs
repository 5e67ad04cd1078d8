//! The log of the running transaction: the log's trees in memory, and the addresses of their nodes
//! on disk.
//!
//! # Invariants
//!
//! - **W1** A writer describes one log. Once a commit has ended that log, a new writer replaces the
//!   old one.

use std::collections::{BTreeMap, BTreeSet};

use buttress_format::{
    Generation, InodeItem, Key, Kind, Logical, RootItem, TreeId, header::ITEM_LEN,
};
use buttress_tree::{Geometry, LeafBuilder, Node, NodePtr};
use buttress_txn::{CommitReason, Engine, Error, LogHold};
use buttress_volume::Copies;

use crate::logs::Logs;
use crate::no_log::{LogResult, NoLog};
use crate::single_copy::{LogCopies, OtherCopies};
use crate::tree::{Build, LogTree};

/// The maximum size of a log's leaves, in bytes. Beyond this size a commit is better, because the
/// log stays in memory and replay takes long.
const LOG_BYTES_MAX: u64 = 24 << 20;

/// With at most this many free places, a log takes new places if there is space. Later logs then
/// find places side by side.
const SPARE: usize = 64;
/// With more free places than this, a log reuses them even if they do not lie side by side.
const SPARE_MAX: usize = 256;

/// The log of the running transaction.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// The number of logs that had ended when this writer's log began (W1).
    since: u64,
    logs: Logs,
    /// The log root tree's only node.
    root: Option<Logical>,
    /// The address that was allocated last.
    last: Option<Logical>,
    /// Addresses for nodes that no log on disk names.
    spare: BTreeSet<Logical>,
    /// The preferred place of the next node. Places are used in turn, so that the nodes of one log
    /// lie side by side.
    next: Logical,
    /// The state of the copies that an fsync does not wait for.
    others: OtherCopies,
    /// A log was not finished, so the next durable step is a commit (`sync::S4`).
    broken: bool,
}

/// Nodes that were made for a log and are not written yet.
pub(crate) struct UnwrittenNodes {
    /// The log root tree.
    top: NodePtr,
    /// The nodes above the leaves of logs.
    above: Vec<Node>,
    /// Nodes of the preceding log that this log does not use.
    dropped: Vec<Logical>,
}

impl UnwrittenNodes {
    /// The node that the superblock names.
    pub(crate) fn top(&self) -> NodePtr {
        self.top
    }
}

impl Writer {
    /// Creates the writer of a log that begins after `since` logs have ended.
    pub(crate) fn begun(since: u64) -> Self {
        Self { since, ..Self::default() }
    }

    /// Returns the number of logs that had ended when this writer's log began.
    pub(crate) fn since(&self) -> u64 {
        self.since
    }

    /// Whether a log was not finished.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    pub(crate) fn set_broken(&mut self, broken: bool) {
        self.broken = broken;
    }

    /// Returns the logs of each subvolume.
    pub(crate) fn logs(&mut self) -> &mut Logs {
        &mut self.logs
    }

    /// The state of the copies that an fsync does not wait for.
    pub(crate) fn others(&mut self) -> &mut OtherCopies {
        &mut self.others
    }

    /// Returns the nodes at `places` that still lack other copies, and the bytes of each.
    pub(crate) fn single_copy_bytes(&self, places: &BTreeSet<Logical>) -> Vec<(Logical, &[u8])> {
        self.others.bytes(places, self.logs.trees.values())
    }

    /// Gives each changed node of the log a place, and builds the nodes above the leaves.
    pub(crate) fn make(
        &mut self,
        hold: &mut LogHold<'_>,
        geometry: &Geometry,
        // The log uses only groups that are not younger than `limit`, because a crash loses younger
        // chunks.
        limit: Generation,
    ) -> LogResult<UnwrittenNodes> {
        let Self { logs, root, last, spare, next, .. } = self;
        let len = u64::from(geometry.nodesize);
        let leaves: usize = logs.trees.values().map(LogTree::leaves).sum();
        if leaves as u64 * len > LOG_BYTES_MAX {
            return Err(NoLog::Commit(CommitReason::LongLog));
        }
        // The changed nodes of each tree, and the node of the log root tree.
        let wanted = logs.trees.values().map(LogTree::changed_nodes).sum::<usize>() + 1;
        let neighbours = neighbours(spare, *next, wanted, len);
        *next = neighbours.unwrap_or(*next);
        let reuse = spare.len() > SPARE && (neighbours.is_some() || spare.len() > SPARE_MAX);
        let mut allocate = || {
            let behind = spare.range(*next..).next().or_else(|| spare.first()).copied();
            let reused = if reuse { behind } else { None };
            let at = match reused {
                Some(at) => at,
                None => match (hold.allocate(limit, last.map(|last| last.end(len))), behind) {
                    (Ok(fresh), _) => *last.insert(fresh),
                    (Err(Error::NoSpace(_)), Some(at)) => at,
                    (Err(error), _) => return Err(error),
                },
            };
            spare.remove(&at);
            *next = at.end(len);
            Ok(at)
        };
        let mut build = Build {
            geometry: *geometry,
            generation: limit.next(),
            allocate: &mut allocate,
            nodes: Vec::new(),
            dropped: Vec::new(),
        };
        let mut leaf = LeafBuilder::new(&build.geometry);
        let mut room = build.geometry.leaf_room();
        for (tree, log) in &mut logs.trees {
            log.build(&mut build)?;
            let Some(ptr) = log.root() else { continue };
            room = room
                .checked_sub(ITEM_LEN + RootItem::LEN)
                .ok_or(NoLog::Commit(CommitReason::ManySubvolumes))?;
            let item = root_item(ptr.logical, ptr.generation, ptr.level, build.geometry.nodesize);
            leaf.push(&Key::new(TreeId::TREE_LOG.0, Kind::ROOT_ITEM, tree.0), &item.to_bytes());
        }
        let stamp = build.stamp()?;
        let top = leaf.finish(&build.geometry, &stamp);
        let top = build.add(top)?;
        build.dropped.extend(root.replace(top.logical));
        let Build { nodes: above, dropped, .. } = build;
        Ok(UnwrittenNodes { top, above, dropped })
    }

    /// All nodes that were made, each with the copies to which the node is written at once.
    pub(crate) fn nodes<'w>(
        &'w self,
        made: &'w UnwrittenNodes,
        engine: &Engine,
        rule: LogCopies,
    ) -> Vec<(Logical, &'w [u8], Copies)> {
        let leaves = self.logs.trees.values().flat_map(LogTree::fresh);
        let above = made.above.iter().map(|node| (node.logical(), node.bytes()));
        let nodes = leaves.chain(above);
        nodes.map(|(at, bytes)| (at, bytes, self.others.wanted(engine, rule, at))).collect()
    }

    /// Records that the superblock on disk names these nodes. The nodes at `single` have only their
    /// first copy. Places that this log does not name any more are reused. With parity they are
    /// given back to `hold`, since such a place is only written again with all of its row.
    pub(crate) fn note_durable(
        &mut self,
        made: UnwrittenNodes,
        single: &[Logical],
        hold: &mut LogHold<'_>,
    ) {
        self.others.flushed();
        for at in &made.dropped {
            self.others.forget(*at);
        }
        let mut above: BTreeMap<Logical, Node> =
            made.above.into_iter().map(|node| (node.logical(), node)).collect();
        for at in single {
            self.others.note_single(*at, above.remove(at));
        }
        self.spare.extend(made.dropped.into_iter().filter(|at| !hold.give_back(*at)));
    }
}

/// Returns the first of `wanted` free places that lie side by side, so that each copy of a log is
/// one request. Prefers places from `next` on.
fn neighbours(
    spare: &BTreeSet<Logical>,
    next: Logical,
    wanted: usize,
    len: u64,
) -> Option<Logical> {
    let search = |places: &mut dyn Iterator<Item = &Logical>| {
        let mut first = None;
        let mut count = 0;
        let mut end = None;
        for place in places {
            if end != Some(*place) {
                (first, count) = (Some(*place), 0);
            }
            count += 1;
            end = Some(place.end(len));
            if count >= wanted {
                return first;
            }
        }
        None
    };
    search(&mut spare.range(next..)).or_else(|| search(&mut spare.iter()))
}

/// A log tree's root item, as Linux fills it.
fn root_item(bytenr: Logical, generation: Generation, level: u8, nodesize: u32) -> RootItem {
    let inode = InodeItem {
        generation: Generation(1),
        size: 3,
        nbytes: u64::from(nodesize),
        nlink: 1,
        mode: 0o040_755,
        ..InodeItem::default()
    };
    RootItem { inode, generation, generation_v2: generation, bytenr, level, ..RootItem::default() }
}
