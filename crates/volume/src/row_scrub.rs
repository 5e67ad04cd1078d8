//! Compares a row's parity with its data, and repairs either.
//!
//! # Invariants
//!
//! - **S2** Parity is computed anew only from data that has no known error. While a sector of the
//!   row is bad, the old parity may restore it.
//! - **S3** A parity sector is compared only if one of its data sectors is in use. Where no data is
//!   in use, parity may be wrong.
//!
//! # Locks
//!
//! A thread that repairs holds `Volume::repairs` exclusively while it writes. The caller excludes
//! other writes of the row. To exclude them, a view in which a part of the row is in use is enough,
//! because no thread writes to such a row.

use buttress_base::activity::{self, Cause};
use buttress_format::{DeviceId, Logical};

use crate::chunk_map::Entry;
use crate::device::Fault;
use crate::error::Error;
use crate::parity::{Row, parity_of};
use crate::scrub::Compared;
use crate::volume::Volume;

/// The state of a data sector, as the caller sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sector {
    /// No extent uses it.
    Unused,
    /// In use, with unknown content: it has no checksum.
    Unknown,
    /// In use, and right.
    Good,
    /// In use, and wrong.
    Bad,
}

/// Parity as it was found.
#[derive(Clone, Debug, Default)]
pub struct FoundParity {
    /// Sectors that were compared with their data.
    pub compared: u64,
    /// Sectors that do not match their data, by device and offset there.
    pub wrong: Vec<(DeviceId, u64)>,
    /// As `wrong`, but only beside data with a right checksum: this data was written for certain.
    pub surely_wrong: Vec<(DeviceId, u64)>,
}

/// One unit of a row as it was found.
struct Column {
    bytes: Vec<u8>,
    /// For each sector of the unit, whether it could not be read.
    unread: Vec<bool>,
    /// Whether the unit's device is here and gets writes.
    here: bool,
    /// Whether the device missed writes, so that the content may be old.
    old: bool,
    /// For each sector of the unit, whether it must be rewritten.
    dirty: Vec<bool>,
}

impl Column {
    fn sector(&self, index: usize, len: usize) -> &[u8] {
        &self.bytes[index * len..][..len]
    }

    fn has(&self, index: usize) -> bool {
        self.here && !self.unread[index]
    }

    /// Sets the content of a sector; returns whether the old content differed.
    fn mend(&mut self, index: usize, sector: &[u8]) -> bool {
        let place = &mut self.bytes[index * sector.len()..][..sector.len()];
        let differs = self.unread[index] || place != sector;
        place.copy_from_slice(sector);
        let rewrites = self.here && differs;
        self.dirty[index] |= rewrites;
        rewrites
    }
}

impl Volume {
    /// Reads the whole row at an address, in sectors of `len` bytes. Rebuilds data that is bad,
    /// unreadable or possibly old, and recomputes parity that does not match. Writes only if
    /// `repair` is set and the volume is writable. `classify` gets the offset of a data sector in
    /// the row, and its bytes.
    ///
    /// Returns the counts for the data, and which sectors of parity were wrong.
    ///
    /// # Errors
    ///
    /// [`Error::NotARow`] where there is no parity, or no row begins; [`Error::NotMapped`].
    pub fn compare_row(
        &self,
        at: Logical,
        len: usize,
        repair: bool,
        mut classify: impl FnMut(usize, &[u8]) -> Sector,
    ) -> Result<(Compared, FoundParity), Error> {
        let map = self.map.load();
        let entry = map.find(at)?;
        let none = Error::NotARow { logical: at };
        let begins = |whole| at.distance(entry.chunk.logical).is_multiple_of(whole);
        let piece = entry.piece(at, 1);
        let unit = entry.chunk.stripe_len as usize;
        let row = entry.layout.row_bytes().filter(|whole| begins(*whole));
        let Some((_, members)) = row.and_then(|_| entry.layout.row(&piece)) else {
            return Err(none);
        };
        let parity = entry.layout.parity();
        let data = members.len() - parity;
        let id_of = |number: usize| entry.device(members[number]).map(|device| device.id);
        let mut found = Compared::default();
        let mut columns: Vec<Column> = members
            .iter()
            .map(|stripe| self.read_column(entry, *stripe, piece.offset, unit, len))
            .collect();
        let mut found_parity = FoundParity::default();
        for index in 0..unit / len {
            let mut lost = Vec::new();
            let mut used = false;
            let mut is_verified = false;
            let mut bad_before = vec![false; data];
            for number in 0..data {
                let column = &columns[number];
                let sector = column.sector(index, len);
                let state = classify(number * unit + index * len, sector);
                used |= state != Sector::Unused;
                is_verified |= state == Sector::Good;
                let read = column.has(index);
                if state != Sector::Unused && column.here {
                    let bad = u64::from(read && state == Sector::Bad && !column.old);
                    found.bytes += len as u64;
                    found.read_errors += u64::from(!read);
                    found.bad += bad;
                    if let Some(device) = found.on(id_of(number)) {
                        device.bytes += len as u64;
                        device.read_errors += u64::from(!read);
                        device.bad += bad;
                    }
                    if bad > 0 {
                        self.counters.csum_failure();
                        if let Some(device) = entry.device(members[number]) {
                            device.count(Fault::Corruption);
                        }
                    }
                }
                let is_known = state == Sector::Good || (state != Sector::Bad && !column.old);
                if !(read && is_known) {
                    bad_before[number] = state != Sector::Unused;
                    lost.push(number);
                }
            }
            if !used {
                continue;
            }
            if !lost.is_empty() {
                let rebuilt = rebuild(&columns, &lost, parity, index, len, |number, bytes| {
                    classify(number * unit + index * len, bytes) != Sector::Bad
                });
                let Some(rebuilt) = rebuilt else {
                    lost.retain(|number| bad_before[*number]);
                    found.uncorrectable += lost.len().max(1) as u64;
                    for number in lost {
                        if let Some(device) = found.on(id_of(number)) {
                            device.uncorrectable += 1;
                        }
                    }
                    continue;
                };
                for (number, bytes) in lost.iter().zip(rebuilt) {
                    let rewritten = columns[*number].mend(index, &bytes);
                    let corrected = u64::from(rewritten && repair);
                    found.corrected += corrected;
                    if let Some(device) = found.on(id_of(*number)) {
                        device.corrected += corrected;
                    }
                }
            }
            let sectors: Vec<&[u8]> =
                columns[..data].iter().map(|column| column.sector(index, len)).collect();
            let sums = parity_of(&sectors, parity);
            for (number, sum) in (data..).zip(&sums) {
                let column = &mut columns[number];
                let (old, unread) = (column.old, column.here && column.unread[index]);
                let is_known = column.here && !unread && !old;
                found_parity.compared += u64::from(is_known);
                if column.mend(index, sum) {
                    found.read_errors += u64::from(unread);
                    if let Some(device) = id_of(number).filter(|_| is_known) {
                        let within = piece.offset + (index * len) as u64;
                        let offset = entry.chunk.stripes[members[number]].offset + within;
                        found_parity.wrong.push((device, offset));
                        if is_verified {
                            found_parity.surely_wrong.push((device, offset));
                        }
                    }
                    found.corrected += u64::from(repair);
                    if let Some(device) = found.on(id_of(number)) {
                        device.read_errors += u64::from(unread);
                        device.corrected += u64::from(repair);
                    }
                }
            }
        }
        if repair && self.writable() {
            self.rewrite(entry, &members, piece.offset, &columns, len);
        }
        Ok((found, found_parity))
    }

    fn read_column(
        &self,
        entry: &Entry,
        stripe: usize,
        offset: u64,
        unit: usize,
        len: usize,
    ) -> Column {
        let mut column = Column {
            bytes: vec![0; unit],
            unread: vec![false; unit / len],
            here: false,
            old: false,
            dirty: vec![false; unit / len],
        };
        let Some(device) = entry.device(stripe).filter(|device| !device.is_lost()) else {
            return column;
        };
        column.here = true;
        column.old = !device.trust().has_all();
        let offset = entry.chunk.stripes[stripe].offset + offset;
        self.counters.read(unit as u64);
        let _waiting = activity::wait(Cause::DeviceRead);
        if device.device.read_at(offset, &mut column.bytes).is_ok() {
            return column;
        }
        // One bad sector must not hide its neighbours.
        for (index, sector) in column.bytes.chunks_exact_mut(len).enumerate() {
            if device.device.read_at(offset + (index * len) as u64, sector).is_err() {
                self.counters.io_failure();
                device.count(Fault::Read);
                column.unread[index] = true;
            }
        }
        column
    }

    fn rewrite(
        &self,
        entry: &Entry,
        members: &[usize],
        offset: u64,
        columns: &[Column],
        len: usize,
    ) {
        let _alone = self.repairs.write();
        let _waiting = activity::wait(Cause::DeviceWrite);
        for (column, stripe) in columns.iter().zip(members) {
            let Some(device) = entry.device(*stripe) else { continue };
            for index in (0..column.dirty.len()).filter(|index| column.dirty[*index]) {
                let at = entry.chunk.stripes[*stripe].offset + offset + (index * len) as u64;
                match device.device.write_at(at, column.sector(index, len)) {
                    Ok(()) => self.counters.repair(),
                    Err(error) => {
                        device.count(Fault::Write);
                        tracing::error!(device = %device.id, %error, "cannot mend a row");
                    }
                }
            }
        }
    }
}

/// Rebuilds the lost sectors, if the parity is enough and the results pass the check. Parity on a
/// device that missed writes may be old, so such parity is not used. If one of two parity units is
/// wrong, the other one may be enough.
fn rebuild(
    columns: &[Column],
    lost: &[usize],
    parity: usize,
    index: usize,
    len: usize,
    mut passes: impl FnMut(usize, &[u8]) -> bool,
) -> Option<Vec<Vec<u8>>> {
    let data = columns.len() - parity;
    // If two parity units are there and one sector is lost, one of the units is enough. So try with
    // both units, then without P, then without Q.
    let without: &[Option<usize>] =
        if parity == 2 && lost.len() == 1 { &[None, Some(data), Some(data + 1)] } else { &[None] };
    for left_out in without {
        let units = columns.iter().enumerate().map(|(number, column)| {
            let usable = column.has(index)
                && !lost.contains(&number)
                && Some(number) != *left_out
                && (number < data || !column.old);
            usable.then(|| column.sector(index, len).to_vec())
        });
        let row = Row { units: units.collect(), parity };
        let rebuilt: Option<Vec<_>> = lost.iter().map(|number| row.rebuild(*number)).collect();
        let rebuilt = rebuilt
            .filter(|all| lost.iter().zip(all).all(|(number, bytes)| passes(*number, bytes)));
        if rebuilt.is_some() {
            return rebuilt;
        }
    }
    None
}
