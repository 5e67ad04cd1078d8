//! fsync: gathers who asks, logs their inodes in one go, makes the log durable.
//!
//! # Invariants
//!
//! - **S1** A log is written under the commit lock, with nothing frozen: it is on top of the last superblock,
//!   and no commit of older changes can come between (T12).
//! - **S2** The order is: data and nodes, flush, the superblock with the log to its first copy, flush. Data was
//!   written before its extents were put.
//! - **S3** A log's superblock differs from the one on disk within its first sector alone, so that a power cut
//!   leaves one or the other, never a torn one. A node is thus free as soon as a log without it is durable.
//! - **S4** Whatever goes wrong ends in a commit, and in no further log before it.
//!
//! # Locks
//!
//! Commit, log, gate, in this order. Who waits for a log holds none.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;

use buttress_format::{
    Extent, Generation, Incompat, Ino, InodeItem, Key, Kind, Logical, RootItem, Superblock, TreeId,
    header::ITEM_LEN,
};
use buttress_space::{AllocRequest, Outcome as Space, SpaceKind};
use buttress_tree::LeafBuilder;
use parking_lot::{Condvar, Mutex};

use super::collect::{self, Logs, Outcome, Trouble};
use super::tracked::LoggedId;
use super::tree::Build;
use crate::commit::CommitState;
use crate::{Cost, Engine, Error, Result, Urgency};

/// Items of a log in bytes beyond which a commit is better: for memory, and for the time that replay takes.
const LOG_BYTES_MAX: usize = 24 << 20;

/// What a power cut leaves old or new as a whole.
const SECTOR: usize = 512;

/// The stream of allocations that log nodes are: they come and go apart from the trees' nodes.
const STREAM: u64 = 1;

/// Bytes of the stretch that log nodes go round in, where there is room.
const STRETCH: u64 = 8 << 20;

/// Failures that are kept for those who wait for them.
const FAILURES_KEPT: usize = 64;

/// Who waits for a log.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    inner: Mutex<Waiting>,
    turned: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    wanted: BTreeSet<LoggedId>,
    /// The number of the batch that is being gathered; those before are done, or under way.
    gathering: u64,
    done: u64,
    led: bool,
    failures: Vec<(u64, Error)>,
}

/// The log of the running transaction.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    logs: Logs,
    /// The log root tree's only node.
    root: Option<Logical>,
    /// Every node that has space.
    nodes: HashSet<Logical>,
    /// Where the first of them lies, and where the next should. They go round in a stretch of space: those of one
    /// log lie side by side, and take the place of those that went.
    home: Option<(Logical, Logical)>,
    /// A log was not finished: the next durable thing is a commit (S4).
    broken: bool,
}

impl Writer {
    /// Everything that has space, which is free now.
    pub(crate) fn end(&mut self) -> HashSet<Logical> {
        std::mem::take(self).nodes
    }
}

impl Engine {
    /// Makes an inode durable as it is now: by a log, or by a commit where a log cannot say it. What it has
    /// in memory alone must have been put before. Callers that arrive together share a log.
    ///
    /// # Errors
    ///
    /// As [`Engine::commit`].
    pub fn sync_inode(&self, tree: TreeId, ino: Ino) -> Result<()> {
        self.check_writable()?;
        if !self.options.tree_log {
            return self.commit().map(drop);
        }
        let mut queue = self.syncs.inner.lock();
        queue.wanted.insert((tree, ino.0));
        let mine = queue.gathering;
        while queue.done <= mine {
            if queue.led {
                self.syncs.turned.wait(&mut queue);
                continue;
            }
            queue.led = true;
            drop(queue);
            self.lead();
            queue = self.syncs.inner.lock();
        }
        let failure = queue.failures.iter().find(|(batch, _)| *batch == mine);
        failure.map_or(Ok(()), |(_, error)| Err(error.clone()))
    }

    /// Logs for all who wait.
    fn lead(&self) {
        // Whoever comes while a commit or the log before is under way joins.
        let mut state = self.commit.lock();
        let (batch, wanted) = {
            let mut queue = self.syncs.inner.lock();
            queue.gathering += 1;
            (queue.gathering - 1, std::mem::take(&mut queue.wanted))
        };
        let outcome = self.log_inodes(&mut state, &wanted);
        drop(state);
        let outcome = outcome.or_else(|trouble| {
            match trouble {
                Trouble::Commit(why) => tracing::debug!(why, "a commit instead of a log"),
                Trouble::Failed(error) => tracing::warn!(%error, "a log failed: a commit instead"),
            }
            self.counters.log_commits.fetch_add(1, Ordering::Relaxed);
            self.commit().map(drop)
        });
        let mut queue = self.syncs.inner.lock();
        queue.done = batch + 1;
        queue.led = false;
        if let Err(error) = outcome {
            let old = queue.failures.len().saturating_sub(FAILURES_KEPT);
            queue.failures.drain(..old);
            queue.failures.push((batch, error));
        }
        drop(queue);
        self.syncs.turned.notify_all();
    }

    fn log_inodes(&self, state: &mut CommitState, wanted: &BTreeSet<LoggedId>) -> Outcome<()> {
        self.check_writable()?;
        let mut log = self.log.lock();
        let writer = &mut log.writer;
        if writer.broken {
            return Err(Trouble::Commit("a log that was not finished"));
        }
        writer.broken = true;
        let changed = {
            let _gate = self.gate.write();
            self.expect_loggable(state)?;
            let no_holes = state.superblock.incompat.has(Incompat::NO_HOLES);
            collect::collect(self, &mut writer.logs, wanted, no_holes)?
        };
        if changed {
            self.write_log(state, writer)?;
            self.counters.logs.fetch_add(1, Ordering::Relaxed);
        } else {
            // Data may have been overwritten in place.
            self.volume.flush()?;
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
                Space::NeedsLoading(group) => self.load_group(&group)?,
                Space::Full { .. } => return Err(Error::NoSpace("a log")),
            }
        }
    }

    fn write_log(&self, state: &mut CommitState, writer: &mut Writer) -> Outcome<()> {
        let Writer { logs, root, nodes, home, .. } = writer;
        let bytes: usize = logs.trees.values().map(|log| log.bytes()).sum();
        if bytes > LOG_BYTES_MAX {
            return Err(Trouble::Commit("a long log"));
        }
        // Chunks of this transaction are not known after a crash.
        let limit = state.roots.generation;
        let len = u64::from(self.store.geometry().nodesize);
        let mut allocate = || {
            let at = self.log_node(limit, home.map(|(_, next)| next))?;
            let (first, _) = home.unwrap_or((at, at));
            let next = at.end(len);
            let inside = (first..first.end(STRETCH)).contains(&next);
            *home = Some((first, if inside { next } else { first }));
            nodes.insert(at);
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
        let top = build.add(top);
        build.dropped.extend(root.replace(top.logical));
        let Build { nodes: made, dropped, .. } = build;
        // What the trees were promised comes first.
        if !self.may_reserve(Cost::default(), Urgency::Normal) {
            return Err(Trouble::Commit("little space for metadata"));
        }
        self.write_nodes(&made)?;
        let mut superblock = state.superblock.clone();
        superblock.log_root = top.logical;
        superblock.log_root_level = top.level;
        let sector = |superblock: &Superblock| superblock.to_bytes(0)[SECTOR..].to_vec();
        assert_eq!(sector(&superblock), sector(&state.superblock), "S3");
        self.volume.flush()?;
        self.volume.write_first_superblock(&superblock)?;
        state.superblock = superblock;
        for start in dropped {
            nodes.remove(&start);
            self.space.free(Extent { start, len });
        }
        Ok(())
    }
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
