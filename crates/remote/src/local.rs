//! Flushes to the local log, segments that only the log has, and the replay after a crash.
//!
//! # Invariants
//!
//! - **J1** A flush returns when the log durably has all writes that the flush covers, and a cut
//!   after them.
//! - **J2** A sealed segment can leave the memory before it is sent, if the log has all of its
//!   frames. So memory is bounded while the store is slow.
//! - **J3** A log that cannot be written is given up: from then on flushes wait for commits.
//! - **J4** A replay puts all writes of a log into one commit. No commit has only a part of the
//!   replayed writes.
//! - **J5** The log may lack writes that a commit has. So a replay onto a commit applies only
//!   records after the position of this commit. An older record would overwrite newer content of
//!   the commit.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use buttress_base::thread;

use crate::cache::Replay;
use crate::core::{Core, Kept, Logged, Logging, State};
use crate::envelope::{LEN, damaged};
use crate::error::{Error, Result};
use crate::log::record::{Says, Whole};
use crate::log::scan;
use crate::log::{Body, Inside, Log, Tail};
use crate::manifest::LogMark;
use crate::segment::{FRAME, Segment, are_whole, unframe};
use crate::units::{SECTOR, Sector};

#[cfg(test)]
mod tests;

/// The rate to which writers are slowed when the log is full, in sectors a second.
const PACE: u64 = (32 << 20) / SECTOR;
/// The most memory that is kept for copies of frames.
const ROOM_MAX: usize = 1 << 20;

impl Core {
    /// Makes all writes up to `wanted` durable in the log (J1). `false` if the log is given up.
    pub(crate) fn flush_to(&self, log: &Log, wanted: u64) -> Result<bool> {
        let mut inside = log.inside.lock();
        {
            let state = self.state.lock();
            self.check(&state)?;
            match &state.logging {
                None => return Ok(false),
                // An earlier flush made these writes durable, too.
                Some(logging) if logging.durable >= wanted => return Ok(true),
                Some(_) => {}
            }
        }
        let is_written = self.write_out(log, &mut inside, true);
        // Another writer may have taken the volume meanwhile. That writer need not keep the commit
        // on which this log builds, so nothing more may be acknowledged.
        self.check(&self.state.lock())?;
        Ok(is_written)
    }

    /// The work of the thread that writes sealed segments to the log.
    pub(crate) fn log_all(&self) {
        let Some(log) = self.log.get() else { return };
        while self.wait_for_tails() {
            let mut inside = log.inside.lock();
            if !self.write_out(log, &mut inside, false) {
                return;
            }
        }
    }

    fn wait_for_tails(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.is_closing || state.failure.is_some() {
                return false;
            }
            match &state.logging {
                None => return false,
                Some(logging) if !logging.tails.is_empty() => return true,
                Some(_) => state.wait(&self.signals.sealed),
            }
        }
    }

    /// Writes all missing frames to the log, and then a cut if `is_cut`. `false` if a write failed
    /// (J3).
    fn write_out(&self, log: &Log, inside: &mut Inside, is_cut: bool) -> bool {
        let (tails, sealed, position) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            if is_cut {
                fix_open(state);
            }
            let committed = state.committed;
            let Some(logging) = &mut state.logging else { return false };
            let sealed = logging.tails.iter().filter(|tail| tail.is_sealed()).count();
            let tails = logging.tails.drain(..).filter(|tail| tail.position > committed);
            (tails.collect::<Vec<_>>(), sealed, state.position)
        };
        let mut placed = Vec::with_capacity(tails.len());
        let mut write = || -> io::Result<()> {
            for tail in &tails {
                placed.push((tail.object, log.append(inside, tail)?));
            }
            if is_cut { log.cut(inside, position) } else { Ok(()) }
        };
        let written = write();
        let copies = tails.into_iter().filter_map(|tail| match tail.body {
            Body::Copied(copy) if copy.capacity() <= ROOM_MAX => Some(copy),
            Body::Sealed(_) | Body::Copied(_) => None,
        });
        let room = copies.max_by_key(Vec::capacity);
        let mut state = self.state.lock();
        if let Err(error) = written {
            tracing::error!(%error, "the local log cannot be written; flushes wait for the store");
            state.logging = None;
        }
        if let Some(logging) = &mut state.logging {
            logging.sealed -= sealed;
            logging.room = room.unwrap_or(std::mem::take(&mut logging.room));
        }
        let open = state.open.number;
        let is_written = state.logging.is_some();
        for (object, place) in placed {
            let is_wanted = object == open || state.sealed.contains_key(&object);
            if let Some(logging) = state.logging.as_mut().filter(|_| is_wanted) {
                logging.places.entry(object).or_default().push(place);
            }
        }
        if let Some(logging) = state.logging.as_mut().filter(|_| is_cut) {
            logging.durable = logging.durable.max(position);
        }
        self.leave_to_log(&mut state);
        drop(state);
        if is_written {
            self.signals.room.notify_all();
        } else {
            // The thread of the log ends, and flushes go on without the log.
            self.signals.all();
        }
        is_written
    }

    /// Removes from memory the sealed segments that the log has (J2), until the kept part of the
    /// [`Budget`](crate::budget::Budget) is left. The newest are removed first, since the oldest
    /// are sent next.
    fn leave_to_log(&self, state: &mut State) {
        let State { sealed, logging, in_memory, .. } = state;
        let Some(logging) = logging else { return };
        for (number, sealed) in sealed.iter_mut().rev() {
            if *in_memory <= self.budget.kept() {
                return;
            }
            let Kept::Memory(segment) = &sealed.whole else { continue };
            let Some(places) = logging.places.get(number) else { continue };
            let frames: u32 = places.iter().map(|place| place.frames).sum();
            if sealed.is_taken || frames != segment.sectors() {
                continue;
            }
            let logged = Logged {
                number: *number,
                sectors: segment.sectors(),
                extents: segment.extents().to_vec(),
                places: places.clone(),
            };
            sealed.whole = Kept::Log(Arc::new(logged));
            *in_memory -= 1;
        }
    }

    /// Removes each file of the log if a commit has all writes in it, and wakes writers that wait
    /// for room.
    pub(crate) fn release_log(&self, committed: u64) {
        if let Some(log) = self.log.get() {
            log.release(committed);
            // A writer that saw the longer log waits by now: it looked under this lock.
            drop(self.state.lock());
            self.signals.room.notify_all();
        }
    }

    /// Slows a writer down while the log is nearly full, so that no writer is stopped for long.
    pub(crate) fn pace(&self, sectors: u64) {
        let Some(log) = self.log.get() else { return };
        let free = log.limit.saturating_sub(log.bytes());
        let quarter = (log.limit / 4).max(1);
        if free < quarter {
            let whole_us = sectors * 1_000_000 / PACE;
            thread::sleep(Duration::from_micros(whole_us * (quarter - free) / quarter));
        }
    }

    /// A sealed segment, read from the log if it is not in memory.
    pub(crate) fn in_memory(&self, whole: Kept) -> Result<Arc<Segment>> {
        let logged = match whole {
            Kept::Memory(segment) => return Ok(segment),
            Kept::Log(logged) => logged,
        };
        let mut bytes = self.spare.take();
        bytes.resize(LEN + logged.sectors as usize * FRAME, 0);
        let filled = self.fill(&logged, &mut bytes[LEN..]);
        let (extents, sectors) = (logged.extents.clone(), logged.sectors);
        let segment = Segment::of_parts(logged.number, bytes, extents, sectors);
        let mut segment = segment.in_memory_of(&self.spare);
        filled?;
        segment.seal(self.volume, self.epoch);
        Ok(Arc::new(segment))
    }

    /// Reads all frames of a segment that only the log has, with their checksums.
    fn fill(&self, logged: &Logged, frames: &mut [u8]) -> Result<()> {
        for place in &logged.places {
            let at = place.first_frame as usize * FRAME;
            let raw = &mut frames[at..at + place.frames as usize * FRAME];
            raw.copy_from_slice(&place.read(0, place.frames).map_err(|error| self.unread(&error))?);
        }
        match are_whole(logged.number, 0, frames) {
            true => Ok(()),
            false => Err(damaged("the local log", "the checksum of a frame is wrong".to_owned())),
        }
    }

    /// Reads frames of a segment that only the log has.
    pub(crate) fn read_logged(
        &self,
        logged: &Logged,
        frame: u32,
        content: &mut [u8],
    ) -> Result<()> {
        let end = frame + (content.len() as u64 / SECTOR) as u32;
        for place in &logged.places {
            let (first, last) =
                (place.first_frame.max(frame), (place.first_frame + place.frames).min(end));
            if first >= last {
                continue;
            }
            let raw = place.read(first - place.first_frame, last - first);
            let raw = raw.map_err(|error| self.unread(&error))?;
            let at = (first - frame) as usize * SECTOR as usize;
            let part = &mut content[at..at + (last - first) as usize * SECTOR as usize];
            unframe("the local log", logged.number, first, &raw, part)?;
        }
        Ok(())
    }

    fn unread(&self, error: &io::Error) -> Error {
        let dir = self.cache.as_ref().map_or(String::new(), |c| c.dir().display().to_string());
        Error::Cache { dir, why: error.to_string() }
    }

    /// Applies the log of a crashed writer, and makes one commit of its writes (J4, J5).
    pub(crate) fn replay(&self, replay: &Replay) -> Result<()> {
        let Some(cache) = &self.cache else { return Ok(()) };
        self.state.lock().is_replaying = true;
        let folder = cache.log_dir();
        let wanted = cache.wanted(&folder, &replay.log, replay.may_be_plain);
        scan::walk(wanted, &mut |whole| {
            let is_new = replay.found.adds(&whole.record, replay.committed);
            if is_new { self.apply_record(whole) } else { Ok(()) }
        })?;
        let (log, position) = (replay.log.clone(), replay.found.position);
        self.state.lock().marks.push(LogMark { log, position });
        self.cut(false)
    }

    fn apply_record(&self, whole: &Whole<'_>) -> Result<()> {
        let Says::Data { .. } = whole.record.says else { return Ok(()) };
        each_run(whole, self.len() / SECTOR, &mut |run| match run {
            Run::Data(first, content) => self.write_sectors(first, content),
            Run::Hole(first, count) => self.write_hole(first, count),
        })
    }

    /// Begins the log of this writer, if the writer has a log. Removes an earlier log.
    pub(crate) fn begin_log(&self) -> Result<()> {
        if let Some(cache) = &self.cache {
            self.release_base();
            if self.local.is_none() {
                cache.end()?;
            } else {
                cache.begin(&self.writer.id, self.epoch)?;
                let position = self.state.lock().position;
                let begun = Log::begin(
                    &cache.log_dir(),
                    cache.seal().cloned(),
                    self.volume,
                    self.epoch,
                    &self.writer.id,
                    position,
                    self.options.cache_size / 2,
                );
                let log = begun.map_err(|error| self.unread(&error))?;
                // The log is set once, before any other thread has the device.
                let _ = self.log.set(log);
                let logging = Logging { durable: position, ..Logging::default() };
                self.state.lock().logging = Some(logging);
            }
        }
        self.state.lock().is_replaying = false;
        // After this commit, no opening accepts a log in clear text in this folder (`log::L5`).
        let seals = self.seals_log(&self.last.lock());
        if seals { self.cut(false) } else { Ok(()) }
    }

    /// Removes the log, after the last commit.
    pub(crate) fn end_log(&self) -> Result<()> {
        if let Some(log) = self.log.get() {
            log.clear().map_err(|error| self.unread(&error))?;
        }
        self.cache.as_ref().filter(|_| self.local.is_some()).map_or(Ok(()), |cache| cache.end())
    }
}

/// Fixes the frames of the open segment that the log lacks (`segment::G1`), and queues these
/// frames for the log.
fn fix_open(state: &mut State) {
    let Some(logging) = &mut state.logging else { return };
    let fixed = state.open.fix();
    if fixed.frames == 0 && fixed.extents.is_empty() {
        return;
    }
    let mut copy = std::mem::take(&mut logging.room);
    copy.clear();
    copy.extend_from_slice(state.open.frames(fixed.first_frame, fixed.frames));
    let body = Body::Copied(copy);
    let (object, position) = (state.open.number, state.position);
    logging.tails.push_back(Tail { object, fixed, body, position });
}

/// A run of sectors in a record.
pub(crate) enum Run<'c> {
    Data(Sector, &'c [u8]),
    Hole(Sector, u64),
}

/// Calls `take` for each run of a record, in order. Fails if a run ends past the device's
/// `sectors`.
pub(crate) fn each_run(
    whole: &Whole<'_>,
    sectors: u64,
    take: &mut dyn FnMut(Run<'_>) -> Result<()>,
) -> Result<()> {
    const STEP: usize = 256;
    let mut frames = whole.frames.chunks_exact(FRAME);
    for extent in &whole.extents {
        if extent.first.0.saturating_add(extent.count) > sectors {
            let why = "an extent is past the end of the device".to_owned();
            return Err(damaged("the local log", why));
        }
        if extent.is_hole {
            take(Run::Hole(extent.first, extent.count))?;
            continue;
        }
        let mut at = extent.first.0;
        let end = at + extent.count;
        let mut content = Vec::with_capacity(STEP * SECTOR as usize);
        while at < end {
            let step = (end - at).min(STEP as u64);
            content.clear();
            frames.by_ref().take(step as usize).for_each(|raw| content.extend(&raw[4..]));
            take(Run::Data(Sector(at), &content))?;
            at += step;
        }
    }
    Ok(())
}
