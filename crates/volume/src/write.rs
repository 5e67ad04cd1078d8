//! Writing: every copy, sorted and joined; flushing; giving space up.
//!
//! # Invariants
//!
//! - **W1** A write that returned `Ok` is on every copy.
//! - **W2** No two writes of a batch share a byte.
//!
//! # Locks
//!
//! Shares `Volume::repairs` with other writers, across I/O.
//!
//! # Failure
//!
//! The first failure ends a batch; what is on the devices then is anybody's guess, and nothing points
//! to it yet.

use std::io::IoSlice;

use buttress_format::{Extent, Logical};

use crate::error::Error;
use crate::volume::Volume;

/// Bytes for one place of one device.
struct Transfer<'a> {
    /// Index of the device in the volume.
    device: usize,
    offset: u64,
    bytes: &'a [u8],
    logical: Logical,
    mirror: u32,
}

impl Transfer<'_> {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// A run of one device to be given up.
struct Gap {
    device: usize,
    offset: u64,
    len: u64,
    logical: Logical,
    mirror: u32,
}

/// What one request to a device holds at the most.
const REQUEST_BYTES_MAX: u64 = 4 << 20;
const REQUEST_BUFFERS_MAX: usize = 1024;

impl Volume {
    /// Writes every copy.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`], [`Error::NotMapped`], or [`Error::Mirror`] for the first copy that failed.
    pub fn write(&self, at: Logical, bytes: &[u8]) -> Result<(), Error> {
        self.write_batch(&[(at, bytes)])
    }

    /// Writes every copy of many ranges, in any order: what is adjacent on a device goes to it in one
    /// request, and each device is swept once from its front to its end.
    ///
    /// # Errors
    ///
    /// As [`Volume::write`].
    ///
    /// # Panics
    ///
    /// When two ranges overlap (W2): the caller's bug.
    pub fn write_batch(&self, writes: &[(Logical, &[u8])]) -> Result<(), Error> {
        self.check_writable()?;
        let mut transfers = Vec::with_capacity(writes.len());
        for &(at, bytes) in writes {
            self.plan_write(at, bytes, None, &mut transfers)?;
        }
        transfers.sort_unstable_by_key(|transfer| (transfer.device, transfer.offset));
        let _shared = self.repairs.read();
        self.submit(&transfers)
    }

    /// Rewrites one copy, for a repair. The caller has `repairs` alone.
    pub(crate) fn write_mirror(&self, at: Logical, bytes: &[u8], mirror: u32) -> Result<(), Error> {
        let mut transfers = Vec::new();
        self.plan_write(at, bytes, Some(mirror), &mut transfers)?;
        self.submit(&transfers)
    }

    /// Makes everything written so far durable, on every device.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] from the first device that failed, after all were tried.
    pub fn flush(&self) -> Result<(), Error> {
        let mut outcome = Ok(());
        for device in &self.devices {
            self.counters.flush();
            outcome = outcome.and(device.device.flush().map_err(|source| {
                self.counters.io_failure();
                Error::Device { device: device.id, source }
            }));
        }
        outcome
    }

    /// Tells the devices that a range holds nothing of worth, on every copy.
    ///
    /// # Errors
    ///
    /// As [`Volume::write`].
    pub fn discard(&self, extent: Extent) -> Result<(), Error> {
        self.check_writable()?;
        let gaps = self.plan_discard(extent)?;
        let _shared = self.repairs.read();
        for gap in &gaps {
            let Some(device) = self.devices.get(gap.device) else { continue };
            self.counters.discard(gap.len);
            device.device.discard(gap.offset, gap.len).map_err(|source| {
                self.counters.io_failure();
                Error::Mirror {
                    logical: gap.logical,
                    mirror: gap.mirror,
                    device: device.id,
                    source,
                }
            })?;
        }
        Ok(())
    }

    /// Cuts a write into what goes where: to every mirror, or to one.
    fn plan_write<'a>(
        &self,
        at: Logical,
        bytes: &'a [u8],
        only: Option<u32>,
        transfers: &mut Vec<Transfer<'a>>,
    ) -> Result<(), Error> {
        self.for_each_copy(Extent::new(at, bytes.len() as u64), |device, offset, part, mirror| {
            if only.is_some_and(|only| only != mirror) {
                return;
            }
            let start = part.start.distance(at) as usize;
            let bytes = &bytes[start..start + part.len as usize];
            transfers.push(Transfer { device, offset, bytes, logical: part.start, mirror });
        })
    }

    fn plan_discard(&self, extent: Extent) -> Result<Vec<Gap>, Error> {
        let mut gaps: Vec<Gap> = Vec::new();
        self.for_each_copy(extent, |device, offset, part, mirror| {
            gaps.push(Gap { device, offset, len: part.len, logical: part.start, mirror });
        })?;
        gaps.sort_unstable_by_key(|gap| (gap.device, gap.offset));
        gaps.dedup_by(|next, joined| {
            let adjacent =
                next.device == joined.device && next.offset == joined.offset + joined.len;
            if adjacent {
                joined.len += next.len;
            }
            adjacent
        });
        Ok(gaps)
    }

    /// Shows every copy of every piece of a range: device index, offset on it, part, mirror.
    fn for_each_copy(
        &self,
        extent: Extent,
        mut show: impl FnMut(usize, u64, Extent, u32),
    ) -> Result<(), Error> {
        let map = self.map.load();
        let mut at = extent.start;
        let mut left = extent.len;
        while left > 0 {
            let entry = map.find(at)?;
            let piece = entry.piece(at, left);
            for mirror in 0..entry.layout.copies() as u32 {
                let place = self.place(entry, &piece, at, mirror)?;
                let stripe = piece.first_stripe + mirror as usize;
                let device = entry.devices.get(stripe).copied().flatten();
                let device = device.expect("a copy that has a place has a device");
                show(device, place.offset, Extent::new(at, piece.len), mirror);
            }
            at = at.end(piece.len);
            left -= piece.len;
        }
        Ok(())
    }

    /// Sends sorted transfers to their devices, those that touch in one request.
    fn submit(&self, transfers: &[Transfer<'_>]) -> Result<(), Error> {
        let mut rest = transfers;
        while let Some(first) = rest.first() {
            let (run, after) = rest.split_at(run_len(rest));
            if let Some(next) = after.first() {
                let apart = next.device != first.device
                    || run.last().is_some_and(|last| last.end() <= next.offset);
                assert!(apart, "W2: writes at {} and {} overlap", first.logical, next.logical);
            }
            self.submit_run(first, run)?;
            rest = after;
        }
        Ok(())
    }

    fn submit_run(&self, first: &Transfer<'_>, run: &[Transfer<'_>]) -> Result<(), Error> {
        let device = self.devices.get(first.device).expect("the plan names devices that are here");
        let outcome = if let [only] = run {
            self.counters.write(only.bytes.len() as u64);
            device.device.write_at(only.offset, only.bytes)
        } else {
            let bufs: Vec<_> = run.iter().map(|transfer| IoSlice::new(transfer.bytes)).collect();
            self.counters.write(bufs.iter().map(|buf| buf.len() as u64).sum());
            device.device.write_vectored_at(first.offset, &bufs)
        };
        outcome.map_err(|source| {
            self.counters.io_failure();
            let (logical, mirror) = (first.logical, first.mirror);
            Error::Mirror { logical, mirror, device: device.id, source }
        })
    }
}

/// How many transfers at the front of a sorted list go in one request.
fn run_len(transfers: &[Transfer<'_>]) -> usize {
    let mut bytes = 0;
    let mut end = None;
    let touching = transfers.iter().take(REQUEST_BUFFERS_MAX).take_while(|transfer| {
        bytes += transfer.bytes.len() as u64;
        let joins = end.is_none_or(|(device, end)| {
            device == transfer.device && end == transfer.offset && bytes <= REQUEST_BYTES_MAX
        });
        end = Some((transfer.device, transfer.end()));
        joins
    });
    touching.count()
}
