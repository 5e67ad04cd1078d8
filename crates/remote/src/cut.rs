//! A cut: all writes up to a moment become a commit of the volume.
//!
//! # Invariants
//!
//! - **T1** A manifest is created only after every object that it names is in the store.
//! - **T2** A commit has a prefix of all writes. A flush of a btrfs returns when a commit has all
//!   writes up to the last write of the primary superblock. A flush of a device without a btrfs
//!   waits for all writes.
//! - **T3** If a btrfs has not written its superblock since the last commit, a flush returns at
//!   once. The keeper, a thread of `device`, commits the writes within `max-lag`. That is enough,
//!   since no committed tree refers to these writes yet.
//! - **T4** With a local log, a flush returns when the log has all writes and a cut after them. The
//!   commit follows within `max-lag`.

use std::time::Instant;

use buttress_base::clock;

use crate::chain::Added;
use crate::checkpoint::Copied;
use crate::core::{Core, Failure, State};
use crate::error::{Error, Result};
use crate::manifest::{LocalLog, LogMark, Manifest, Recent};
use crate::random;
use crate::units::{CommitNumber, ObjectNumber};

/// The number of data objects since a checkpoint that makes the next checkpoint due.
const RECENT_MAX: usize = 256;

/// The input of a commit.
#[derive(Debug)]
struct Plan {
    manifest: Manifest,
    position: u64,
    written_bytes: u64,
    begun: Instant,
    last: ObjectNumber,
    copied: Option<Copied>,
}

impl Core {
    /// Makes all writes so far durable, or defers them (T2, T3).
    pub(crate) fn flush(&self) -> Result<()> {
        let wanted = {
            let mut state = self.state.lock();
            self.check(&state)?;
            if state.position > state.committed {
                self.check_open(&state)?;
            }
            let wanted = if state.is_btrfs { state.superblock_at } else { state.position };
            let durable = state.logging.as_ref().map_or(0, |logging| logging.durable);
            let is_behind = state.position > state.committed && state.deferred.is_none();
            if is_behind && (state.committed >= wanted || state.logging.is_some()) {
                state.deferred = Some((state.position, clock::now()));
            }
            if state.committed.max(durable) >= wanted {
                return Ok(());
            }
            wanted
        };
        match self.log.get() {
            Some(log) if self.flush_to(log, wanted)? => Ok(()),
            _ => self.cut_until(wanted, false),
        }
    }

    /// Makes a commit of everything written so far.
    pub(crate) fn cut(&self, checkpoint: bool) -> Result<()> {
        let wanted = self.state.lock().position;
        self.cut_until(wanted, checkpoint)
    }

    /// Makes a commit, unless an existing one contains all wanted writes. Flushes that wait at the
    /// same time share one commit.
    fn cut_until(&self, wanted: u64, checkpoint: bool) -> Result<()> {
        let mut last = self.last.lock();
        let _scope = self.given_up.enter_fully();
        let plan = {
            let mut state = self.state.lock();
            self.check(&state)?;
            let ends_log = state.is_last && last.local.is_some();
            let has_grown = self.len() > last.device_len;
            let is_same = !ends_log && !has_grown && !self.seals_log(&last);
            if state.committed >= wanted && !checkpoint && is_same {
                return Ok(());
            }
            self.plan(&mut state, &last, checkpoint)
        };
        let (position, written_bytes, begun) = (plan.position, plan.written_bytes, plan.begun);
        let manifest = self.complete(plan).map_err(|error| self.failed_once(error))?;
        match self.chain.add(self.volume, &manifest) {
            Ok(Added::Ours) => {}
            Ok(Added::Theirs(theirs)) => {
                self.fail(Failure::Fenced(theirs.writer));
                self.keep_for_salvage();
                return self.check(&self.state.lock());
            }
            Err(error) => return Err(self.failed(error)),
        }
        *last = manifest;
        drop(last);
        let mut state = self.state.lock();
        state.committed = state.committed.max(position);
        state.committed_bytes = state.committed_bytes.max(written_bytes);
        state.behind_since = (state.position > position).then_some(begun);
        if state.deferred.is_some_and(|(deferred, _)| deferred <= position) {
            state.deferred = None;
        }
        drop(state);
        self.release_log(position);
        Ok(())
    }

    /// The entry for the local log in the manifest after `last`. The entry says that the log is
    /// sealed only once this writer's own log has begun. Until then the folder may have the log of
    /// an earlier program (`log::L5`).
    fn local_after(&self, last: &Manifest) -> Option<LocalLog> {
        let was_sealed = last.local.as_ref().is_none_or(|local| local.sealed);
        let is_sealed = self.log.get().is_some() || was_sealed;
        let local = self.local.clone();
        local.map(|local| LocalLog { sealed: local.sealed && is_sealed, ..local })
    }

    /// Whether the next manifest is the first to say that the local log is sealed.
    pub(crate) fn seals_log(&self, last: &Manifest) -> bool {
        let was_plain = last.local.as_ref().is_some_and(|local| !local.sealed);
        was_plain && self.local_after(last).is_some_and(|local| local.sealed)
    }

    fn failed_once(&self, error: Error) -> Error {
        match error {
            error @ (Error::Fenced { .. } | Error::Latched { .. }) => error,
            error => self.failed(error),
        }
    }

    /// Seals the open segment and ends the window, which is the set of writes that this commit
    /// adds. Later writes belong to the next commit.
    fn plan(&self, state: &mut State, last: &Manifest, checkpoint: bool) -> Plan {
        self.seal(state);
        let number = CommitNumber(last.number.0 + 1);
        state.map.window = CommitNumber(number.0 + 1);
        let dirty_max = self.budget.map as usize / 2;
        let mut manifest = Manifest {
            number,
            nonce: random::hex(),
            follows: last.nonce.clone(),
            writer: self.writer.clone(),
            time_ms: clock::wall().as_millis() as u64,
            epoch: self.epoch,
            device_len: self.len(),
            recent: state.recent.clone(),
            tables: state.tables.clone(),
            next_object: state.next_object,
            is_opening: false,
            local: self.local_after(last).filter(|_| !state.is_last),
            ..last.clone()
        };
        Self::name_leaves(state, &mut manifest);
        state.marks.drain(..).for_each(|mark| manifest.mark(mark));
        if self.local.is_some() {
            let (log, position) = (self.writer.id.clone(), state.position);
            manifest.mark(LogMark { log, position });
        }
        let is_due =
            checkpoint || state.recent.len() >= RECENT_MAX || state.map.dirty_bytes() > dirty_max;
        Plan {
            position: state.position,
            written_bytes: state.written_bytes,
            begun: clock::now(),
            last: ObjectNumber(state.open.number.0 - 1),
            copied: is_due.then(|| Copied::of(state)),
            manifest,
        }
    }

    /// Waits for the data, and writes the checkpoint if it is due (T1).
    fn complete(&self, plan: Plan) -> Result<Manifest> {
        let Plan { mut manifest, last, copied, .. } = plan;
        if let Some(copied) = copied {
            self.write_checkpoint(&mut manifest, copied)?;
        }
        self.wait_sent(last)?;
        Ok(manifest)
    }

    /// Removes the objects that a new checkpoint covers from the list of recent objects.
    pub(crate) fn forget_recent(state: &mut State, done: &[Recent], number: CommitNumber) {
        let last = done.last().map(|recent| recent.object);
        state.recent.retain(|recent| Some(recent.object) > last);
        for recent in done {
            // Older commits list the object as recent, so opening such a commit reads the object
            // even if nothing in it is live.
            if let Some(entry) = state.map.table.entries.get_mut(&recent.object) {
                entry.dead_since = entry.dead_since.max(number);
            }
        }
    }
}
