//! Reads one copy, or the first good copy.
//!
//! # Invariants
//!
//! - **R1** `read_verified` returns bytes only after the caller's check has passed them.
//!
//! The handling of bad copies is in [`recover`](crate::recover).

use std::fmt::Display;
use std::sync::Arc;

use buttress_base::activity::{self, Cause};
use buttress_format::{Extent, Logical};

use crate::chunk_map::Entry;
use crate::device::{Fault, VolumeDevice};
use crate::error::{Error, Uuid};
use crate::layout::Piece;
use crate::parity::Row;
use crate::recover::{Counting, Failure, check_bytes};
use crate::volume::Volume;

/// One copy of a piece, on its device.
pub(crate) struct Place<'a> {
    pub(crate) device: &'a Arc<VolumeDevice>,
    pub(crate) offset: u64,
}

impl Volume {
    /// Reads one copy as it is; the first copy is 0.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`], [`Error::NoSuchMirror`] or [`Error::MissingStripe`] where there is no
    /// such copy, [`Error::Mirror`] when the device of the copy fails.
    pub fn read_mirror(&self, at: Logical, buf: &mut [u8], mirror: u32) -> Result<(), Error> {
        self.read_copy(at, buf, mirror, true)
    }

    /// As [`Self::read_mirror`]; `counts_failure` says whether a failure is counted for the device.
    fn read_copy(
        &self,
        at: Logical,
        buf: &mut [u8],
        mirror: u32,
        counts_failure: bool,
    ) -> Result<(), Error> {
        let map = self.map_of(Extent::new(at, buf.len() as u64));
        let mut rest = buf;
        let mut at = at;
        while !rest.is_empty() {
            let entry = map.find(at)?;
            let piece = entry.piece(at, rest.len() as u64);
            let (part, after) = rest.split_at_mut(piece.len as usize);
            if let Some(mirror) = self.reading_by_parity(entry, &piece, mirror) {
                self.rebuild(entry, &piece, at, mirror, part)?;
                rest = after;
                at = at.end(piece.len);
                continue;
            }
            let mirror = if entry.layout.has_parity() { 0 } else { mirror };
            let place = self.place(entry, &piece, at, mirror)?;
            self.counters.read(piece.len);
            let _waiting = activity::wait(Cause::DeviceRead);
            place.device.device.read_at(place.offset, part).map_err(|source| {
                if counts_failure && !source.is_abandoned() {
                    self.counters.io_failure();
                    place.device.count(Fault::Read);
                }
                Error::Mirror { logical: at, mirror, device: place.device.id, source }
            })?;
            rest = after;
            at = at.end(piece.len);
        }
        Ok(())
    }

    /// Which reconstruction from parity to use, if any. If the device of a piece missed writes, the
    /// reconstruction comes before the device's own bytes, since unchecked data on that device
    /// would be old.
    fn reading_by_parity(&self, entry: &Entry, piece: &Piece, mirror: u32) -> Option<u32> {
        if !entry.layout.has_parity() {
            return None;
        }
        let is_old =
            !entry.device(piece.first_stripe).is_some_and(|device| device.trust().has_all());
        match mirror {
            0 => is_old.then_some(1),
            1 => (!is_old).then_some(1),
            other => Some(other),
        }
    }

    /// Computes bytes from the rest of their row. With `mirror` 1 only the wanted stripe counts as
    /// lost. With a higher `mirror`, one other stripe counts as lost, too.
    fn rebuild(
        &self,
        entry: &Entry,
        piece: &Piece,
        at: Logical,
        mirror: u32,
        into: &mut [u8],
    ) -> Result<(), Error> {
        let mirrors = entry.layout.readings();
        let none = Error::NoSuchMirror { logical: at, mirror, mirrors };
        let row = entry.layout.row(piece).filter(|_| mirror < mirrors);
        let Some((wanted, members)) = row else { return Err(none) };
        // The other stripe that counts as lost.
        let suspect = (mirror as usize).checked_sub(2);
        let suspect = suspect.map(|index| if index < wanted { index } else { index + 1 });
        // Stripes on devices that missed writes count as lost, as long as the other stripes are
        // enough.
        let is_out = |index: usize| index == wanted || Some(index) == suspect;
        let is_old = |stripe: usize| !entry.device(stripe).is_some_and(|d| d.trust().has_all());
        let out = members.iter().enumerate().filter(|(i, stripe)| is_out(*i) || is_old(**stripe));
        let passes_old = out.count() <= entry.layout.parity();
        let mut units = Vec::with_capacity(members.len());
        let mut missing = None;
        for (index, stripe) in members.into_iter().enumerate() {
            if is_out(index) {
                units.push(None);
                continue;
            }
            let old = is_old(stripe) && passes_old;
            let Some(device) = entry.device(stripe).filter(|_| !old) else {
                missing = entry.chunk.stripes.get(stripe).map(|stripe| stripe.device);
                units.push(None);
                continue;
            };
            let mut unit = vec![0; into.len()];
            let offset = entry.chunk.stripes.get(stripe).map_or(0, |stripe| stripe.offset);
            self.counters.read(unit.len() as u64);
            let waiting = activity::wait(Cause::DeviceRead);
            let read = device.device.read_at(offset + piece.offset, &mut unit);
            drop(waiting);
            match read {
                Ok(()) => units.push(Some(unit)),
                Err(source) if source.is_abandoned() => {
                    return Err(Error::Mirror { logical: at, mirror, device: device.id, source });
                }
                Err(_) => {
                    self.counters.io_failure();
                    device.count(Fault::Read);
                    missing = Some(device.id);
                    units.push(None);
                }
            }
        }
        let parity = entry.layout.parity();
        match (Row { units, parity }).rebuild(wanted) {
            Some(found) => {
                into.copy_from_slice(&found);
                Ok(())
            }
            None => Err(missing.map_or(none, |device| Error::MissingStripe {
                logical: at,
                device,
                fsid: Uuid(self.fsid()),
            })),
        }
    }

    /// Reads the first copy that passes a check.
    ///
    /// Bad copies that were tried before the good copy are rewritten from the good one, if the
    /// volume is writable.
    ///
    /// # Errors
    ///
    /// [`Error::NoGoodMirror`] when no copy passes, with the reason for the last copy;
    /// [`Error::NotMapped`].
    pub fn read_verified<E: Display>(
        &self,
        at: Logical,
        buf: &mut [u8],
        mut verify: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), Error> {
        let unit = buf.len().max(1);
        self.read_verified_by(at, buf, unit, |_, bytes| verify(bytes))
    }

    /// Reads units that each pass a check, each from any good copy. The whole range is read in one
    /// request, and then only the bad units again. So two copies with bad sectors in different
    /// units are as good as a copy without bad sectors. The check gets the offset of its unit in
    /// `buf`.
    ///
    /// # Errors
    ///
    /// As [`Volume::read_verified`], for the first unit without a good copy.
    ///
    /// # Panics
    ///
    /// When `unit` is zero or does not divide the buffer: a bug of the caller.
    pub fn read_verified_by<E: Display>(
        &self,
        at: Logical,
        buf: &mut [u8],
        unit: usize,
        verify: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), Error> {
        self.read_units(at, buf, unit, false, verify)
    }

    /// As [`Volume::read_verified_by`], for bytes that no request needs yet. A unit without a good
    /// copy is not counted (`recover::R3`).
    ///
    /// # Errors
    ///
    /// As [`Volume::read_verified_by`].
    ///
    /// # Panics
    ///
    /// As [`Volume::read_verified_by`].
    pub fn read_ahead_by<E: Display>(
        &self,
        at: Logical,
        buf: &mut [u8],
        unit: usize,
        verify: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), Error> {
        self.read_units(at, buf, unit, true, verify)
    }

    fn read_units<E: Display>(
        &self,
        at: Logical,
        buf: &mut [u8],
        unit: usize,
        is_ahead: bool,
        mut verify: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), Error> {
        let counting = Counting { repairs: self.counters.repairs(), is_ahead };
        assert!(unit > 0 && buf.len().is_multiple_of(unit), "{} by {unit}", buf.len());
        let order = self.mirror_order(at)?;
        let Some((&first, others)) = order.split_first() else {
            return Err(Error::NotMapped { logical: at });
        };
        let mut unread = self.read_mirror(at, buf, first).err();
        // When a run of units could not be read, each of them may still be readable by itself.
        let again = if unread.is_some() && buf.len() > unit { &*order } else { others };
        for (index, part) in buf.chunks_exact_mut(unit).enumerate() {
            let within = index * unit;
            let failure = match &unread {
                Some(error) => {
                    let reason = error.to_string();
                    Some(Failure { mirror: first, reason, source: None, is_mismatch: false })
                }
                None => check_bytes(first, part, |bytes| verify(within, bytes)),
            };
            if let Some(mut failure) = failure {
                if again.is_empty()
                    && let Some(error) = unread.take()
                {
                    failure = Failure::unread(first, error);
                }
                let at = at.end(within as u64);
                self.recover(at, part, again, failure, counting, |bytes| verify(within, bytes))?;
            }
        }
        Ok(())
    }

    /// As [`Volume::read_verified_by`], but reads only the preferred copy, counts no failure and
    /// repairs nothing. This is for a range that may have been freed and reused. Returns whether
    /// the whole range passes the checks.
    ///
    /// # Panics
    ///
    /// As [`Volume::read_verified_by`].
    pub fn try_read_verified_by<E: Display>(
        &self,
        at: Logical,
        buf: &mut [u8],
        unit: usize,
        mut verify: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> bool {
        assert!(unit > 0 && buf.len().is_multiple_of(unit), "{} by {unit}", buf.len());
        let Some(first) = self.mirror_order(at).ok().and_then(|order| order.first().copied())
        else {
            return false;
        };
        self.read_copy(at, buf, first, false).is_ok()
            && buf
                .chunks_exact(unit)
                .enumerate()
                .all(|(index, part)| verify(index * unit, part).is_ok())
    }

    /// Lists the mirrors of an address, best first. Mirrors on present devices that are up to date
    /// come first. For neighbouring megabytes the list begins with different mirrors, so that reads
    /// use all devices.
    fn mirror_order(&self, at: Logical) -> Result<Vec<u32>, Error> {
        const TURN_BYTES: u64 = 1 << 20;
        let map = self.map_of(Extent::new(at, 1));
        let entry = map.find(at)?;
        let copies = entry.layout.copies();
        if copies == 1 {
            return Ok((0..entry.layout.readings()).collect());
        }
        let piece = entry.piece(at, 1);
        let device_of = |mirror: usize| entry.device(piece.first_stripe + mirror);
        let id_of = |mirror: usize| device_of(mirror).map(|device| device.id);
        let turn = if (1..copies).all(|mirror| id_of(mirror) == id_of(0)) {
            0
        } else {
            at.distance(entry.chunk.logical) / TURN_BYTES
        };
        let mut order: Vec<u32> =
            (0..copies as u64).map(|index| ((index + turn) % copies as u64) as u32).collect();
        order.sort_by_key(|&mirror| {
            let device = device_of(mirror as usize);
            device.map_or(u32::MAX, |device| device.trust() as u32)
        });
        Ok(order)
    }

    /// Finds one copy of a piece.
    pub(crate) fn place<'e>(
        &self,
        entry: &'e Entry,
        piece: &Piece,
        at: Logical,
        mirror: u32,
    ) -> Result<Place<'e>, Error> {
        let mirrors = entry.layout.copies() as u32;
        if mirror >= mirrors {
            return Err(Error::NoSuchMirror { logical: at, mirror, mirrors });
        }
        let index = piece.first_stripe + mirror as usize;
        let stripe = entry.chunk.stripes.get(index).expect("the layout counted the stripes");
        match entry.device(index) {
            Some(device) => Ok(Place { device, offset: stripe.offset + piece.offset }),
            None => Err(Error::MissingStripe {
                logical: at,
                device: stripe.device,
                fsid: Uuid(self.fsid()),
            }),
        }
    }

    /// The device of a copy, if it is present.
    pub(crate) fn here(&self, at: Logical, mirror: u32) -> Option<Arc<VolumeDevice>> {
        let map = self.map_of(Extent::new(at, 1));
        let entry = map.find(at).ok().filter(|entry| mirror < entry.layout.copies() as u32)?;
        entry.device(entry.piece(at, 1).first_stripe + mirror as usize).cloned()
    }
}
