//! A volume in a store, as a device.
//!
//! # Invariants
//!
//! - **V1** A write of a part of a sector leaves the rest of the sector unchanged. Such writes are
//!   made one at a time.
//! - **V2** [`RemoteDevice::close`] puts everything written into a commit, or returns the error.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use buttress_base::sync::Mutex;
use buttress_base::thread::{Builder, JoinHandle};
use buttress_base::{AlignedBuf, clock};
use buttress_block::device::Content;
use buttress_block::{Device, Error as BlockError, Extent, Operation, Read, Space};

use crate::cache::{Cache, Settled};
use crate::claim;
use crate::collect::Collected;
use crate::core::{Core, Failure};
use crate::error::{Error, Result};
use crate::follow::Line;
use crate::lease;
use crate::log::Log;
use crate::status::Status;
use crate::units::{SECTOR, Sector};
use crate::unsent::Unsent;

/// The interval of the keeper's checks, and the interval at which the keeper shows that this writer
/// is alive.
const LOOK: Duration = Duration::from_millis(500);
const SHOW: Duration = Duration::from_secs(10);
/// How often the collector makes a pass.
const COLLECT: Duration = Duration::from_secs(30);

/// A read of more ranges than this at once causes no reading ahead.
const AHEAD_OF: usize = 4;

/// A device with all of its content in a store of objects.
#[derive(Debug)]
pub struct RemoteDevice {
    pub(crate) core: Arc<Core>,
    /// Unranked: held for moments, when a thread starts and at the close. No thread takes another
    /// lock while it holds this one.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Serialises changes of parts of sectors (V1). Unranked: held across I/O, and taken before all
    /// other locks.
    parts: Mutex<()>,
    is_closed: AtomicBool,
    /// Acknowledged writes of a stale local log that was given up.
    lost: Option<Unsent>,
    /// The state that this device shares with devices of newer commits.
    pub(crate) line: Arc<Line>,
}

impl RemoteDevice {
    /// Starts the threads of an open volume, and replays the log of a writer that crashed.
    pub(crate) fn start(core: Core, settled: &Settled) -> Result<Self> {
        let core = Arc::new(core);
        let mut threads = Vec::new();
        if core.options.write {
            for number in 0..core.budget.senders {
                let own = Arc::clone(&core);
                threads.push(spawn(&core, &format!("remote-{number}"), move || own.send_all())?);
            }
            let own = Arc::clone(&core);
            threads.push(spawn(&core, "remote-keeper", move || keep(&own))?);
            let own = Arc::clone(&core);
            threads.push(spawn(&core, "remote-collector", move || collect(&own))?);
        } else {
            let own = Arc::clone(&core);
            threads.push(spawn(&core, "remote-lease", move || hold(&own))?);
        }
        let threads = Mutex::new(threads);
        let (parts, is_closed) = (Mutex::new(()), AtomicBool::new(false));
        let (lost, line) = (settled.lost.clone(), Arc::default());
        let this = Self { core, threads, parts, is_closed, lost, line };
        if this.core.options.write {
            this.begin_log(settled)?;
        }
        Ok(this)
    }

    /// Replays the log of an earlier writer, if there is one to replay. Begins this writer's own
    /// log.
    fn begin_log(&self, settled: &Settled) -> Result<()> {
        let core = &self.core;
        let replayed = settled.replay.as_ref().map_or(Ok(()), |replay| core.replay(replay));
        if let Err(error) = replayed.and_then(|()| core.begin_log()) {
            // After a failed replay, the part of the log that was replayed must not become a
            // commit.
            return Err(core.failed(error));
        }
        if core.log.get().is_some() {
            let own = Arc::clone(core);
            let thread = spawn(core, "remote-log", move || own.log_all())?;
            self.threads.lock().push(thread);
        }
        Ok(())
    }

    /// Acknowledged writes of a stale local log that was given up, because the options said so.
    #[must_use]
    pub fn discarded(&self) -> Option<&Unsent> {
        self.lost.as_ref()
    }

    /// For tests: ends the device as a crash of the process would. Nothing more is written, and the
    /// volume is not released.
    pub fn abandon(&self) {
        if !self.is_closed.swap(true, Ordering::SeqCst) {
            self.core.fail(Failure::Failed("it was abandoned".to_owned()));
            self.end_threads();
        }
    }

    fn end_threads(&self) {
        self.core.state.lock().is_closing = true;
        self.core.signals.all();
        self.core.ahead.close();
        // The last commit is made, or cannot be made. Nothing needs the answers to requests that
        // threads still make.
        self.core.chain.store.end();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let _ = thread.join();
        }
    }

    /// Makes a commit of all writes, and releases the volume (V2). Writes fail from the start of
    /// the close on, and so do flushes of writes that no commit has.
    ///
    /// # Errors
    ///
    /// Those of the commit. The volume is released in that case, too.
    pub fn close(&self) -> Result<()> {
        if self.is_closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let answer = if self.core.options.write { self.core.cut_at_end() } else { Ok(()) };
        self.end_threads();
        let answer = answer.and_then(|()| self.core.end_log());
        self.core.cache.iter().for_each(Cache::release);
        // Devices of older commits may still read from the cache on disk.
        if let Some(disk) = self.core.disk.as_ref().filter(|disk| Arc::strong_count(disk) == 1) {
            disk.release();
        }
        if self.core.options.write {
            let _scope = self.core.given_up.enter_fully();
            let shown = claim::end(&self.core.chain, self.core.epoch, &self.core.writer);
            if let Err(error) = shown {
                tracing::debug!(%error, "the writer's sign stays until it is old");
            }
        }
        answer
    }

    /// Waits until everything written so far is in a commit.
    ///
    /// # Errors
    ///
    /// Those of the store; [`Error::Fenced`] if another writer has the volume.
    pub fn push(&self) -> Result<()> {
        self.core.cut(false)
    }

    /// Does the work of [`RemoteDevice::push`], with a checkpoint of the map. The next opening
    /// reads less, and the collector can delete more.
    ///
    /// # Errors
    ///
    /// Those of [`RemoteDevice::push`].
    pub fn checkpoint(&self) -> Result<()> {
        self.core.cut(true)
    }

    /// Makes one pass of garbage collection. An open writer makes a pass by itself every half a
    /// minute.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn collect(&self) -> Result<Collected> {
        self.core.collect()
    }

    /// Collects garbage until a pass finds none.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn collect_all(&self) -> Result<Collected> {
        self.checkpoint()?;
        let mut all = Collected::default();
        self.core.sweep_all(&self.core.chain, &mut all)?;
        // Objects that one pass finds are deleted by a later pass.
        let mut idle = 0;
        while idle < 2 {
            let done = self.collect()?;
            idle = if done == Collected::default() { idle + 1 } else { 0 };
            all.add(done);
            if done.moved_bytes > 0 {
                self.push()?;
            }
        }
        Ok(all)
    }

    /// The figures of the device.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.core)
    }

    fn io(&self, operation: Operation, offset: u64, len: u64, error: Error) -> BlockError {
        if matches!(error, Error::Abandoned { .. }) {
            return BlockError::Abandoned { device: self.name() };
        }
        let source = io::Error::other(error);
        BlockError::Io { device: self.name(), operation, offset, len, source }
    }

    fn check(
        &self,
        operation: Operation,
        offset: u64,
        len: u64,
    ) -> std::result::Result<(), BlockError> {
        if operation != Operation::Read && !self.writable() {
            return Err(BlockError::ReadOnly { device: self.name(), operation });
        }
        if offset.checked_add(len).is_none_or(|end| end > self.core.len()) {
            let device_len = self.core.len();
            let device = self.name();
            return Err(BlockError::PastEnd { device, operation, offset, len, device_len });
        }
        Ok(())
    }

    /// Notes a read, and starts another thread that reads ahead if that helps. The callers do not
    /// call this for reads of more than [`AHEAD_OF`] ranges, because a reader of many ranges asks
    /// for all that it needs.
    fn look_ahead(&self, first: Sector, count: u64) {
        let sectors = self.core.len() / SECTOR;
        let starts = self.core.ahead.note(first.0, count, sectors);
        self.start_ahead(usize::from(starts));
    }

    /// Starts threads that read ahead.
    fn start_ahead(&self, count: usize) {
        for _ in 0..count {
            let own = Arc::clone(&self.core);
            match spawn(&self.core, "remote-ahead", move || own.read_ahead()) {
                Ok(thread) => self.threads.lock().push(thread),
                Err(error) => tracing::debug!(%error, "less is read ahead"),
            }
        }
    }

    fn read_any(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if offset.is_multiple_of(SECTOR) && (buf.len() as u64).is_multiple_of(SECTOR) {
            let first = Sector(offset / SECTOR);
            self.look_ahead(first, buf.len() as u64 / SECTOR);
            return self.core.read_sectors(first, buf);
        }
        let (first, end) = (offset / SECTOR, (offset + buf.len() as u64).div_ceil(SECTOR));
        let mut whole = AlignedBuf::zeroed(((end - first) * SECTOR) as usize);
        self.core.read_sectors(Sector(first), &mut whole)?;
        let skip = (offset - first * SECTOR) as usize;
        buf.copy_from_slice(&whole[skip..skip + buf.len()]);
        Ok(())
    }

    fn write_any(&self, offset: u64, buf: &[u8]) -> Result<()> {
        if offset.is_multiple_of(SECTOR) && (buf.len() as u64).is_multiple_of(SECTOR) {
            return self.core.write_sectors(Sector(offset / SECTOR), buf);
        }
        let _turn = self.parts.lock();
        let (first, end) = (offset / SECTOR, (offset + buf.len() as u64).div_ceil(SECTOR));
        let mut whole = AlignedBuf::zeroed(((end - first) * SECTOR) as usize);
        self.core.read_sectors(Sector(first), &mut whole)?;
        let skip = (offset - first * SECTOR) as usize;
        whole[skip..skip + buf.len()].copy_from_slice(buf);
        self.core.write_sectors(Sector(first), &whole)
    }

    fn zero_any(&self, offset: u64, len: u64) -> Result<()> {
        let end = offset + len;
        let (first, last) = (offset.div_ceil(SECTOR), end / SECTOR);
        if first >= last {
            return self.write_any(offset, &vec![0; len as usize]);
        }
        if offset < first * SECTOR {
            self.write_any(offset, &vec![0; (first * SECTOR - offset) as usize])?;
        }
        self.core.write_hole(Sector(first), last - first)?;
        if end > last * SECTOR {
            self.write_any(last * SECTOR, &vec![0; (end - last * SECTOR) as usize])?;
        }
        Ok(())
    }
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(place = self.core.chain.place, %error, "closing the volume");
        }
    }
}

impl Device for RemoteDevice {
    fn name(&self) -> String {
        self.core.chain.place.clone()
    }

    fn len(&self) -> u64 {
        self.core.len()
    }

    fn can_grow(&self) -> bool {
        self.writable()
    }

    fn grow(&self, len: u64) -> std::result::Result<(), BlockError> {
        if !self.writable() {
            let (device, operation) = (self.name(), Operation::Write);
            return Err(BlockError::ReadOnly { device, operation });
        }
        self.core.grow(len).map_err(|error| self.io(Operation::Write, 0, len, error))
    }

    fn writable(&self) -> bool {
        self.core.options.write
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<(), BlockError> {
        self.check(Operation::Read, offset, buf.len() as u64)?;
        let len = buf.len() as u64;
        self.read_any(offset, buf).map_err(|error| self.io(Operation::Read, offset, len, error))
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> std::result::Result<(), BlockError> {
        let mut all = Vec::with_capacity(reads.len());
        let (mut from, mut end) = (u64::MAX, 0);
        for Read { offset, buf } in reads {
            let len = buf.len() as u64;
            self.check(Operation::Read, *offset, len)?;
            if !offset.is_multiple_of(SECTOR) || !len.is_multiple_of(SECTOR) {
                self.read_at(*offset, buf)?;
                continue;
            }
            (from, end) = (from.min(*offset), end.max(*offset + len));
            all.push((Sector(*offset / SECTOR), &mut **buf));
        }
        if all.len() <= AHEAD_OF {
            for (first, buf) in &all {
                self.look_ahead(*first, buf.len() as u64 / SECTOR);
            }
        }
        let read = self.core.read_many(&mut all);
        read.map_err(|error| self.io(Operation::Read, from, end.saturating_sub(from), error))
    }

    fn reads_at_once(&self) -> bool {
        true
    }

    fn ahead_bytes(&self) -> u64 {
        self.core.ahead.window() * SECTOR
    }

    fn expect(&self, ranges: &[Range<u64>]) {
        let each = ranges.iter().map(|r| r.start / SECTOR..r.end.div_ceil(SECTOR));
        self.start_ahead(self.core.ahead.expect(each, self.core.len() / SECTOR));
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> std::result::Result<(), BlockError> {
        let len = buf.len() as u64;
        self.check(Operation::Write, offset, len)?;
        self.write_any(offset, buf).map_err(|error| self.io(Operation::Write, offset, len, error))
    }

    fn write_vectored_at(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
    ) -> std::result::Result<(), BlockError> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.check(Operation::Write, offset, len)?;
        let is_whole = |buf: &IoSlice<'_>| (buf.len() as u64).is_multiple_of(SECTOR);
        if !bufs.iter().all(is_whole) {
            return self.write_at(
                offset,
                &bufs.iter().flat_map(|b| b.iter().copied()).collect::<Vec<_>>(),
            );
        }
        let mut at = offset;
        for buf in bufs {
            self.write_at(at, buf)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> std::result::Result<(), BlockError> {
        if !self.writable() {
            return Ok(());
        }
        self.core.flush().map_err(|error| self.io(Operation::Flush, 0, 0, error))
    }

    fn upload(&self) -> std::result::Result<(), BlockError> {
        if !self.writable() {
            return Ok(());
        }
        self.push().map_err(|error| self.io(Operation::Flush, 0, 0, error))
    }

    fn newer(&self) -> std::result::Result<Option<Arc<dyn Device>>, BlockError> {
        let newer = self.newer_commit().map_err(|error| self.io(Operation::Read, 0, 0, error))?;
        Ok(newer.map(|device| device as Arc<dyn Device>))
    }

    fn discard(&self, offset: u64, len: u64) -> std::result::Result<(), BlockError> {
        self.check(Operation::Discard, offset, len)?;
        // Sectors that lie only partly in the range keep their content. A discard may free less
        // than asked.
        let (first, end) = (offset.div_ceil(SECTOR), (offset + len) / SECTOR);
        if first >= end {
            return Ok(());
        }
        let done = self.core.write_hole(Sector(first), end - first);
        done.map_err(|error| self.io(Operation::Discard, offset, len, error))
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        _space: Space,
    ) -> std::result::Result<(), BlockError> {
        self.check(Operation::Write, offset, len)?;
        self.zero_any(offset, len).map_err(|error| self.io(Operation::Write, offset, len, error))
    }

    fn extent_at(&self, offset: u64, len: u64) -> std::result::Result<Extent, BlockError> {
        self.check(Operation::Read, offset, len)?;
        let known = self.core.extent(offset, len);
        known.map_err(|error| self.io(Operation::Read, offset, len, error))
    }
}

impl Core {
    /// Makes this writer's last commit. The commit gets a checkpoint if many data objects follow
    /// the last checkpoint, because the next opening reads all data objects after a checkpoint.
    fn cut_at_end(&self) -> Result<()> {
        const RECENT_AT_END: usize = 32;
        let (is_long, is_behind) = {
            let mut state = self.state.lock();
            // The last manifest names no local log, because its commit has all writes of the log.
            // So from now on no write is acknowledged by the log.
            state.is_last = true;
            (state.recent.len() >= RECENT_AT_END, state.position > state.committed)
        };
        if is_long || is_behind || self.local.is_some() { self.cut(is_long) } else { Ok(()) }
    }

    /// Returns the length of the data or of the hole that begins at an offset.
    fn extent(&self, offset: u64, len: u64) -> Result<Extent> {
        let end = offset + len;
        let mut at = offset;
        let mut kind = None;
        while at < end {
            let sector = Sector(at / SECTOR);
            let count = end.div_ceil(SECTOR) - sector.0;
            let found = self.state.lock().map.find(sector, count);
            let piece = match found {
                Ok(piece) => piece,
                Err(missing) => {
                    self.load_page(missing)?;
                    continue;
                }
            };
            let content = if piece.location.is_some() { Content::Data } else { Content::Hole };
            if *kind.get_or_insert(content) != content {
                break;
            }
            at = ((sector.0 + piece.count) * SECTOR).min(end);
        }
        Ok(Extent { len: at - offset, content: kind.unwrap_or(Content::Hole) })
    }
}

/// Starts a thread that gives up its waits for the store when the volume does.
fn spawn(core: &Core, name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let given_up = core.given_up.clone();
    let work = move || {
        let _scope = given_up.enter_fully();
        work();
    };
    Builder::new().name(name.to_owned()).spawn(work).map_err(|source| {
        let path = name.into();
        Error::Block(BlockError::Open { path, source })
    })
}

/// Shows that the writer is alive, and makes the commits that flushes deferred.
fn keep(core: &Core) {
    let mut shown = clock::now();
    loop {
        let deferred = {
            let mut state = core.state.lock();
            if state.is_closing || state.failure.is_some() {
                return;
            }
            state.wait_for(&core.signals.due, LOOK);
            if state.is_closing || state.failure.is_some() {
                return;
            }
            state.deferred
        };
        core.spare.age();
        let is_long = core.log.get().is_some_and(Log::is_long);
        let is_due = deferred.is_some_and(|(_, since)| clock::since(since) >= core.options.max_lag);
        if is_due || is_long {
            // The next write or flush reports the failure, which the state keeps.
            let _ = core.cut(false);
        }
        if is_long {
            let committed = core.state.lock().committed;
            core.release_log(committed);
        }
        if clock::since(shown) >= SHOW {
            shown = clock::now();
            if let Err(error) = claim::show(&core.chain, core.volume, core.epoch, &core.writer) {
                tracing::warn!(%error, "the store did not take this writer's sign of life");
            }
        }
    }
}

/// Waits for a time, and returns whether to go on.
fn pause(core: &Core, time: Duration) -> bool {
    let begun = clock::now();
    let mut state = core.state.lock();
    while !state.is_closing && state.failure.is_none() {
        let left = time.saturating_sub(clock::since(begun));
        if left.is_zero() {
            return true;
        }
        state.wait_for(&core.signals.due, left);
    }
    false
}

/// Collects garbage from time to time.
fn collect(core: &Core) {
    while pause(core, COLLECT) {
        if core.state.lock().is_replaying {
            continue;
        }
        match core.collect() {
            Ok(done) => tracing::debug!(?done, "collected garbage"),
            Err(error) => tracing::debug!(%error, "the collector goes on another time"),
        }
    }
}

/// Renews the lease of a reader, once the reader has been open for a while.
fn hold(core: &Core) {
    let number = core.last.lock().number;
    let mut is_held = false;
    while pause(core, lease::RENEW) {
        match lease::renew(&core.chain.brief(), core.volume, &core.writer.id, number) {
            Ok(()) => is_held = true,
            Err(error) => {
                tracing::warn!(%error, "reading without a lease: old commits may be collected");
            }
        }
    }
    if is_held && let Err(error) = lease::end(&core.chain.brief(), &core.writer.id) {
        tracing::debug!(%error, "the lease stays until it is old");
    }
}
