//! Writing all copies or some of them, sorted and joined; flushing; discarding.
//!
//! # Invariants
//!
//! - **W1** A write that returned `Ok` is on at least one copy, and on the copies of all present
//!   devices without a failed write. A write that leaves out copies (`Copies::First`) is on the
//!   first copy. The copies that it leaves out are on the same device, and are not touched.
//! - **W2** No two writes of a batch share a byte.
//! - **W3** Writes to a chunk with parity are whole rows (`rows`), or repairs that agree with the
//!   rest of the row. So a row after a power cut is as valid as before. Nothing in such a chunk is
//!   discarded, since the rest of the row would lose its parity.
//!
//! # Locks
//!
//! A write shares `Volume::repairs` with other writers, across I/O.
//!
//! # Failure
//!
//! A device that fails gets no more writes in this session (`device::D1`), if every byte of the
//! volume has a copy elsewhere. Otherwise the first failure ends a batch. The written ranges are
//! then undefined, and nothing references them yet. So no program that is killed gives up a wait
//! for a write or a flush (`base::interrupt::I3`): that would count as a failure.

use std::io::IoSlice;
use std::sync::Arc;

use buttress_base::activity::{self, Cause};
use buttress_base::interrupt;
use buttress_block::{Class, Error as BlockError, FailedWrite, Unfinished, Write};
use buttress_format::{BlockGroupFlags, DeviceId, Extent, Logical};

use crate::device::{DeviceTrust, Fault, VolumeDevice};
use crate::error::Error;
use crate::volume::Volume;

/// Bytes for one range of one device.
pub(crate) struct Transfer<'a> {
    pub(crate) device: Arc<VolumeDevice>,
    pub(crate) offset: u64,
    pub(crate) bytes: &'a [u8],
    pub(crate) logical: Logical,
    pub(crate) mirror: u32,
    pub(crate) class: Class,
}

impl Transfer<'_> {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// Why a batch is not durable.
#[derive(Debug)]
pub enum NotDurable {
    /// A write failed, and nothing was flushed.
    Write(Error),
    /// A flush failed: everything written since the last good flush is in doubt.
    Flush(Error),
}

/// Which copies of a range are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copies {
    /// Every copy.
    All,
    /// The first copy, which reads prefer. If [`Volume::has_copies_beside`] is false, every copy is
    /// written.
    First,
    /// The copies that `First` leaves out.
    Others,
}

/// A range of one device to discard.
struct Gap {
    device: Arc<VolumeDevice>,
    offset: u64,
    len: u64,
    logical: Logical,
    mirror: u32,
}

/// Bytes of one request to a device, at most.
const REQUEST_BYTES_MAX: u64 = 4 << 20;
const REQUEST_BUFFERS_MAX: usize = 1024;

impl Volume {
    /// Writes every copy.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`], [`Error::NotMapped`], or [`Error::Mirror`] for the first copy that
    /// failed.
    pub fn write(&self, at: Logical, bytes: &[u8]) -> Result<(), Error> {
        self.write_batch(&[(at, bytes)])
    }

    /// Writes every copy of many ranges, in any order. Adjacent ranges of a device go to it in one
    /// request. Each device is written once from front to end.
    ///
    /// In chunks with parity, the writes to a row begin at its start and become its whole content.
    /// The old content is lost: bytes of the row that the batch does not write become zeros.
    ///
    /// # Errors
    ///
    /// As [`Volume::write`]; [`Error::NotARow`].
    ///
    /// # Panics
    ///
    /// When two ranges overlap (W2): a bug of the caller.
    pub fn write_batch(&self, writes: &[(Logical, &[u8])]) -> Result<(), Error> {
        let writes = writes.iter().map(|&(at, bytes)| (at, bytes, Copies::All));
        self.with_transfers(writes, |transfers| self.submit(transfers))?
    }

    /// Writes as [`Volume::write_batch`] does, but only the copies that [`Copies::First`] left out.
    ///
    /// # Errors
    ///
    /// As [`Volume::write_batch`].
    ///
    /// # Panics
    ///
    /// As [`Volume::write_batch`].
    pub fn write_other_copies(&self, writes: &[(Logical, &[u8])]) -> Result<(), Error> {
        let writes = writes.iter().map(|&(at, bytes)| (at, bytes, Copies::Others));
        self.with_transfers(writes, |transfers| self.submit(transfers))?
    }

    /// Whether an address has several copies, and all of them on one device.
    #[must_use]
    pub fn has_copies_beside(&self, at: Logical) -> bool {
        self.map
            .load()
            .find(at)
            .is_ok_and(|entry| entry.chunk.flags.profile() == BlockGroupFlags::DUP)
    }

    /// Writes some copies as [`Volume::write_batch`] does, then flushes as [`Volume::flush`] does.
    /// A single device gets the writes and the flush in one submission.
    ///
    /// # Errors
    ///
    /// Says whether a write or a flush failed.
    ///
    /// # Panics
    ///
    /// As [`Volume::write_batch`].
    pub fn write_batch_and_flush(
        &self,
        writes: &[(Logical, &[u8], Copies)],
    ) -> Result<(), NotDurable> {
        let finish = |transfers: &[Transfer<'_>]| match self.only_device() {
            Some(device) => self.submit_and_flush(&device, transfers),
            None => {
                self.submit(transfers).map_err(NotDurable::Write)?;
                self.flush().map_err(NotDurable::Flush)
            }
        };
        let writes = writes.iter().copied();
        self.with_transfers(writes, finish).map_err(NotDurable::Write)?
    }

    /// Runs `work` with the transfers of a batch, sorted by device and offset.
    fn with_transfers<'a, T>(
        &self,
        writes: impl ExactSizeIterator<Item = (Logical, &'a [u8], Copies)>,
        work: impl FnOnce(&[Transfer<'_>]) -> T,
    ) -> Result<T, Error> {
        self.check_writable()?;
        // The lock is taken before the lookup of devices, so that no device is exchanged before the
        // writes.
        let _shared = self.repairs.read();
        let mut transfers = Vec::with_capacity(writes.len());
        let mut striped = Vec::new();
        for (at, bytes, copies) in writes {
            if self.has_parity(at) {
                striped.push((at, bytes));
                continue;
            }
            let beside = copies != Copies::All && self.has_copies_beside(at);
            let is_wanted = |mirror| match copies {
                Copies::All => true,
                Copies::First => !beside || mirror == 0,
                Copies::Others => beside && mirror > 0,
            };
            self.plan_write(at, bytes, is_wanted, &mut transfers)?;
        }
        let rows = self.rows(striped)?;
        for row in &rows {
            self.plan_row(row, &mut transfers)?;
        }
        transfers.sort_unstable_by_key(|transfer| (transfer.device.id, transfer.offset));
        Ok(work(&transfers))
    }

    /// The only device, if there is just one and it is writable.
    pub(crate) fn only_device(&self) -> Option<Arc<VolumeDevice>> {
        match &self.devices()[..] {
            [device] if device.trust() < DeviceTrust::Stale && !device.is_lost() => {
                Some(Arc::clone(device))
            }
            _ => None,
        }
    }

    /// Rewrites one copy, for a repair. The caller holds `repairs` exclusively.
    pub(crate) fn write_mirror(&self, at: Logical, bytes: &[u8], mirror: u32) -> Result<(), Error> {
        let mut transfers = Vec::new();
        self.plan_write(at, bytes, |other| other == mirror, &mut transfers)?;
        self.submit(&transfers)
    }

    /// Makes everything written so far durable, on every device.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] from the first device that failed, after all were tried.
    pub fn flush(&self) -> Result<(), Error> {
        let mut outcome = Ok(());
        let is_written = |device: &&Arc<VolumeDevice>| !device.is_lost() && !device.is_seed();
        for device in self.devices().iter().filter(is_written) {
            self.counters.flush();
            let _waiting = activity::wait(Cause::DeviceFlush);
            let flushed = interrupt::without_cancel(|| device.device.flush());
            let flushed = flushed.or_else(|source| self.flush_failed(device, source));
            outcome = outcome.and(flushed);
        }
        outcome
    }

    /// Waits until everything that was flushed survives the loss of this machine. Devices without
    /// remote storage do nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] from the first device that failed, after all were tried.
    pub fn upload(&self) -> Result<(), Error> {
        let mut outcome = Ok(());
        for device in self.devices().iter().filter(|device| !device.is_lost()) {
            let _waiting = activity::wait(Cause::Store);
            let uploaded = interrupt::without_cancel(|| device.device.upload());
            let failed = |source| Error::Device { device: device.id, source };
            outcome = outcome.and(uploaded.map_err(failed));
        }
        outcome
    }

    /// Discards a range on the devices of every copy.
    ///
    /// # Errors
    ///
    /// As [`Volume::write`].
    pub fn discard(&self, extent: Extent) -> Result<(), Error> {
        self.check_writable()?;
        let _shared = self.repairs.read();
        let gaps = self.plan_discard(extent)?;
        for gap in &gaps {
            let device = &gap.device;
            self.counters.discard(gap.len);
            let _waiting = activity::wait(Cause::DeviceDiscard);
            interrupt::without_cancel(|| device.device.discard(gap.offset, gap.len)).map_err(
                |source| {
                    self.counters.io_failure();
                    Error::Mirror {
                        logical: gap.logical,
                        mirror: gap.mirror,
                        device: device.id,
                        source,
                    }
                },
            )?;
        }
        Ok(())
    }

    /// Discards an unallocated range of a device. A missing device is skipped.
    ///
    /// The caller prevents new chunks in the range meanwhile.
    ///
    /// # Errors
    ///
    /// When the volume is read-only, or the device refuses.
    pub fn discard_unallocated(&self, id: DeviceId, offset: u64, len: u64) -> Result<(), Error> {
        self.check_writable()?;
        let is_written = |device: &Arc<VolumeDevice>| !device.is_lost() && !device.is_seed();
        let Some(device) = self.device(id).filter(is_written) else {
            return Ok(());
        };
        self.counters.discard(len);
        let _waiting = activity::wait(Cause::DeviceDiscard);
        interrupt::without_cancel(|| device.device.discard(offset, len)).map_err(|source| {
            self.counters.io_failure();
            Error::Mirror { logical: Logical(0), mirror: 0, device: id, source }
        })
    }

    /// Splits a write into transfers to the wanted mirrors.
    fn plan_write<'a>(
        &self,
        at: Logical,
        bytes: &'a [u8],
        is_wanted: impl Fn(u32) -> bool,
        transfers: &mut Vec<Transfer<'a>>,
    ) -> Result<(), Error> {
        if self.is_on_seed(at) {
            return Err(Error::ReadOnly { why: format!("chunk {at} is a seed's") });
        }
        let class = self.class_of(at);
        self.for_each_copy(Extent::new(at, bytes.len() as u64), |device, offset, part, mirror| {
            if !is_wanted(mirror) || device.is_lost() {
                return;
            }
            let device = Arc::clone(device);
            let start = part.start.distance(at) as usize;
            let bytes = &bytes[start..start + part.len as usize];
            transfers.push(Transfer { device, offset, bytes, logical: part.start, mirror, class });
        })
    }

    /// The class of the content at an address. A mixed chunk counts as metadata, because data and
    /// nodes cannot be told apart in such a chunk, and callers wait for writes of nodes.
    pub(crate) fn class_of(&self, at: Logical) -> Class {
        let is_data = |flags: BlockGroupFlags| flags.kind() == BlockGroupFlags::DATA;
        match self.map.load().find(at) {
            Ok(entry) if is_data(entry.chunk.flags) => Class::Data,
            _ => Class::Metadata,
        }
    }

    fn plan_discard(&self, extent: Extent) -> Result<Vec<Gap>, Error> {
        let mut gaps: Vec<Gap> = Vec::new();
        if self.is_never_rewritten(extent.start) {
            return Ok(gaps);
        }
        self.for_each_copy(extent, |device, offset, part, mirror| {
            let device = Arc::clone(device);
            gaps.push(Gap { device, offset, len: part.len, logical: part.start, mirror });
        })?;
        gaps.sort_unstable_by_key(|gap| (gap.device.id, gap.offset));
        gaps.dedup_by(|next, joined| {
            let adjacent =
                next.device.id == joined.device.id && next.offset == joined.offset + joined.len;
            if adjacent {
                joined.len += next.len;
            }
            adjacent
        });
        Ok(gaps)
    }

    /// Calls `show` for every copy of every piece of a range on a present device. The arguments of
    /// `show` are device, offset on the device, part of the range and mirror.
    pub(crate) fn for_each_copy(
        &self,
        extent: Extent,
        mut show: impl FnMut(&Arc<VolumeDevice>, u64, Extent, u32),
    ) -> Result<(), Error> {
        let map = self.map.load();
        let mut at = extent.start;
        let mut left = extent.len;
        while left > 0 {
            let entry = map.find(at)?;
            let piece = entry.piece(at, left);
            for mirror in 0..entry.layout.copies() as u32 {
                let stripe = piece.first_stripe + mirror as usize;
                let Some(device) = entry.device(stripe) else { continue };
                let place = self.place(entry, &piece, at, mirror)?;
                show(device, place.offset, Extent::new(at, piece.len), mirror);
            }
            at = at.end(piece.len);
            left -= piece.len;
        }
        Ok(())
    }

    /// Sends sorted transfers to their devices: adjacent transfers in one request, and all requests
    /// of one device at once.
    pub(crate) fn submit(&self, transfers: &[Transfer<'_>]) -> Result<(), Error> {
        let mut rest = transfers;
        while let Some(first) = rest.first() {
            let of_device = |transfer: &&Transfer<'_>| transfer.device.id == first.device.id;
            let (own, after) = rest.split_at(rest.iter().take_while(of_device).count());
            self.submit_to(&first.device, own)?;
            rest = after;
        }
        Ok(())
    }

    fn submit_to(&self, device: &VolumeDevice, transfers: &[Transfer<'_>]) -> Result<(), Error> {
        if device.is_lost() {
            return Ok(());
        }
        let (requests, firsts) = self.requests(transfers);
        let _waiting = activity::wait(Cause::DeviceWrite);
        let written = interrupt::without_cancel(|| device.device.write_many(&requests));
        written.or_else(|refused| self.write_failed(device, &firsts, refused))
    }

    /// Submits transfers to the only device as [`Self::submit_to`] does, and then flushes this
    /// device.
    fn submit_and_flush(
        &self,
        device: &VolumeDevice,
        transfers: &[Transfer<'_>],
    ) -> Result<(), NotDurable> {
        let (requests, firsts) = self.requests(transfers);
        self.counters.flush();
        let _waiting = activity::wait(Cause::DeviceFlush);
        let written = interrupt::without_cancel(|| device.device.write_many_and_flush(&requests));
        written.or_else(|why| match why {
            Unfinished::Write(refused) => {
                self.write_failed(device, &firsts, refused).map_err(NotDurable::Write)
            }
            Unfinished::Flush(source) => {
                self.flush_failed(device, source).map_err(NotDurable::Flush)
            }
        })
    }

    /// Joins adjacent transfers into requests; also returns the first transfer of each request.
    fn requests<'t, 'a>(
        &self,
        transfers: &'t [Transfer<'a>],
    ) -> (Vec<Write<'t>>, Vec<&'t Transfer<'a>>) {
        let mut requests = Vec::new();
        let mut firsts = Vec::new();
        let mut rest = transfers;
        while let Some(first) = rest.first() {
            let (run, after) = rest.split_at(run_len(rest));
            if let (Some(last), Some(next)) = (run.last(), after.first()) {
                let apart = last.end() <= next.offset;
                assert!(apart, "W2: writes at {} and {} overlap", first.logical, next.logical);
            }
            let bufs: Vec<_> = run.iter().map(|transfer| IoSlice::new(transfer.bytes)).collect();
            self.counters.write(bufs.iter().map(|buf| buf.len() as u64).sum());
            requests.push(Write { offset: first.offset, bufs, class: first.class });
            firsts.push(first);
            rest = after;
        }
        (requests, firsts)
    }

    fn write_failed(
        &self,
        device: &VolumeDevice,
        firsts: &[&Transfer<'_>],
        FailedWrite { index, error: source }: FailedWrite,
    ) -> Result<(), Error> {
        self.counters.io_failure();
        device.count(Fault::Write);
        let &Transfer { logical, mirror, .. } = firsts[index];
        self.lose_device(device, Error::Mirror { logical, mirror, device: device.id, source })
    }

    fn flush_failed(&self, device: &VolumeDevice, source: BlockError) -> Result<(), Error> {
        self.counters.io_failure();
        device.count(Fault::Flush);
        self.lose_device(device, Error::Device { device: device.id, source })
    }
}

/// How many transfers at the front of a sorted list fit in one request.
fn run_len(transfers: &[Transfer<'_>]) -> usize {
    let mut bytes = 0;
    let mut end = None;
    let touching = transfers.iter().take(REQUEST_BUFFERS_MAX).take_while(|transfer| {
        bytes += transfer.bytes.len() as u64;
        let joins = end.is_none_or(|(device, end)| {
            device == transfer.device.id && end == transfer.offset && bytes <= REQUEST_BYTES_MAX
        });
        let joins = joins && transfer.class == transfers[0].class;
        end = Some((transfer.device.id, transfer.end()));
        joins
    });
    touching.count()
}
