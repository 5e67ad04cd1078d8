//! Late data: it goes to the device together with the log that names it, in one wait instead of
//! two.
//!
//! # Place
//!
//! A thread that syncs a file allocates for its data, works out what its extents will be, and
//! reserves for both, as writeback does. The thread that leads the log puts the extents of all
//! files that wait. It writes their data with the nodes of the log.
//!
//! # Invariants
//!
//! - **A1** Extents are put and their data is written under the commit lock. So no commit can name
//!   what is not written, and the log that names it is durable after it.
//! - **A2** From the moment extents are visible until their data is on the device, its bytes are
//!   read from memory (`dirty::P3`). The claim is held as long (`claim::B2`), so no other thread
//!   changes these extents, or shares them.
//! - **A3** The references that the extents replaced are dropped when the data is written. If the
//!   write fails, the file shows again what it showed before.
//! - **A4** Under the commit lock nothing waits, except for readers when data is taken back. If a
//!   thread reads the file's extents when they are to be put, or has moved them, its data is
//!   written in the usual way.
//!
//! # Failure
//!
//! As in writeback: data that cannot be written is lost, and the file keeps the error.

use std::ops::Range;
use std::sync::Arc;

use buttress_base::interrupt;
use buttress_base::sync::Mutex;
use buttress_format::{Compression, InodeFlags, Logical};
use buttress_log::Late;
use buttress_txn::{Cost, MetaReservation};

use crate::claim::Claim;
use crate::dirty::Run;
use crate::drop_extents::{Dropped, Edits, Reverse};
use crate::error::{Error, Result};
use crate::extent_map::Mapping;
use crate::file::File;
use crate::files::Files;
use crate::finish::{cost_of_sums, fresh_extent, grow};
use crate::job::{Job, Placed};
use crate::reservation::join;
use crate::step::STEP_ITEMS;
use crate::writeback::Written;

/// More data is written by itself: every commit waits for late data.
const LATE_BYTES_MAX: u64 = 256 << 10;

/// A file that stays in memory, and what it shares with the files of its volume.
pub trait FileOwner: Send + Sync + 'static {
    /// What all files share.
    fn files(&self) -> &Files;
    /// The file itself.
    fn file(&self) -> &File;
}

/// A part of the data, and where it will lie.
type Part = (Logical, Arc<Vec<u8>>, Range<usize>);

/// Data of one file that has its place, and the claim.
pub struct PendingLogData<H: FileOwner> {
    home: H,
    writes: Vec<Part>,
    /// Unranked: held while the extents are put, with the engine below.
    state: Mutex<State>,
}

enum State {
    /// No item names it yet.
    Ready(Ready),
    /// Its extents are visible.
    Put(Put),
    /// It is written, or lost; the claim is given back.
    Ended(End),
}

/// What became of late data.
#[derive(Clone, Debug)]
pub enum End {
    /// It is in the log that was made, or in the commit that replaced the log.
    Logged,
    /// It was written in the usual way, and no log names it yet.
    Finished,
    /// It could not be written.
    Lost(Error),
}

struct Ready {
    size: u64,
    flags: u64,
    runs: Vec<(Run, Vec<Placed>)>,
    edits: OrderedEdits,
}

/// What putting the extents of a job does.
struct OrderedEdits {
    /// The layout that it was worked out for.
    layout: u64,
    /// For each extent, in order: what was there, and what changes.
    edits: Vec<(Vec<Mapping>, Edits)>,
    /// For the edits, and apart from that for what they drop.
    reserved: MetaReservation,
    reserved_dropped: MetaReservation,
    /// The rest of the data's reservation, which it may need in the usual way.
    rest: Option<MetaReservation>,
}

struct Put {
    /// The layout that the extents make up.
    layout: u64,
    runs: Vec<(Run, Vec<Placed>)>,
    dropped: Vec<Dropped>,
    reverse: Vec<Reverse>,
    reserved_dropped: MetaReservation,
}

impl Files {
    /// Whether the dirty data of a file, whose claim is held, may be late. It must be little and
    /// all of it new extents, on a device that writes it together with the log's nodes. Where
    /// writes do not wait, as through a page cache, many run in parallel instead.
    fn may_be_late(&self, file: &File) -> bool {
        let in_place = InodeFlags::NODATACOW | InodeFlags::PREALLOC;
        let (flags, codec) = {
            let meta = file.meta();
            (meta.item.flags, meta.codec)
        };
        let bytes = file.dirty.lock().bytes();
        (1..=LATE_BYTES_MAX).contains(&bytes)
            && flags & in_place == 0
            && self.choice(flags, codec).is_none()
            && self.options.no_holes
            && self.engine.row_slack() == 0
            && self.volume.writes_at_once()
    }

    /// As [`writeback`](Self::writeback) of a whole file, for a caller that has a log of it made
    /// next. The result is to be given to that log, and is written with it. `None` if nothing is
    /// left to write.
    ///
    /// # Errors
    ///
    /// As [`writeback`](Self::writeback).
    pub fn write_late<H: FileOwner>(home: H) -> Result<Option<Arc<PendingLogData<H>>>> {
        // The writes have already succeeded, so this cannot be cancelled.
        interrupt::shielded(|| Self::write_late_shielded(home))
    }

    fn write_late_shielded<H: FileOwner>(home: H) -> Result<Option<Arc<PendingLogData<H>>>> {
        let (files, file) = (home.files(), home.file());
        let claim = file.claim();
        if !files.may_be_late(file) {
            files.write_claimed(file, claim, 0..u64::MAX, &mut Written::default())?;
            return Ok(None);
        }
        let Some(mut job) = files.take(file, claim, 0..u64::MAX) else { return Ok(None) };
        files.prepare(std::slice::from_mut(&mut job));
        let edits = match files.prepare_edits(&mut job) {
            Ok(Some(edits)) => edits,
            other => {
                if let Err(error) = other {
                    job.fail(error);
                }
                return files.write_now(job).map(|()| None);
            }
        };
        let (size, flags) = (job.size, job.flags);
        let runs = job.into_extents();
        let mut writes = Vec::new();
        for (run, placed) in &runs {
            for part in placed {
                let mut at = part.disk().start;
                for (piece, bytes) in run.parts(part.range.clone()) {
                    let len = bytes.len() as u64;
                    writes.push((at, Arc::clone(piece), bytes));
                    at = at.end(len);
                }
            }
        }
        let state = Mutex::new(State::Ready(Ready { size, flags, runs, edits }));
        Ok(Some(Arc::new(PendingLogData { home, writes, state })))
    }

    /// Issues a job that has its places, and finishes its ordered extents.
    fn write_now(&self, mut job: Job<'_>) -> Result<()> {
        self.issue(std::slice::from_mut(&mut job));
        self.finish_job(job).map(drop)
    }

    /// Works out what the extents of a job change, and reserves for that. `None` if they are not
    /// simply new, or if two of them replace parts of one.
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
                let there = self.mappings(&view, file, part.range.clone(), STEP_ITEMS)?;
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
                cost_of_dropped = cost_of_dropped.and(dropped);
                edits.push((there, edit));
            }
            file.layout()
        };
        let mut rest = job.metadata.take();
        let reserved = self.reserve(cost, &mut rest)?;
        let reserved_dropped = self.reserve(cost_of_dropped, &mut rest)?;
        Ok(Some(OrderedEdits { layout, edits, reserved, reserved_dropped, rest }))
    }
}

impl<H: FileOwner> PendingLogData<H> {
    /// What became of it, once the log is made that it was given to. What could not be put is
    /// written now.
    pub fn end(&self) -> End {
        self.finish();
        match &*self.state.lock() {
            State::Ended(end) => end.clone(),
            State::Ready(_) | State::Put(_) => {
                unreachable!("log::late::E1: the log ends what it puts")
            }
        }
    }

    /// Writes and puts in the usual way what was not put.
    fn finish(&self) {
        let (files, file) = (self.home.files(), self.home.file());
        let mut state = self.state.lock();
        if !matches!(*state, State::Ready(_)) {
            return;
        }
        let State::Ready(ready) = std::mem::replace(&mut *state, State::Ended(End::Finished))
        else {
            unreachable!("it was looked at")
        };
        let Ready { size, flags, runs, edits } = ready;
        let mut metadata = edits.rest;
        join(&mut metadata, edits.reserved);
        join(&mut metadata, edits.reserved_dropped);
        let claim = Claim::take_back(file);
        let job = Job::of_extents(file, size, flags, runs, metadata, claim);
        if let Err(error) = files.write_now(job) {
            *state = State::Ended(End::Lost(error));
        }
    }
}

impl<H: FileOwner> Late for PendingLogData<H> {
    fn put(&self) -> bool {
        let (files, file) = (self.home.files(), self.home.file());
        let mut state = self.state.lock();
        let State::Ready(ready) = &*state else { return false };
        let Some(_extents) = file.try_change_extents(ready.edits.layout) else { return false };
        let State::Ready(ready) = std::mem::replace(&mut *state, State::Ended(End::Logged)) else {
            unreachable!("it was looked at")
        };
        let Ready { size, mut runs, edits, .. } = ready;
        let OrderedEdits { edits, reserved, reserved_dropped, .. } = edits;
        let (mut dropped, mut reverse) = (Vec::new(), Vec::new());
        let handle = files.engine.begin(reserved);
        let parts = runs.iter_mut().flat_map(|(_, placed)| placed);
        let mut bytes = Vec::with_capacity(edits.len());
        for (part, (there, mut edits)) in parts.zip(edits) {
            dropped.push(edits.take_dropped());
            reverse.push(edits.reverse(there));
            bytes.push(edits.apply(&handle, file));
            if !part.sums.is_empty() {
                handle.insert_csums(part.disk(), std::mem::take(&mut part.sums));
            }
        }
        file.update_finished(&handle, |meta| {
            bytes.into_iter().for_each(|bytes| bytes.count(meta));
            let mut dirty = file.dirty.lock();
            for (run, _) in &runs {
                dirty.name(run);
                grow(meta, &dirty, &(run.offset..run.end()), size);
            }
        });
        drop(handle);
        *state =
            State::Put(Put { layout: file.layout(), runs, dropped, reverse, reserved_dropped });
        true
    }

    fn writes(&self) -> Vec<(Logical, &[u8])> {
        self.writes.iter().map(|(at, piece, part)| (*at, &piece[part.clone()])).collect()
    }

    fn written(&self, outcome: Result<(), buttress_txn::Error>) -> bool {
        let (files, file) = (self.home.files(), self.home.file());
        let mut state = self.state.lock();
        let State::Put(put) = std::mem::replace(&mut *state, State::Ended(End::Logged)) else {
            unreachable!("A1: what was not put is not written with a log")
        };
        let Put { layout, runs, dropped, reverse, reserved_dropped } = put;
        let mut is_right = true;
        match outcome {
            Ok(()) if dropped.iter().all(Dropped::is_nothing) => {}
            Ok(()) => {
                let handle = files.engine.begin(reserved_dropped);
                dropped.into_iter().for_each(|dropped| dropped.apply(&handle, file));
            }
            Err(error) => {
                let error = Error::from(error);
                is_right = take_back(files, file, layout, reverse, reserved_dropped);
                file.keep_error(&error);
                files.keep_error(&error);
                *state = State::Ended(End::Lost(error));
            }
        }
        let mut finished = 0;
        for (run, placed) in runs {
            placed.iter().for_each(|part| files.pages.forget(part.disk()));
            let bytes = file.dirty.lock().finished(&run);
            files.count_clean(bytes);
            finished += bytes;
        }
        files.count_finished(finished);
        drop(Claim::take_back(file));
        is_right
    }
}

/// Makes a file show again what it showed before (A3). If another thread has moved its extents
/// since, that is not possible.
fn take_back(
    files: &Files,
    file: &File,
    layout: u64,
    reverse: Vec<Reverse>,
    reserved: MetaReservation,
) -> bool {
    // A thread that has them without the claim is reading, or moves them: neither waits for a
    // commit.
    let _extents = file.extents.write();
    if file.layout() != layout {
        return false;
    }
    file.change_layout();
    // The same items as before, so it needs no further reservation.
    let handle = files.engine.begin(reserved);
    let bytes: Vec<_> = reverse.into_iter().rev().map(|one| one.apply(&handle, file)).collect();
    file.update_meta(&handle, |meta| bytes.into_iter().for_each(|bytes| bytes.count(meta)));
    true
}

impl<H: FileOwner> Drop for PendingLogData<H> {
    /// Data that was not put is written as if no log had been asked for.
    fn drop(&mut self) {
        self.finish();
    }
}

impl<H: FileOwner> std::fmt::Debug for PendingLogData<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes: usize = self.writes.iter().map(|(_, _, part)| part.len()).sum();
        write!(f, "PendingLogData({bytes} bytes of inode {})", self.home.file().ino)
    }
}
