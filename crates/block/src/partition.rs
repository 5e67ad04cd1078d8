//! Partition tables: where the parts of a disk or of its image lie.
//!
//! # Place
//!
//! [`Window`](crate::Window) shows a part as a device. The kernel is not asked, so neither root nor
//! a loop device is needed.
//!
//! # Invariants
//!
//! - **T1** Nothing read here is trusted. Every number is checked before it is used as an address.
//!   A table that contradicts itself is an error, and none of its partitions is used.
//! - **T2** A table is read with a bounded number of requests and bytes.
//! - **T3** Partitions that were returned do not overlap, and have at least one sector. A partition
//!   may end past the end of a disk that was cut: [`Partition::within`] checks that.
//! - **T4** Partitions have the numbers that Linux gives them.

mod gpt;
mod mbr;

use std::ops::Range;

use crate::device::Device;
use crate::error::Error;

/// The sector of almost all disks, and the unit of tables in images, in bytes.
pub const SECTOR: u64 = 512;

/// One partition of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The number that Linux gives the partition, from 1.
    pub number: u32,
    /// The first byte.
    pub start: u64,
    /// The length in bytes.
    pub len: u64,
    /// The purpose of the partition.
    pub kind: Kind,
    /// The name in a GPT; empty in an MBR.
    pub label: String,
    /// The identifier in a GPT, in the order in which it is written as text.
    pub id: Option<Guid>,
}

/// A globally unique identifier, its bytes in the order in which they are written as text.
pub type Guid = [u8; 16];

/// The purpose of a partition, as its table names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The byte of an MBR.
    Mbr(u8),
    /// The identifier of a GPT.
    Gpt(Guid),
}

impl Partition {
    /// Returns the first byte and the length, for a partition that lies within the disk.
    ///
    /// # Errors
    ///
    /// [`Error::Partition`] if the disk is shorter.
    pub fn within(&self, disk: &dyn Device) -> Result<(u64, u64), Error> {
        let end = self.start.checked_add(self.len);
        if end.is_none_or(|end| end > disk.len()) {
            let number = self.number;
            return Err(broken(disk, format!("partition {number} ends past the end of the disk")));
        }
        Ok((self.start, self.len))
    }
}

/// Reads the partitions of a disk, by number. `None` if there is no partition table.
///
/// A GPT with a damaged first copy is read from its second copy.
///
/// # Errors
///
/// [`Error::Partition`] for a table that is damaged (T1); those of reading the disk.
pub fn read(disk: &dyn Device) -> Result<Option<Vec<Partition>>, Error> {
    let Some(first) = sector(disk, 0)? else { return Ok(None) };
    let found = match mbr::Record::parse(&first) {
        Some(record) if record.is_protective() => gpt::read(disk)?,
        Some(record) => mbr::read(disk, &record)?,
        None => return Ok(None),
    };
    check_apart(disk, &found)?;
    Ok(Some(found))
}

/// Returns the byte ranges of the extended partitions of an MBR; none for a GPT. These ranges hold
/// logical partitions and the records that describe them.
///
/// # Errors
///
/// Those of reading the disk.
pub fn extended(disk: &dyn Device) -> Result<Vec<Range<u64>>, Error> {
    let record = sector(disk, 0)?.and_then(|first| mbr::Record::parse(&first));
    Ok(record.filter(|record| !record.is_protective()).map_or(Vec::new(), |it| it.extended()))
}

/// Refuses partitions that overlap (T3).
fn check_apart(disk: &dyn Device, all: &[Partition]) -> Result<(), Error> {
    let mut by_start: Vec<&Partition> = all.iter().collect();
    by_start.sort_by_key(|part| part.start);
    for pair in by_start.windows(2) {
        if pair[1].start - pair[0].start < pair[0].len {
            let (one, other) = (pair[0].number, pair[1].number);
            return Err(broken(disk, format!("partitions {one} and {other} overlap")));
        }
    }
    Ok(())
}

/// Reads the sector at a byte, if the disk has it.
fn sector(disk: &dyn Device, at: u64) -> Result<Option<[u8; SECTOR as usize]>, Error> {
    if at.checked_add(SECTOR).is_none_or(|end| end > disk.len()) {
        return Ok(None);
    }
    let mut bytes = [0; SECTOR as usize];
    disk.read_at(at, &mut bytes)?;
    Ok(Some(bytes))
}

fn broken(disk: &dyn Device, why: impl Into<String>) -> Error {
    Error::Partition { device: disk.name(), why: why.into() }
}

/// Copies `N` bytes at a place within `bytes`; zeroes if `bytes` is shorter.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk::<N>());
    found.copied().unwrap_or([0; N])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(field(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(bytes, at))
}

#[cfg(test)]
mod tests;
