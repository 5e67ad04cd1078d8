//! fsync: logs the inodes of all waiting threads together, and makes the log durable.
//!
//! # Invariants
//!
//! - **S1** A log is written under the commit lock, with no frozen overlay. So the log is based on
//!   the last superblock, and no commit of older changes can come between the superblock and the
//!   log.
//! - **S2** Data and the first copies of nodes are written and flushed first (`copies`). Then the
//!   superblock that names the log is written to its first copy and flushed. Data was written
//!   before its extents were put, or the data is written with the nodes (`logged_write`).
//! - **S3** A log's superblock differs from the one on disk only in its first sector. So a power
//!   cut leaves the old superblock or the new one, never a torn one. A node is free as soon as a
//!   log without it is durable.
//! - **S4** Every failure leads to a commit, and no log is written before that commit. The writer
//!   stays marked as broken until a commit ends the log. A failed flush or superblock write latches
//!   the volume, as it does in a commit.
//!
//! # Locks
//!
//! Commit, log, gate, in this order. A thread that waits for a log holds none of these locks. It
//! may hold the claim of a file, if the log writes data of this file.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_base::clock;
use buttress_format::{Incompat, Ino, Logical, TreeId};
use buttress_txn::{
    CommitLockGuard, CommitReason, Cost, Error, LogHold, LoggedId, ReserveClass, Result,
};
use buttress_volume::{Copies, NotDurable};

use crate::collect;
use crate::no_log::{LogResult, NoLog};
use crate::queue::{Joined, Logged};
use crate::sync_log::SyncLog;
use crate::waiting::LogData;
use crate::writer::Writer;

/// The unit that a power cut leaves old or new as a whole.
#[cfg(debug_assertions)]
const SECTOR: usize = 512;

impl SyncLog {
    /// Makes the present state of an inode durable, by a log, or by a commit if a log cannot
    /// express it. The caller has put all changes of the inode that were only in memory into the
    /// running transaction. Callers that arrive together share a log. If a commit is needed,
    /// `before_commit` is called first.
    ///
    /// # Errors
    ///
    /// As [`Engine::commit`](buttress_txn::Engine::commit).
    pub fn sync_inode(&self, tree: TreeId, ino: Ino, before_commit: impl FnOnce()) -> Result<()> {
        match self.log_inode(tree, ino)? {
            Logged::Durable => Ok(()),
            Logged::NeedsCommit => {
                before_commit();
                self.engine.commit().map(drop)
            }
        }
    }

    /// Logs an inode, if a log can express it.
    pub(crate) fn log_inode(&self, tree: TreeId, ino: Ino) -> Result<Logged> {
        self.engine.check_writable()?;
        self.counters.note_sync();
        if !self.options.is_on {
            return Ok(Logged::NeedsCommit);
        }
        match self.queue.join((tree, ino.0)) {
            Joined::Lead => self.lead(),
            Joined::Done(outcome) => outcome,
        }
    }

    /// Makes the log for all waiting threads.
    fn lead(&self) -> Result<Logged> {
        if self.engine.volume().writes_at_once() {
            self.queue.wait_for_others();
        } else if self.queue.expects_others() {
            std::thread::yield_now();
        }
        // Threads that arrive during the present commit or log join this batch.
        let mut turn = self.engine.commits().commit_turn();
        let batch = self.queue.take();
        let start = clock::now();
        let outcome = self.log_inodes(&mut turn, &batch.wanted);
        // Latches the volume while this thread has the turn. No other thread may commit on top of
        // data that may be lost.
        let outcome = outcome.map_err(|no_log| match no_log {
            NoLog::Lost(error) => NoLog::Failed(self.engine.latch(error)),
            other => other,
        });
        drop(turn);
        let outcome = match outcome {
            Ok(()) => Ok(Logged::Durable),
            Err(NoLog::Failed(Error::Aborted(cause))) => Err(Error::Aborted(cause)),
            Err(no_log) => {
                let why = match no_log {
                    NoLog::Commit(why) => why,
                    NoLog::Lost(_) => unreachable!("S4: it is latched above"),
                    NoLog::Failed(error) => {
                        tracing::warn!(%error, "a log failed: a commit instead");
                        CommitReason::FailedLog
                    }
                };
                tracing::debug!(%why, "a commit instead of a log");
                *self.fallbacks.lock().entry(why).or_default() += 1;
                Ok(Logged::NeedsCommit)
            }
        };
        // Pass the lead on before any of these threads commits. A commit waits for all data that
        // waits for a log (`txn::unwritten::B1`). Some of that data may wait for the next log,
        // which needs the new lead.
        self.queue.pass_on(batch, clock::since(start), &outcome);
        outcome
    }

    fn log_inodes(
        &self,
        turn: &mut CommitLockGuard<'_>,
        wanted: &BTreeSet<LoggedId>,
    ) -> LogResult<()> {
        self.engine.check_writable()?;
        let (mut hold, mut writer) = self.hold();
        if writer.is_broken() {
            return Err(NoLog::Commit(CommitReason::UnfinishedLog));
        }
        writer.set_broken(true);
        let (changed, data) = turn.between_operations(|| {
            if let Some(why) = turn.log_obstacle() {
                return Err(NoLog::Commit(why));
            }
            let no_holes = turn.superblock().incompat.has(Incompat::NO_HOLES);
            let changed = collect::collect(&self.engine, writer.logs(), wanted, no_holes)?;
            // Includes the data of every extent that `collect` has seen (`logged_write::E2`).
            Ok((changed, self.waiting.unwritten()))
        })?;
        if changed {
            self.write_log(turn, &mut hold, &mut writer, &data)?;
            self.counters.note_log();
        } else {
            // Some data may still have to become durable: data that was written in place, or data
            // of a file without names.
            self.write_durably(&data, Vec::new())?;
        }
        writer.set_broken(false);
        Ok(())
    }

    /// Writes data and a log's nodes, and flushes.
    fn write_durably(
        &self,
        data: &[Arc<LogData>],
        nodes: Vec<(Logical, &[u8], Copies)>,
    ) -> LogResult<()> {
        let parts = data.iter().flat_map(|data| data.parts());
        let parts = parts.map(|(at, bytes)| (at, bytes, Copies::All));
        let batch: Vec<_> = parts.chain(nodes).collect();
        let outcome = self.engine.volume().write_batch_and_flush(&batch);
        drop(batch);
        // After a failed flush the state of the device is unknown, so the data is not written
        // again.
        if !matches!(outcome, Err(NotDurable::Write(_))) {
            data.iter().for_each(|data| data.note_written());
        }
        outcome.map_err(|why| match why {
            NotDurable::Write(error) => NoLog::from(Error::from(error)),
            NotDurable::Flush(error) => lost(error),
        })
    }

    fn write_log(
        &self,
        turn: &mut CommitLockGuard<'_>,
        hold: &mut LogHold<'_>,
        writer: &mut Writer,
        data: &[Arc<LogData>],
    ) -> LogResult<()> {
        let made = writer.make(hold, self.engine.store().geometry(), turn.generation())?;
        // Space reserved for the trees has priority.
        if !self.engine.reservations().may_reserve(Cost::default(), ReserveClass::Normal) {
            return Err(NoLog::Commit(CommitReason::LowMetadata));
        }
        let nodes = writer.nodes(&made, &self.engine, self.options.copies);
        self.engine.note_nodes_written(nodes.len() as u64);
        // The rest of the row is given back before the write, so that the row has only these nodes.
        hold.rows.close();
        let parts: Vec<_> = nodes.iter().map(|(at, bytes, _)| (*at, *bytes)).collect();
        let gaps = self.engine.storage().row_gaps(&parts);
        let zeros = gaps.parts().map(|(at, bytes)| (at, bytes, Copies::All));
        let single = nodes.iter().filter(|(_, _, copies)| *copies == Copies::First);
        let single: Vec<Logical> = single.map(|(at, ..)| *at).collect();
        self.write_durably(data, nodes.into_iter().chain(zeros).collect())?;
        let mut superblock = turn.superblock().clone();
        superblock.log_root = made.top().logical;
        superblock.log_root_level = made.top().level;
        #[cfg(debug_assertions)]
        {
            let rest = |superblock: &buttress_format::Superblock| {
                superblock.to_bytes(0)[SECTOR..].to_vec()
            };
            assert_eq!(rest(&superblock), rest(turn.superblock()), "S3");
        }
        self.engine.volume().commit_flushed(&superblock).map_err(lost)?;
        turn.set_superblock(superblock);
        if !single.is_empty() {
            self.lacks_copies.store(true, Ordering::Relaxed);
        }
        writer.note_durable(made, &single, hold);
        Ok(())
    }
}

fn lost(error: impl Into<Error>) -> NoLog {
    NoLog::Lost(error.into())
}
