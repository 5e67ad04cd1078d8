//! Scrubbing: reads every copy, not only the first good one.
//!
//! # Invariants
//!
//! - **S1** A copy is rewritten only from bytes that passed the caller's check. No write can come
//!   between the read and the rewrite (`recover::R2`).

use std::collections::BTreeMap;
use std::fmt::Display;

use buttress_format::{DeviceId, Extent, Logical};

use crate::device::{DeviceTrust, Fault};
use crate::error::Error;
use crate::volume::Volume;

/// What a comparison found on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnDevice {
    /// Bytes read.
    pub bytes: u64,
    /// Units that the device could not read.
    pub read_errors: u64,
    /// Units that were read and are wrong.
    pub bad: u64,
    /// Units that were rewritten.
    pub corrected: u64,
    /// Wrong or unreadable units of which no device has a good copy.
    pub uncorrectable: u64,
}

/// The results for a range, over all its copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Bytes read, every copy counted.
    pub bytes: u64,
    /// Copies of a unit that a device could not read.
    pub read_errors: u64,
    /// Copies of a unit that were read and are wrong.
    pub bad: u64,
    /// Copies of a unit that were rewritten.
    pub corrected: u64,
    /// Units without a good copy.
    pub uncorrectable: u64,
    /// What was found on each device.
    pub devices: BTreeMap<DeviceId, OnDevice>,
}

impl Compared {
    /// The counts of a device. Copies on a device that is not here have none.
    pub(crate) fn on(&mut self, device: Option<DeviceId>) -> Option<&mut OnDevice> {
        device.map(|device| self.devices.entry(device).or_default())
    }
}

/// The state of one copy of a unit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copy {
    Good,
    Bad,
    Unread,
    /// On a device that is not here.
    Missing,
}

impl Volume {
    /// Reads every copy of a range, unit by unit. Rewrites bad copies from a good one, if `repair`
    /// is set and the volume is writable. The check gets the offset of its unit in the range.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`]; bad copies are no error but part of the result.
    ///
    /// # Panics
    ///
    /// When `unit` is zero or does not divide the range: a bug of the caller.
    pub fn verify_copies<E: Display>(
        &self,
        range: Extent,
        unit: usize,
        repair: bool,
        mut verify: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<Compared, Error> {
        let len = usize::try_from(range.len).unwrap_or(usize::MAX);
        assert!(unit > 0 && len.is_multiple_of(unit), "{len} by {unit}");
        let mirrors = self.mirrors(range.start);
        let readings = self.readings(range.start)?;
        let mut found = Compared::default();
        let mut buf = vec![0; len];
        let mut copies: Vec<Vec<Copy>> = Vec::with_capacity(mirrors as usize);
        for mirror in 0..mirrors {
            copies.push(self.look(range.start, &mut buf, unit, mirror, &mut found, &mut verify));
        }
        for index in 0..len / unit {
            let of = |mirror: u32| copies.get(mirror as usize).map_or(Copy::Missing, |c| c[index]);
            let bad: Vec<u32> = (0..mirrors)
                .filter(|mirror| matches!(of(*mirror), Copy::Bad | Copy::Unread))
                .collect();
            if bad.is_empty() {
                continue;
            }
            let within = index * unit;
            let at = range.start.end(within as u64);
            let part = &mut buf[..unit];
            // Numbers from `mirrors` on stand for reconstructions from parity.
            let trusted = |mirror: &u32| *mirror >= mirrors || of(*mirror) == Copy::Good;
            let good = (0..readings).filter(trusted).find(|mirror| {
                self.read_mirror(at, part, *mirror).is_ok() && verify(within, part).is_ok()
            });
            found.uncorrectable += u64::from(good.is_none());
            for mirror in bad {
                let device = self.here(at, mirror).map(|device| device.id);
                match good {
                    None => {
                        if let Some(device) = found.on(device) {
                            device.uncorrectable += 1;
                        }
                    }
                    Some(good) if repair => {
                        let corrected = self.repair(at, part, good, &[mirror]);
                        found.corrected += corrected;
                        if let Some(device) = found.on(device) {
                            device.corrected += corrected;
                        }
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(found)
    }

    /// Reads one copy of a range and checks its units.
    fn look<E: Display>(
        &self,
        start: Logical,
        buf: &mut [u8],
        unit: usize,
        mirror: u32,
        found: &mut Compared,
        verify: &mut impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Vec<Copy> {
        let whole = self.read_mirror(start, buf, mirror).is_ok();
        let mut copies = Vec::with_capacity(buf.len() / unit);
        let buf_len = buf.len();
        let (mut device, mut device_end) = (None, 0);
        for (index, part) in buf.chunks_exact_mut(unit).enumerate() {
            let within = index * unit;
            let at = start.end(within as u64);
            if within >= device_end {
                let (here, len) =
                    self.holder_of(Extent::new(at, (buf_len - within) as u64), mirror);
                (device, device_end) = (here, within + len.max(unit));
            }
            // One bad sector must not hide its neighbours.
            let read = if whole { Ok(()) } else { self.read_mirror(at, part, mirror) };
            let copy = match read {
                Err(Error::MissingStripe { .. }) => Copy::Missing,
                Err(_) => Copy::Unread,
                Ok(()) if verify(within, part).is_ok() => Copy::Good,
                Ok(()) => {
                    self.counters.csum_failure();
                    if let Some(device) = self.here(at, mirror) {
                        device.count(Fault::Corruption);
                    }
                    Copy::Bad
                }
            };
            let (unread, bad) = (u64::from(copy == Copy::Unread), u64::from(copy == Copy::Bad));
            let bytes = if copy == Copy::Missing { 0 } else { unit as u64 };
            found.read_errors += unread;
            found.bad += bad;
            found.bytes += bytes;
            if let Some(device) = found.on(device) {
                device.read_errors += unread;
                device.bad += bad;
                device.bytes += bytes;
            }
            copies.push(copy);
        }
        copies
    }

    /// The device with one copy of a range, and for how many bytes of the range it is that device.
    fn holder_of(&self, range: Extent, mirror: u32) -> (Option<DeviceId>, usize) {
        let map = self.map_of(range);
        let Ok(entry) = map.find(range.start) else { return (None, 0) };
        let piece = entry.piece(range.start, range.len);
        let is_there = (mirror as usize) < entry.layout.copies();
        let device = entry.device(piece.first_stripe + mirror as usize).filter(|_| is_there);
        (device.map(|device| device.id), usize::try_from(piece.len).unwrap_or(usize::MAX))
    }

    /// Counts the units with copies that differ, for data without checksums. Unreadable copies, and
    /// copies on devices that missed transactions, are skipped. Concurrent writes in the range can
    /// raise the count.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`].
    pub fn unlike(&self, range: Extent, unit: usize) -> Result<u64, Error> {
        self.readings(range.start)?;
        let len = usize::try_from(range.len).unwrap_or(usize::MAX);
        let is_whole = |at: usize, mirror: u32| {
            let device = self.here(range.start.end(at as u64), mirror);
            device.is_some_and(|device| device.trust() == DeviceTrust::Whole)
        };
        let mut unlike = vec![false; len / unit];
        // For each unit the first copy that was read.
        let (mut first, mut known) = (vec![0; len], vec![false; len / unit]);
        let mut other = vec![0; len];
        for mirror in 0..self.mirrors(range.start) {
            if self.read_mirror(range.start, &mut other, mirror).is_err() {
                continue;
            }
            let pairs = first.chunks_exact_mut(unit).zip(other.chunks_exact(unit));
            for (index, (first, other)) in pairs.enumerate() {
                if !is_whole(index * unit, mirror) {
                    continue;
                }
                if known[index] {
                    unlike[index] |= *first != *other;
                } else {
                    first.copy_from_slice(other);
                    known[index] = true;
                }
            }
        }
        Ok(unlike.iter().filter(|unlike| **unlike).count() as u64)
    }

    /// Copies data without checksums from an up-to-date device to the devices that missed
    /// transactions. Returns how many units were rewritten on each device.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`].
    pub fn catch_up(&self, range: Extent, unit: usize) -> Result<BTreeMap<DeviceId, u64>, Error> {
        let mirrors = self.mirrors(range.start);
        let mut rewritten = BTreeMap::new();
        let (mut fresh, mut old) = (vec![0; unit], vec![0; unit]);
        for within in (0..range.len).step_by(unit) {
            let at = range.start.end(within);
            let part = (unit as u64).min(range.len - within) as usize;
            let trust = |mirror| self.here(at, mirror).map(|device| device.trust());
            let Some(whole) =
                (0..mirrors).find(|mirror| trust(*mirror) == Some(DeviceTrust::Whole))
            else {
                continue;
            };
            for mirror in 0..mirrors {
                if !matches!(trust(mirror), Some(DeviceTrust::Behind | DeviceTrust::Stale)) {
                    continue;
                }
                self.read_mirror(at, &mut fresh[..part], whole)?;
                let same = self.read_mirror(at, &mut old[..part], mirror).is_ok()
                    && old[..part] == fresh[..part];
                if !same && let Some(device) = self.here(at, mirror) {
                    *rewritten.entry(device.id).or_default() +=
                        self.repair(at, &fresh[..part], whole, &[mirror]);
                }
            }
        }
        Ok(rewritten)
    }

    /// The number of ways to read the bytes at an address.
    pub(crate) fn readings(&self, at: Logical) -> Result<u32, Error> {
        let map = self.map.load();
        Ok(map.find(at)?.layout.readings())
    }
}
