//! Prepared data: the log writes this data together with the log's nodes, in one wait instead of
//! two.
//!
//! # Place
//!
//! A thread that syncs a file allocates space for the file's data, computes the extents, and
//! reserves metadata for them, as writeback does. The thread puts the extents and hands the data to
//! the log as plain bytes. The thread that leads the log writes the data of all waiting files
//! together with the nodes of the log. Then each thread drops the references that its extents
//! replaced.
//!
//! # Invariants
//!
//! - **A1** Extents are put, and their data is written, while the thread has a
//!   [`LoggedWrite`](buttress_log::LoggedWrite). So no commit names unwritten data, and the log
//!   that names the data becomes durable after the data.
//! - **A2** From the moment extents are visible until their data is on the device, readers get the
//!   data from memory (`dirty::P3`). The thread holds the claim for the same time (`claim::B2`). So
//!   no other thread changes or shares these extents.
//! - **A3** The references that the extents replaced are dropped when the data is written. If the
//!   write fails, the file gets its former extents back. Either step happens before the next
//!   commit.
//! - **A4** While the thread keeps commits from beginning, it waits only for a log, and for readers
//!   when it takes extents back. When the extents are put, another thread may read the file's old
//!   extents, or may have moved them. In that case the data is written in the usual way.
//!
//! # Failure
//!
//! As in writeback: data that cannot be written is lost, and the file keeps the error.

use buttress_base::interrupt;
use buttress_format::{Compression, InodeFlags};
use buttress_log::{DataPart, Logged, LoggedWrite, SyncLog};
use buttress_txn::{Cost, MetaReservation};

use super::finish::{cost_of_sums, fresh_extent, grow};
use crate::claim::Claim;
use crate::dirty::Run;
use crate::drop_extents::{Dropped, Edits, Reverse};
use crate::error::{Error, Result};
use crate::extent_map::Mapping;
use crate::file::File;
use crate::job::{Job, Placed};
use crate::placement::join;
use crate::step::STEP_ITEMS;
use crate::writeback::Writeback;
use crate::writeback::Written;

/// Largest data, in bytes, that a log writes. More data is written on its own, since every log
/// waits for all its data.
const LOGGED_BYTES_MAX: u64 = 256 << 10;

/// Data of one file that has its addresses, and the claim of the file. If this value is dropped,
/// the data is written in the usual way.
#[must_use = "it is to be logged"]
pub struct PreparedData<'f> {
    writeback: &'f Writeback,
    ready: Option<Ready<'f>>,
}

/// Data that no item names yet.
struct Ready<'f> {
    file: &'f File,
    size: u64,
    flags: u64,
    runs: Vec<(Run, Vec<Placed>)>,
    edits: OrderedEdits,
    claim: Claim<'f>,
}

/// The changes that putting the extents of a job makes.
struct OrderedEdits {
    /// The layout of the file that the changes were computed for.
    layout: u64,
    /// For each extent, in order: the old mappings, and the changes.
    edits: Vec<(Vec<Mapping>, Edits)>,
    /// Reservations: for the edits, and separately for the references that they drop.
    reserved: MetaReservation,
    reserved_dropped: MetaReservation,
    /// The rest of the data's reservation, which writeback in the usual way may need.
    rest: Option<MetaReservation>,
}

/// Data with visible extents.
struct Put<'f> {
    file: &'f File,
    /// The layout of the file with these extents.
    layout: u64,
    runs: Vec<(Run, Vec<Placed>)>,
    dropped: Vec<Dropped>,
    reverse: Vec<Reverse>,
    reserved_dropped: MetaReservation,
    /// The claim is given back when the data is written or lost.
    _claim: Claim<'f>,
}

impl Writeback {
    /// Whether the dirty data of a file may be written with a log. The caller holds the file's
    /// claim. The data must be small and uncompressed, and get new extents only. The devices must
    /// be able to write the data in one batch with the log's nodes. Writes into a page cache of the
    /// host do not wait for the device. Behind such a cache, the files are better written in
    /// parallel.
    fn may_wait_for_log(&self, file: &File) -> bool {
        let in_place = InodeFlags::NODATACOW | InodeFlags::PREALLOC;
        let (flags, codec) = {
            let meta = file.meta();
            (meta.item.flags, meta.codec)
        };
        let bytes = file.dirty.lock().bytes();
        (1..=LOGGED_BYTES_MAX).contains(&bytes)
            && flags & in_place == 0
            && self.params.choice(flags, codec).is_none()
            && self.params.options.no_holes
            && self.engine.storage().row_slack() == 0
            && self.volume.writes_at_once()
    }

    /// As [`write_back`](Self::write_back) of a whole file, for a caller that makes a log of the
    /// file next. That log writes the returned data. `None` if nothing is left to write.
    ///
    /// # Errors
    ///
    /// As [`write_back`](Self::write_back).
    pub fn prepare_data<'f>(&'f self, file: &'f File) -> Result<Option<PreparedData<'f>>> {
        // The writes of the program have already succeeded, so the preparation cannot be cancelled.
        interrupt::without_cancel(|| self.prepare_without_cancel(file))
    }

    fn prepare_without_cancel<'f>(&'f self, file: &'f File) -> Result<Option<PreparedData<'f>>> {
        let claim = file.claim();
        if !self.may_wait_for_log(file) {
            self.write_claimed(file, claim, 0..u64::MAX, &mut Written::default())?;
            return Ok(None);
        }
        let Some(mut job) = self.take(file, claim, 0..u64::MAX) else { return Ok(None) };
        self.prepare(std::slice::from_mut(&mut job));
        let edits = match self.prepare_edits(&mut job) {
            Ok(Some(edits)) => edits,
            other => {
                if let Err(error) = other {
                    job.fail(error);
                }
                return self.write_now(job).map(|()| None);
            }
        };
        let (size, flags) = (job.size, job.flags);
        let (runs, claim) = job.into_extents();
        let ready = Some(Ready { file, size, flags, runs, edits, claim });
        Ok(Some(PreparedData { writeback: self, ready }))
    }

    /// Issues a job that has its addresses, and finishes its ordered extents.
    fn write_now(&self, mut job: Job<'_>) -> Result<()> {
        self.issue(std::slice::from_mut(&mut job));
        self.finish_job(job).map(drop)
    }

    /// Computes the changes of a job's extents, and reserves for them. `None` if an extent is
    /// compressed or not new, if it replaces too many items, or if two extents replace parts of one
    /// extent.
    fn prepare_edits(&self, job: &mut Job<'_>) -> Result<Option<OrderedEdits>> {
        let Some(placed) = job.new_extents() else { return Ok(None) };
        let file = job.file;
        let mut edits = Vec::with_capacity(placed.len());
        let (mut cost, mut cost_of_dropped) = (Cost::default(), Cost::default());
        let layout = {
            let _extents = file.extents.read();
            let view = self.engine.view();
            let mut last = None;
            for part in placed {
                let there = self.params.mappings(&view, file, part.range.clone(), STEP_ITEMS)?;
                let shared = there.first().is_some_and(|first| last == Some(first.offset));
                if shared || there.len() == STEP_ITEMS {
                    return Ok(None);
                }
                last = there.last().map(|last| last.offset).or(last);
                let mut edit = Edits::default();
                for mapping in &there {
                    edit.cut(mapping, &part.range);
                }
                let fresh = fresh_extent(part.disk(), Compression::None, &part.range, &part.range);
                edit.insert(part.range.start, fresh);
                let dropped = edit.dropped_cost();
                cost = cost.and(edit.cost().beyond(dropped)).and(cost_of_sums(part));
                cost = cost.and(self.params.stripe_cost(part.disk().len, 1));
                cost_of_dropped = cost_of_dropped.and(dropped);
                edits.push((there, edit));
            }
            file.layout()
        };
        let mut rest = job.metadata.take();
        let reserved = self.placement.reserve(cost, &mut rest)?;
        let reserved_dropped = self.placement.reserve(cost_of_dropped, &mut rest)?;
        Ok(Some(OrderedEdits { layout, edits, reserved, reserved_dropped, rest }))
    }
}

impl<'f> PreparedData<'f> {
    /// Makes the file durable with this data: by a log, or by a commit if a log cannot record the
    /// change. Before a commit, this function calls `before_commit`.
    ///
    /// # Errors
    ///
    /// As [`SyncLog::sync_inode`]. [`Error::Lost`] if the data could not be written and no other
    /// sync of the file has reported the loss.
    pub fn sync(mut self, log: &SyncLog, before_commit: impl FnOnce()) -> Result<()> {
        let Some(ready) = self.ready.take() else { return Ok(()) };
        let (writeback, file) = (self.writeback, ready.file);
        let (tree, ino) = (file.tree, file.ino);
        let (put, write) = match writeback.put_prepared(ready, log) {
            Ok(put) => put,
            Err(ready) => {
                writeback.write_ready(*ready).map_err(|error| file.lost(error))?;
                return Ok(log.sync_inode(tree, ino, before_commit)?);
            }
        };
        let logged = write.sync_inode(tree, ino);
        let completed = writeback.end_put(put, write.complete());
        // Commits may begin again, and this thread may need one.
        drop(write);
        if logged? == Logged::NeedsCommit {
            before_commit();
            writeback.engine.commit()?;
        }
        completed.map_err(|error| file.lost(error))
    }
}

impl Writeback {
    /// Puts the extents of prepared data, if that needs no wait (A4).
    fn put_prepared<'f, 'l>(
        &self,
        ready: Ready<'f>,
        log: &'l SyncLog,
    ) -> Result<(Put<'f>, LoggedWrite<'l>), Box<Ready<'f>>> {
        let file = ready.file;
        let Some(mut write) = log.begin_write() else { return Err(Box::new(ready)) };
        let Some(_extents) = file.try_change_extents(ready.edits.layout) else {
            return Err(Box::new(ready));
        };
        let Ready { size, mut runs, edits, claim, .. } = ready;
        let OrderedEdits { edits, reserved, reserved_dropped, .. } = edits;
        let (mut dropped, mut reverse) = (Vec::new(), Vec::new());
        let parts = data_parts(&runs);
        let handle = self.engine.begin(reserved);
        let placed = runs.iter_mut().flat_map(|(_, placed)| placed);
        let mut bytes = Vec::with_capacity(edits.len());
        for (part, (there, mut edits)) in placed.zip(edits) {
            dropped.push(edits.take_dropped());
            reverse.push(edits.reverse(there));
            bytes.push(edits.apply(&handle, file));
            handle.note_written(part.disk());
            if !part.sums.is_empty() {
                handle.insert_csums(part.disk(), std::mem::take(&mut part.sums));
            }
        }
        file.update_finished(&handle, |meta| {
            bytes.into_iter().for_each(|bytes| bytes.count(meta));
            let mut dirty = file.dirty.lock();
            for (run, _) in &runs {
                dirty.note_extents(run);
                grow(meta, &dirty, &(run.offset..run.end()), size, self.params.sector);
            }
        });
        write.note_put(parts);
        drop(handle);
        let layout = file.layout();
        let put = Put { file, layout, runs, dropped, reverse, reserved_dropped, _claim: claim };
        Ok((put, write))
    }

    /// Writes and finishes data that was not put, in the usual way.
    fn write_ready(&self, ready: Ready<'_>) -> Result<()> {
        let Ready { file, size, flags, runs, edits, claim } = ready;
        let mut metadata = edits.rest;
        join(&mut metadata, edits.reserved);
        join(&mut metadata, edits.reserved_dropped);
        self.write_now(Job::of_extents(file, size, flags, runs, metadata, claim))
    }

    /// After the write, drops the replaced references. After a failed write, gives the file its
    /// former extents back (A3).
    fn end_put(&self, put: Put<'_>, written: buttress_txn::Result<()>) -> Result<()> {
        let Put { file, layout, runs, dropped, reverse, reserved_dropped, _claim } = put;
        let written = written.map_err(Error::from);
        match &written {
            Ok(()) if dropped.iter().all(Dropped::is_nothing) => {}
            Ok(()) => {
                let handle = self.engine.begin(reserved_dropped);
                dropped.into_iter().for_each(|dropped| dropped.apply(&handle, file));
            }
            Err(error) => {
                if !self.take_back(file, layout, reverse, reserved_dropped) {
                    let why = "an extent that moved cannot be taken back";
                    self.engine.latch(buttress_txn::Error::Malformed(why.to_owned()));
                }
                file.keep_error(error);
                self.counters.keep_error(error);
            }
        }
        let mut finished = 0;
        for (run, placed) in runs {
            placed.iter().for_each(|part| self.pages.forget(part.disk()));
            let bytes = file.dirty.lock().end_writeback(&run);
            self.counters.count_clean(bytes);
            finished += bytes;
        }
        self.counters.count_finished(finished);
        written
    }

    /// Gives a file its former extents back (A3). Returns false if another thread has moved the
    /// file's extents since.
    fn take_back(
        &self,
        file: &File,
        layout: u64,
        reverse: Vec<Reverse>,
        reserved: MetaReservation,
    ) -> bool {
        // Another thread may hold the extents without the claim, to read or move them. Such a
        // thread does not wait for a commit, so the wait here ends.
        let _extents = file.extents.write();
        if file.layout() != layout {
            return false;
        }
        file.change_layout();
        // The undo changes the same items as the put, so it needs no further reservation.
        let handle = self.engine.begin(reserved);
        let bytes: Vec<_> = reverse.into_iter().rev().map(|one| one.apply(&handle, file)).collect();
        file.update_meta(&handle, |meta| bytes.into_iter().for_each(|bytes| bytes.count(meta)));
        true
    }
}

/// The bytes of runs, by their addresses.
fn data_parts(runs: &[(Run, Vec<Placed>)]) -> Vec<DataPart> {
    let mut parts = Vec::new();
    for (run, placed) in runs {
        for part in placed {
            let mut at = part.disk().start;
            for (piece, bytes) in run.parts(part.range.clone()) {
                let len = bytes.len() as u64;
                parts.push(DataPart { at, piece: std::sync::Arc::clone(piece), bytes });
                at = at.end(len);
            }
        }
    }
    parts
}

impl File {
    /// Turns a loss into the error that a sync reports. Takes the error out of the file.
    fn lost(&self, error: Error) -> Error {
        Error::Lost(self.take_error().unwrap_or(error).into())
    }
}

impl Drop for PreparedData<'_> {
    /// Data that was not logged is written as if no log had been asked for. The file keeps a
    /// failure.
    fn drop(&mut self) {
        if let Some(ready) = self.ready.take() {
            let _ = self.writeback.write_ready(ready);
        }
    }
}

impl std::fmt::Debug for PreparedData<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ino = self.ready.as_ref().map(|ready| ready.file.ino);
        f.debug_struct("PreparedData").field("ino", &ino).finish_non_exhaustive()
    }
}
