//! fsync: logs the inodes of those who ask in one go, makes the log durable.
//!
//! # Invariants
//!
//! - **S1** A log is written under the commit lock, with nothing frozen: it is on top of the last superblock,
//!   and no commit of older changes can come between (T12).
//! - **S2** The order is: data and nodes (their first copies, `copies`), flush, the superblock with the log to its first copy, flush. Data was
//!   written before its extents were put, or is late and written with the nodes (`late`).
//! - **S3** A log's superblock differs from the one on disk within its first sector alone, so that a power cut
//!   leaves one or the other, never a torn one. A node is thus free as soon as a log without it is durable.
//! - **S4** Whatever goes wrong ends in a commit, and in no further log before it; a flush or a superblock that
//!   failed ends everything, as it does in a commit.
//!
//! # Locks
//!
//! Commit, log, gate, in this order. Who waits for a log holds none; he may have the claim of a file whose data is late.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_base::clock;
use buttress_format::{
    Generation, Incompat, Ino, InodeItem, Key, Kind, Logical, RootItem, TreeId, header::ITEM_LEN,
};
use buttress_space::{AllocRequest, Outcome as Space, SpaceKind};
use buttress_tree::{LeafBuilder, Node};
use buttress_volume::{Copies, NotDurable};

use super::collect::{self, Logs, Outcome, Trouble};
use super::copies::OtherCopies;
use super::late::{Late, LateBatch};
use super::queue::Joined;
use super::tracked::LoggedId;
use super::tree::{Build, LogTree};
use crate::commit::CommitState;
use crate::{Cost, Engine, Error, Result, Urgency};

/// Leaves of a log in bytes beyond which a commit is better: for memory, and for the time that replay takes.
const LOG_BYTES_MAX: u64 = 24 << 20;

/// What a power cut leaves old or new as a whole.
#[cfg(debug_assertions)]
const SECTOR: usize = 512;

/// The stream of allocations that log nodes are: they come and go apart from the trees' nodes.
const STREAM: u64 = 1;

/// Free places for nodes that are kept to go round in, where there is room.
const SPARE: usize = 64;
/// Free places beyond which a log does without neighbours rather than take more.
const SPARE_MAX: usize = 256;

/// The log of the running transaction.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(super) logs: Logs,
    /// The log root tree's only node.
    root: Option<Logical>,
    /// Every place for a node that has space.
    nodes: Vec<Logical>,
    /// Those of them that no log on disk names.
    spare: BTreeSet<Logical>,
    /// Where the next node should lie: they go round, and those of one log lie side by side.
    next: Logical,
    /// What is on the copies that nobody waits for.
    pub(super) others: OtherCopies,
    /// A log was not finished: the next durable thing is a commit (S4).
    pub(super) broken: bool,
}

impl Writer {
    /// Everything that has space, which is free now.
    pub(crate) fn end(&mut self) -> Vec<Logical> {
        std::mem::take(self).nodes
    }
}

impl Engine {
    /// How often a commit was made for an fsync because a log could not say it, by reason.
    #[must_use]
    pub fn log_fallbacks(&self) -> BTreeMap<&'static str, u64> {
        self.fallbacks.lock().clone()
    }

    /// Makes an inode durable as it is now: by a log, or by a commit where a log cannot say it. What it has
    /// in memory alone must have been put before, or is `late` and written with the log. Callers that arrive together
    /// share a log. Should it be a commit, `before_commit` is called first.
    ///
    /// # Errors
    ///
    /// As [`Engine::commit`]. What became of late data it knows itself.
    pub fn sync_inode(
        &self,
        tree: TreeId,
        ino: Ino,
        late: Option<Arc<dyn Late>>,
        before_commit: impl FnOnce(),
    ) -> Result<()> {
        self.check_writable()?;
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        if !self.options.tree_log {
            before_commit();
            return self.commit().map(drop);
        }
        match self.syncs.join((tree, ino.0), late) {
            Joined::Lead => self.lead(before_commit),
            Joined::Done(outcome) => outcome,
        }
    }

    /// Logs for all who wait.
    fn lead(&self, before_commit: impl FnOnce()) -> Result<()> {
        if self.volume.writes_at_once() {
            self.syncs.await_company();
        } else if self.syncs.expects_company() {
            std::thread::yield_now();
        }
        // Whoever comes while a commit or the log before is under way joins.
        let mut state = self.commit.lock();
        let mut batch = self.syncs.take();
        let start = clock::now();
        let mut late = LateBatch::put(self, std::mem::take(&mut batch.late));
        let outcome = self.log_inodes(&mut state, &batch.wanted, &mut late);
        if !late.end(self) {
            self.latch(Error::Malformed("an extent that moved cannot be taken back".to_owned()));
        }
        // Before anybody else may commit on top of what is in doubt.
        let outcome = outcome.map_err(|trouble| match trouble {
            Trouble::Lost(error) => Trouble::Failed(self.latch(error)),
            other => other,
        });
        drop(state);
        let outcome = outcome.or_else(|trouble| {
            let why = match trouble {
                Trouble::Commit(why) => why,
                Trouble::Failed(Error::Aborted(cause)) => return Err(Error::Aborted(cause)),
                Trouble::Lost(_) => unreachable!("S4: it is latched above"),
                Trouble::Failed(error) => {
                    tracing::warn!(%error, "a log failed: a commit instead");
                    "a log that failed"
                }
            };
            tracing::debug!(why, "a commit instead of a log");
            *self.fallbacks.lock().entry(why).or_default() += 1;
            self.counters.log_commits.fetch_add(1, Ordering::Relaxed);
            before_commit();
            self.commit().map(drop)
        });
        self.syncs.pass_on(batch, clock::since(start), &outcome);
        outcome
    }

    fn log_inodes(
        &self,
        state: &mut CommitState,
        wanted: &BTreeSet<LoggedId>,
        late: &mut LateBatch,
    ) -> Outcome<()> {
        self.check_writable()?;
        let mut log = self.log.lock();
        let writer = &mut log.writer;
        if writer.broken {
            return Err(Trouble::Commit("a log that was not finished"));
        }
        writer.broken = true;
        let changed = self.gate.alone(|| {
            self.expect_loggable(state)?;
            let no_holes = state.superblock.incompat.has(Incompat::NO_HOLES);
            collect::collect(self, &mut writer.logs, wanted, no_holes)
        })?;
        if changed {
            self.write_log(state, writer, late)?;
            self.counters.logs.fetch_add(1, Ordering::Relaxed);
        } else {
            // Data may have been overwritten in place; late data may be of a file without names.
            self.write_durably(late, Vec::new())?;
        }
        writer.broken = false;
        Ok(())
    }

    /// Refuses what the superblock on disk would have to know.
    fn expect_loggable(&self, state: &CommitState) -> Outcome<()> {
        let view = self.view.load();
        let running = view.running();
        let needed = self.features.load(Ordering::Relaxed);
        let refused = [
            (view.frozen().is_some(), "a commit that failed"),
            (!running.snapshots.lock().is_empty(), "a snapshot"),
            (!running.devices.lock().is_empty(), "a change of devices"),
            (!running.touched.lock().is_empty(), "a balance"),
            (state.superblock.incompat.0 & needed != needed, "a new feature"),
            (running.generation != state.superblock.generation.next(), "a generation left out"),
        ];
        match refused.iter().find(|(is_so, _)| *is_so) {
            Some((_, why)) => Err(Trouble::Commit(why)),
            None => Ok(()),
        }
    }

    /// New space for a node of the log.
    fn log_node(&self, limit: Generation, goal: Option<Logical>) -> Result<Logical> {
        let size = u64::from(self.store.geometry().nodesize);
        let request = AllocRequest {
            kind: SpaceKind::Metadata,
            want: size,
            min: size,
            align: size,
            goal,
            limit,
            stream: STREAM,
            hurry: false,
        };
        loop {
            match self.space.allocate(request) {
                Space::Got(extent) => return Ok(extent.start),
                Space::NeedsLoading(group) => self.load_or_leave(&group),
                Space::Full { .. } => return Err(Error::NoSpace("a log")),
            }
        }
    }

    /// Writes late data and a log's nodes, and flushes.
    fn write_durably(
        &self,
        late: &mut LateBatch,
        nodes: Vec<(Logical, &[u8], Copies)>,
    ) -> Outcome<()> {
        let data = late.writes().map(|(at, bytes)| (at, bytes, Copies::All));
        let batch: Vec<_> = data.chain(nodes).collect();
        let outcome = self.volume.write_batch_and_flush(&batch);
        drop(batch);
        // Where the flush failed nobody can tell, and nothing is written any more.
        late.is_written = !matches!(outcome, Err(NotDurable::Write(_)));
        outcome.map_err(|why| match why {
            NotDurable::Write(error) => Trouble::from(Error::from(error)),
            NotDurable::Flush(error) => lost(error),
        })
    }

    fn write_log(
        &self,
        state: &mut CommitState,
        writer: &mut Writer,
        late: &mut LateBatch,
    ) -> Outcome<()> {
        let Writer { logs, root, nodes, spare, next, others, .. } = writer;
        let len = u64::from(self.store.geometry().nodesize);
        let leaves: usize = logs.trees.values().map(LogTree::leaves).sum();
        if leaves as u64 * len > LOG_BYTES_MAX {
            return Err(Trouble::Commit("a long log"));
        }
        // Chunks of this transaction are not known after a crash.
        let limit = state.roots.generation;
        // What changed in each tree, and the root of all.
        let wanted = logs.trees.values().map(LogTree::changed_nodes).sum::<usize>() + 1;
        let neighbours = neighbours(spare, *next, wanted, len);
        *next = neighbours.unwrap_or(*next);
        let reuse = spare.len() > SPARE && (neighbours.is_some() || spare.len() > SPARE_MAX);
        let mut allocate = || {
            let behind = spare.range(*next..).next().or_else(|| spare.first()).copied();
            let reused = if reuse { behind } else { None };
            let at = match reused {
                Some(at) => at,
                None => {
                    match (self.log_node(limit, nodes.last().map(|last| last.end(len))), behind) {
                        (Ok(fresh), _) => {
                            nodes.push(fresh);
                            fresh
                        }
                        (Err(Error::NoSpace(_)), Some(at)) => at,
                        (Err(error), _) => return Err(error),
                    }
                }
            };
            spare.remove(&at);
            *next = at.end(len);
            Ok(at)
        };
        let mut build = Build {
            geometry: *self.store.geometry(),
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
                .ok_or(Trouble::Commit("many subvolumes"))?;
            let item = root_item(ptr.logical, ptr.generation, ptr.level, build.geometry.nodesize);
            leaf.push(&Key::new(TreeId::TREE_LOG.0, Kind::ROOT_ITEM, tree.0), &item.to_bytes());
        }
        let stamp = build.stamp()?;
        let top = leaf.finish(&build.geometry, &stamp);
        let top = build.add(top)?;
        build.dropped.extend(root.replace(top.logical));
        let Build { nodes: made, dropped, .. } = build;
        // What the trees were promised comes first.
        if !self.may_reserve(Cost::default(), Urgency::Normal) {
            return Err(Trouble::Commit("little space for metadata"));
        }
        let leaves = logs.trees.values().flat_map(LogTree::fresh);
        let above = made.iter().map(|node| (node.logical(), node.bytes()));
        let nodes = leaves.chain(above).map(|(at, bytes)| (at, bytes, others.wanted(self, at)));
        let nodes: Vec<_> = nodes.collect();
        self.counters.nodes_written.fetch_add(nodes.len() as u64, Ordering::Relaxed);
        let owed = nodes.iter().filter(|(_, _, copies)| *copies == Copies::First);
        let owed: Vec<Logical> = owed.map(|(at, ..)| *at).collect();
        self.write_durably(late, nodes)?;
        let mut superblock = state.superblock.clone();
        superblock.log_root = top.logical;
        superblock.log_root_level = top.level;
        #[cfg(debug_assertions)]
        {
            let rest = |superblock: &buttress_format::Superblock| {
                superblock.to_bytes(0)[SECTOR..].to_vec()
            };
            assert_eq!(rest(&superblock), rest(&state.superblock), "S3");
        }
        self.volume.commit_flushed(&superblock).map_err(lost)?;
        others.flushed();
        state.superblock = superblock;
        for at in &dropped {
            others.forget(*at);
        }
        let mut above: BTreeMap<Logical, Node> =
            made.into_iter().map(|node| (node.logical(), node)).collect();
        for at in owed {
            others.owe(at, above.remove(&at));
            self.owes_copies.store(true, Ordering::Relaxed);
        }
        spare.extend(dropped);
        Ok(())
    }
}

/// Where as many free places lie side by side as are wanted, from `next` on if there, so that each copy of a log
/// goes out in one request.
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

fn lost(error: impl Into<Error>) -> Trouble {
    Trouble::Lost(error.into())
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
